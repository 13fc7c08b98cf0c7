//! The planner: which activations to keep and which to recompute, under a budget of bytes.
//!
//! In: a [`Graph`], a budget for the whole step, [`Options`]. Out: a [`Planned`]: a
//! [`Plan`](rekindle_graph::Plan) that fits, what it costs, a lower bound on what any plan must
//! cost, and a reason for every activation; or a [`PlanError`] with numbers.
//!
//! Each [`Strategy`] is one module and gives a draft: a schedule, under the budget if it finds one,
//! otherwise the lowest that it reached. [`plan`] alone decides what a draft is worth: it replays
//! it, compares it with the budget and has it checked by `rekindle-verify`.
//!
//! Invariants: no plan leaves this crate unchecked, none exceeds its budget, and the same input
//! gives the same plan. The crate is pure: no clock, no IO, no randomness but its own seeded one. A
//! time limit comes in as a [`Watch`] that says stop. It never runs a kernel.

mod blocks;
mod bound;
mod decision;
mod draft;
mod error;
mod floor;
mod frontier;
mod moment;
mod moments;
mod moving;
pub mod mutwo;
mod options;
mod planned;
mod rebuild;
mod search;
mod segments;
mod sqrt;
mod strategy;
#[cfg(test)]
mod testing;
mod transfer;

pub use decision::{Choice, Decision, Reason, decisions};
pub use error::{Infeasible, PlanError};
pub use floor::{Floor, floor};
pub use frontier::{Frontier, frontier};
pub use options::{Effort, NoWatch, Options, Progress, Watch};
pub use planned::{Planned, Stats, Status};
pub use strategy::Strategy;
pub use transfer::floor_with_store;

use rekindle_graph::{Bytes, Graph, Timeline};

use draft::{Draft, ReplayedDraft};

/// Plans `graph` under `budget`, the bytes that the whole step may use at its peak.
///
/// A budget at or above the plain step's peak gives the plain schedule, whatever the strategy.
///
/// # Errors
/// [`PlanError::Infeasible`] if the strategy finds no plan that fits.
pub fn plan(
    graph: &Graph,
    budget: Bytes,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Planned, PlanError> {
    if let Some(planned) = plan_aimed(graph, budget, options, watch)? {
        return Ok(planned);
    }
    // A strategy may go lower when no budget tells it where to look. This also makes the smallest
    // budget in a refusal one that works: it is the same for every budget that is refused.
    let mut found = lowest(graph, options, watch)?;
    // What it knows of the fastest holds where there is no more room than it takes.
    (found.draft.time_bound, found.draft.is_bound_best) = (draft::least_time(graph), false);
    let natural = Timeline::natural(graph);
    let mut answer = planned::finish(graph, budget, found, options, &natural);
    if let Err(PlanError::Infeasible(why)) = &mut answer
        && options.store.is_some()
        && !options.strategy.needs_store
    {
        let without = Options { store: None, ..options.clone() };
        let peak = lowest(graph, &without, watch)?.timeline.peak;
        why.smallest_without_store = Some(peak);
    }
    answer
}

/// The plan that the strategy finds when it aims at the budget; `None` if it finds none that fits.
///
/// Where [`plan`] would go on to look for the smallest budget, this ends: it is for callers that
/// ask at many budgets, and for one [`smallest`] beside them.
///
/// # Errors
/// Only what [`plan`] gives for reasons other than the budget.
pub fn plan_aimed(
    graph: &Graph,
    budget: Bytes,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Option<Planned>, PlanError> {
    refuse_transfers(graph)?;
    let natural = Timeline::natural(graph);
    let strategy = options.strategy;
    if natural.peak <= budget {
        let plain = Draft::plain(graph).replay(graph, strategy)?;
        return planned::finish(graph, budget, plain, options, &natural).map(Some);
    }
    if strategy.needs_store && options.store.is_none() {
        return Err(PlanError::NeedsStore { strategy: strategy.name });
    }
    // Below the floor there is nothing to look for.
    if budget >= floor_of(graph, options).bytes {
        let replayed = (strategy.draft)(graph, budget, options, watch)
            .freeing_after_last_use(graph)
            .replay(graph, strategy)?;
        if replayed.draft.stopped || replayed.timeline.peak <= budget {
            return planned::finish(graph, budget, replayed, options, &natural).map(Some);
        }
    }
    Ok(None)
}

/// The plan with the smallest peak that the strategy knows how to reach.
///
/// # Errors
/// Only what [`plan`] gives for reasons other than the budget.
pub fn smallest(
    graph: &Graph,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Planned, PlanError> {
    refuse_transfers(graph)?;
    let natural = Timeline::natural(graph);
    if options.strategy.needs_store && options.store.is_none() {
        return Err(PlanError::NeedsStore { strategy: options.strategy.name });
    }
    let lowest = lowest(graph, options, watch)?;
    planned::finish(graph, lowest.timeline.peak, lowest, options, &natural)
}

/// Transfers are what a plan adds; a graph that has them was rewritten for one.
fn refuse_transfers(graph: &Graph) -> Result<(), PlanError> {
    match graph.nodes().iter().find(|node| node.transfer().is_some()) {
        Some(node) => Err(PlanError::AlreadyMoves { node: node.shown_name() }),
        None => Ok(()),
    }
}

/// A lower bound on the peak of every schedule that `options` allow.
pub(crate) fn floor_of(graph: &Graph, options: &Options) -> Floor {
    match options.store {
        Some(store) if !store.activations_only => floor_with_store(graph),
        // What is persistent stays, and beside it is what a node touches.
        _ => floor(graph),
    }
}

/// The lowest schedule that the strategy reaches.
fn lowest(
    graph: &Graph,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<ReplayedDraft, PlanError> {
    let floor = floor_of(graph, options).bytes;
    let draft = (options.strategy.lowest)(graph, floor, options, watch)
        .freeing_after_last_use(graph)
        .replay(graph, options.strategy)?;
    let plain = Draft::plain(graph).replay(graph, options.strategy)?;
    match draft.timeline.peak < plain.timeline.peak {
        true => Ok(draft),
        false => Ok(plain),
    }
}
