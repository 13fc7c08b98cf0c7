//! Rekindle for Python: the module `rekindle._native`.
//!
//! In: graphs, built node by node or read from `remat.graph/1`, and budgets. Out: plans of them,
//! and what the checker says. Nodes and storages are named by their index. Each function is one
//! call into the crate that does the work; nothing is decided here. Errors are the classes of
//! `python/rekindle/errors.py`.
//!
//! While it plans, Python's lock is free: other threads run, Ctrl-C stops the planning
//! (`watch.rs`).
//!
//! Limits: the module knows nothing of PyTorch; `python/rekindle` brings graphs here and takes
//! plans back.

// The signatures are Python's: keyword arguments with defaults, and values that are taken by the
// macro.
#![allow(clippy::too_many_arguments, clippy::needless_pass_by_value)]

mod allocator;
mod error;
mod graph;
mod plan;
mod profile;
mod watch;

use pyo3::prelude::*;

/// The module's contents, in the order of the data.
#[pymodule]
mod _native {
    /// The version of the planner, which plans on disk are kept under.
    #[pymodule_export]
    #[allow(non_upper_case_globals)] // Python's name for it.
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use crate::allocator::{Footprint, Replayed, footprint, plan_for_reserved, replay_history};
    #[pymodule_export]
    use crate::graph::{Graph, Node, parse_budget};
    #[pymodule_export]
    use crate::plan::{
        Decision, Plan, Transfers, frontier, parse_store, plan, rewrite, smallest, strategies,
        verify, verify_rewritten,
    };
    #[pymodule_export]
    use crate::profile::write_profile;
}
