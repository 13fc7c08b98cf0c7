//! Moving alone, for comparison: nothing is recomputed, what does not fit is moved to the store and
//! back.
//!
//! In: a graph, a budget, a store. Out: a draft in the graph's own order; nodes that update storages
//! in place run as early as they can. Method: see `transfer/walk.rs`.

use rekindle_graph::{Bytes, Graph, Store};

use crate::draft::Draft;
use crate::{Options, Strategy, Watch, transfer};

/// See the module's documentation.
pub(crate) const STRATEGY: Strategy = Strategy {
    name: "move",
    title: "move only",
    about: "recomputes nothing, and moves to a store and back what does not fit.",
    heeds_budget: true,
    needs_store: true,
    draft,
    lowest,
};

fn store(options: &Options) -> &Store {
    options.store.as_ref().expect("a strategy that needs a store is not called without one")
}

/// The graph's own order under `budget`; the plain step where there is no way.
fn draft(graph: &Graph, budget: Bytes, options: &Options, _: &mut dyn Watch) -> Draft {
    let moving = transfer::moving_alone(graph, budget, store(options));
    moving.unwrap_or_else(|| Draft::plain(graph))
}

fn lowest(graph: &Graph, floor: Bytes, options: &Options, watch: &mut dyn Watch) -> Draft {
    let limit = transfer::lowest_moving(graph, floor, store(options));
    draft(graph, Bytes(limit.unsigned_abs()), options, watch)
}
