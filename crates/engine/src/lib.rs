//! The CPU training engine of Remat: kernels, arena placement, executor.
#![allow(unsafe_code)] // The one crate that may; every block says why it is sound.

pub mod kernels;
mod threads;

pub use threads::{SharedMut, Threads};
