//! The profiler of Rekindle: where the time of a training step goes.
//!
//! In: an engine to run. Out: a [`Measurement`]: the time and bytes of every node and the time to
//! swap every activation, from which `rekindle-analysis` makes the profile's tables.
//!
//! [`measure`] runs an engine under the clock, and [`measure_store`] moves bytes to a store and
//! back. This is the one library crate that reads a clock.

mod error;
mod measure;
mod store;

pub use error::ProfileError;
pub use measure::{MeasureOptions, MeasureProgress, Measurement, Swaps, measure};
pub use store::{MeasuredStore, measure_store};
