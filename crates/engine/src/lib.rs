//! The CPU training engine of Rekindle: kernels, arena placement, executor.
//!
//! In: a [`rekindle_program::Program`] and a schedule of runs and frees. Out: values, and the peak
//! that the step really had. Every tensor, scratch included, lives in one arena at an offset that
//! is fixed before the run; a step allocates nothing, and its results are the same bits at any
//! thread count.
//!
//! This is the one crate of the workspace with `unsafe` and with threads.
#![allow(unsafe_code)] // Every block says why it is sound.

mod arena;
mod dispatch;
mod error;
mod executor;
mod kernels;
mod lifetimes;
mod placement;
mod spill;
mod threads;

pub use error::EngineError;
pub use executor::{Engine, Layout, Observer, Peak, StepContext, lower};
pub use kernels::KernelError;
pub use placement::{Block, Placement, place};
pub use spill::{Spill, SpillError};
pub use threads::{SharedMut, Threads};
