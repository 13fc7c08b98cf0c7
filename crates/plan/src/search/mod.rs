//! The strategy `search`: good starts, then annealing.
//!
//! In: a graph, a budget, an effort. Out: a draft under the budget if one is found, otherwise the lowest that was
//! reached, and a lower bound on the time of any schedule under the budget.
//!
//! Steps: (1) a [`model`] of the graph; (2) starts: the graph's own order run under the budget with foresight
//! ([`first`]), and cuts at the moment of its peak with a price on bytes ([`start`]); (3) annealing over
//! sequences of runs ([`anneal`]) from the best of them. All work is counted, so the same input gives the same plan.

mod anneal;
mod first;
mod flow;
mod model;
mod moment;
mod random;
mod sequence;
mod start;
mod tree;

use remat_graph::{Bytes, Graph, Micros};

use crate::draft::{Draft, needed_nodes};
use crate::{Effort, Options, PlanError, Progress, Watch};
use anneal::{Annealer, Found, Schedule};
use model::Model;
use sequence::Sequence;

/// Moves of the annealing at effort 1; each level doubles them.
const MOVES: u64 = 60_000;

/// A draft under `budget` if one is found, otherwise the lowest that was reached.
pub(crate) fn draft(
    graph: &Graph,
    budget: Bytes,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Draft, PlanError> {
    let model = Model::new(graph, &needed_nodes(graph));
    let limit = i64::try_from(budget.get()).unwrap_or(i64::MAX);
    let mut best = Found::of_order(&model, &model.natural);
    for found in start::starts(&model, limit) {
        if found.beats(&best, limit) {
            best = found;
        }
    }
    let moves = match options.effort {
        Effort::FIRST => 0,
        effort => MOVES << effort.level(),
    };
    let mut stopped = false;
    let mut report = |done: u64, best: &Found| {
        let progress = Progress {
            done,
            total: moves,
            best: (best.peak <= limit).then_some(Micros(best.time)),
            lowest: Bytes(best.peak.unsigned_abs()),
        };
        stopped |= watch.progress(&progress).is_break();
        stopped
    };
    if !report(0, &best) {
        let mean = model.least_time() / model.natural.len() as f64;
        let schedule = Schedule {
            moves,
            hot: 0.5 * mean,
            cold: 0.005 * mean,
        };
        let mut annealer = Annealer::new(Sequence::new(&model, &best.order), limit, 1);
        best = annealer.run(&schedule, &mut report);
    }
    Ok(Draft {
        steps: model.steps(&best.order),
        time_bound: Micros(model.least_time()),
        work: moves,
        stopped,
    })
}
