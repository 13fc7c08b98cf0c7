//! The profiler of Rekindle: where the time and the bytes of a training step go.
//!
//! In: a graph to analyse, an engine to run, or files to read. Out: a [`Profile`]: time and bytes
//! of every node; uses, size and the metrics of μ-TWO of every activation.
//!
//! [`measure`] runs an engine under the clock, and [`Limited`] a step that does not fit in memory,
//! by swapping. [`Analysis`] tells what is known without running anything, [`recomputations`] and
//! [`inactive_times`] what follows from a graph's times, and [`write_profile`] and [`read_profile`]
//! keep a profile in files.
//!
//! This is the one library crate that reads a clock.

mod analysis;
mod breakdown;
mod error;
mod files;
mod kind;
mod limited;
mod measure;
mod profile;
mod recompute;
mod spill;
mod swap;
mod table;

pub use analysis::{Activation, Analysis, Boundaries};
pub use breakdown::{Breakdown, breakdowns};
pub use error::ProfileError;
pub use files::{
    ACTIVATION_COLUMNS, NODE_COLUMNS, ProfilePaths, read_activation_stats, read_node_stats,
    read_profile, write_activation_stats, write_node_stats, write_profile,
};
pub use kind::{Gtype, Kind};
pub use limited::Limited;
pub use measure::{MeasureOptions, Measurement, Progress, measure};
pub use profile::{ActivationStats, Measured, NodeStats, Profile, Seconds, active_mem, node_peaks};
pub use recompute::{Recomputation, inactive_times, recomputations};
pub use spill::{FileSpill, HostSpill};
pub use swap::{Origin, Swapped, swap};
pub use table::Table;
