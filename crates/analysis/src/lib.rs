//! What is known of a training step without running it: the analysis of a graph, and its tables.
//!
//! In: a graph, whose times are measured or estimated elsewhere; or the CSV files of a profile.
//! Out: [`Analysis`] (what each part is for, when each activation is used), [`Recomputation`] (what
//! makes an activation again), [`Breakdown`] (what the live bytes are made of), and a [`Profile`]:
//! the attributes of μ-TWO for every node and every activation, as rows of two tables. Of a
//! schedule that moves storages to a store, [`Transfers`]: what is moved, what is hidden, what is
//! waited for. Of a frontier, its [`knee()`].
//!
//! [`Tracer`] is the one tracer of recomputations: the planner decides by it, and the tables show
//! what it finds. Nothing here runs a node or reads a clock; `rekindle-profile` measures.

mod analysis;
mod breakdown;
mod consistency;
mod error;
mod files;
mod kind;
mod knee;
mod profile;
mod recompute;
mod table;
mod transfers;

pub use analysis::{ActivationUses, Analysis, Boundaries, activations};
pub use breakdown::{Breakdown, LAYERS, breakdowns};
pub use consistency::check_tables;
pub use error::TableError;
pub use files::{
    ACTIVATION_COLUMNS, NODE_COLUMNS, ProfilePaths, read_activation_stats, read_node_stats,
    read_profile, write_activation_stats, write_node_stats, write_profile,
};
pub use kind::{Kind, gtype};
pub use knee::knee;
pub use profile::{ActivationStats, Measurements, NodeStats, Profile, Seconds, node_peaks};
pub use recompute::{Recomputation, Tracer, inactive_times};
pub use table::{Table, csv_text, text_cell, text_of_cell};
pub use transfers::{Awaiting, Direction, TimedTransfer, Transfers, Wait, transfers};
