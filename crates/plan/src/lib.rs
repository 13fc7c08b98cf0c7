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
mod moments;
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

pub use decision::{Choice, Decision, Reason, decisions};
pub use error::{Infeasible, PlanError};
pub use floor::{Floor, floor};
pub use frontier::{Frontier, frontier};
pub use options::{Effort, NoWatch, Options, Progress, Watch};
pub use planned::{Planned, Stats, Status};
pub use strategy::Strategy;

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
    let natural = Timeline::natural(graph);
    let strategy = options.strategy;
    if natural.peak <= budget {
        let plain = Draft::plain(graph).replay(graph, strategy)?;
        return planned::finish(graph, budget, plain, options, &natural);
    }
    // Below the floor there is nothing to look for.
    if budget >= floor(graph).bytes {
        let replayed = (strategy.draft)(graph, budget, options, watch)
            .freeing_after_last_use(graph)
            .replay(graph, strategy)?;
        if replayed.draft.stopped || replayed.timeline.peak <= budget {
            return planned::finish(graph, budget, replayed, options, &natural);
        }
    }
    // A strategy may go lower when no budget tells it where to look. This also makes the smallest
    // budget in a refusal one that works: it is the same for every budget that is refused.
    let lowest = lowest(graph, options, watch)?;
    planned::finish(graph, budget, lowest, options, &natural)
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
    let natural = Timeline::natural(graph);
    let lowest = lowest(graph, options, watch)?;
    planned::finish(graph, lowest.timeline.peak, lowest, options, &natural)
}

/// The lowest schedule that the strategy reaches.
fn lowest(
    graph: &Graph,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<ReplayedDraft, PlanError> {
    let floor = floor(graph).bytes;
    let draft = (options.strategy.lowest)(graph, floor, options, watch)
        .freeing_after_last_use(graph)
        .replay(graph, options.strategy)?;
    let plain = Draft::plain(graph).replay(graph, options.strategy)?;
    match draft.timeline.peak < plain.timeline.peak {
        true => Ok(draft),
        false => Ok(plain),
    }
}
