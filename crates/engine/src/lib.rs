//! The CPU training engine of Rekindle: kernels, arena placement, executor.
//!
//! In: a [`rekindle_program::Program`] and the graph that runs: its own, or a rewritten one. Out:
//! values, and the peak that the step really had. Every tensor, scratch included, lives in one
//! arena at an offset that is fixed before the run; a step allocates nothing, and its results are
//! the same bits at any thread count. Where the graph moves tensors to a store and back, threads of
//! their own do so straight from and to the arena, and every hazard is a wait.
//!
//! This is the one crate of the workspace with `unsafe` and with threads.
#![allow(unsafe_code)] // Every block says why it is sound.

mod arena;
mod channels;
mod dispatch;
mod error;
mod executor;
mod kernels;
mod layout;
mod moves;
mod placement;
mod store;
mod threads;
mod values;

pub use arena::resident_peak;
pub use channels::{Store, TransferWatch};
pub use error::EngineError;
pub use executor::{Engine, Iteration, Moved, Observer, Update};
pub use kernels::KernelError;
pub use layout::{Layout, Peak, lower};
pub use moves::Direction;
pub use placement::{Block, Placement, place};
pub use store::{Backing, Caching, FileStore, PageBuffer};
pub use threads::{SharedMut, Threads};
