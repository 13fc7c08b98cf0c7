//! The CPU training engine of Rekindle: kernels, arena placement, executor.
//!
//! In: a [`rekindle_program::Program`] and the graph that runs: its own, or a rewritten one. Out:
//! values, and the peak that the step really had. Every tensor, scratch included, lives in one
//! arena at an offset that is fixed before the run; a step allocates nothing, and its results are
//! the same bits at any thread count.
//!
//! This is the one crate of the workspace with `unsafe` and with threads.
#![allow(unsafe_code)] // Every block says why it is sound.

mod arena;
mod dispatch;
mod error;
mod executor;
mod kernels;
mod layout;
mod placement;
mod spill;
mod threads;

pub use arena::resident_peak;
pub use error::EngineError;
pub use executor::{Engine, Iteration, Observer};
pub use kernels::KernelError;
pub use layout::{Layout, Peak, lower};
pub use placement::{Block, Placement, place};
pub use spill::{Spill, SpillError};
pub use threads::{SharedMut, Threads};
