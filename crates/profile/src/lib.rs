//! The profiler of Rekindle: where the time of a training step goes.
//!
//! In: an engine to run. Out: a [`Measurement`]: the time and bytes of every node and the time to
//! swap every activation, from which `rekindle-analysis` makes the profile's tables.
//!
//! [`measure`] runs an engine under the clock, [`Limited`] a step that does not fit in memory, by
//! swapping, and [`measure_store`] moves bytes to a store and back. This is the one library crate
//! that reads a clock.

mod error;
mod limited;
mod measure;
mod spill;
mod store;
mod swap;

pub use error::ProfileError;
pub use limited::Limited;
pub use measure::{MeasureOptions, MeasureProgress, Measurement, measure};
pub use spill::{FileSpill, HostSpill};
pub use store::measure_store;
pub use swap::{SwapNode, Swapped, swap};
