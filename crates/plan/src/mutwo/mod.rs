//! μ-TWO (MLSys 2023): greedy choice of activations to recompute (or swap), one at a time.
//!
//! In: activations with their sizes, uses and recomputation sub-graphs. Out: which to recompute.
//!
//! Method. All activations start as kept. Then, until the peak is under the budget:
//! 1. the swap candidate is the one with the longest `inactive_time`, the recompute candidate the
//!    one with the highest `recompute_ratio = memory_size / total_recomp_time` (`table`);
//! 2. the one that costs less time is taken; without swapping, always the recompute candidate;
//! 3. existing recomputations and remaining candidates are brought up to date (`table`), or the
//!    transfer channel is (`swap`);
//! 4. memory is simulated again.
//!
//! Two simulations serve step 4. With a graph, the schedule is really built and replayed
//! (`emit`), so that the algorithm stops on the true peak. Without edges (profiler files alone),
//! live intervals are added up (`activation_level`).
//!
//! Invariants: the natural order is kept; ties go to the lower id; each round takes one activation,
//! so there are at most as many rounds as activations.
//!
//! Limits: swapping is a cost model. A schedule of runs and frees cannot express it, so it exists
//! at the level of activations only.

mod activation_level;
mod emit;
mod swap;
mod table;

pub use activation_level::{
    ActivationLevel, ActivationPlan, ActivationPlanError, Candidate, TableChoice, plan_activations,
};

use rekindle_analysis::{ActivationUses, Tracer, activations};
use rekindle_graph::{Bytes, Graph, NodeId, Schedule, Timeline};

use crate::draft::Draft;
use crate::{Options, Progress, Strategy, Watch};
use table::{Entry, Table};

/// See the module's documentation.
pub(crate) const STRATEGY: Strategy = Strategy {
    name: "mutwo",
    title: "μ-TWO",
    about: "chooses greedily by bytes won per second of recomputation.",
    heeds_budget: true,
    needs_store: false,
    draft,
    lowest: draft,
};

/// A schedule under `budget` if the algorithm reaches it, otherwise the lowest that it met. `watch`
/// sees every round.
fn draft(graph: &Graph, budget: Bytes, _: &Options, watch: &mut dyn Watch) -> Draft {
    let activations = activations(graph);
    let mut table = Table::new(entries(graph, &activations));
    let mut dropped = vec![false; activations.len()];
    let mut lowest = graph.natural_order();
    let mut lowest_peak = peak(graph, &lowest);
    let (mut rounds, mut stopped) = (0, false);
    while lowest_peak > budget
        && !stopped
        && let Some(candidate) = table.recompute_candidate()
    {
        rounds += 1;
        let progress = Progress {
            done: rounds,
            total: activations.len() as u64,
            best: None,
            lowest: lowest_peak,
        };
        stopped = watch.progress(&progress).is_break();
        dropped[candidate] = true;
        let Some(order) = emit::order(graph, &activations, &dropped) else {
            // Its sub-graph reads what will have been overwritten by then.
            dropped[candidate] = false;
            table.keep(candidate);
            continue;
        };
        table.recompute(candidate);
        let peak = peak(graph, &order);
        if peak < lowest_peak {
            (lowest, lowest_peak) = (order, peak);
        }
    }
    Draft { work: rounds, stopped, ..Draft::of_order(graph, &lowest) }
}

fn peak(graph: &Graph, order: &[NodeId]) -> Bytes {
    Timeline::new(graph, &Schedule::of_order(graph, order))
        .expect("every read has a write before it")
        .peak
}

/// The activations as the table sees them: sources are positions in the list, which ascends by
/// storage. Persistent sources are there anyway and do not count.
fn entries(graph: &Graph, activations: &[ActivationUses]) -> Vec<Entry> {
    let mut tracer = Tracer::new(graph, activations);
    let position = |s| activations.binary_search_by_key(&s, |a| a.storage).ok();
    let entry = |a: &ActivationUses| {
        let recomputation = tracer.recomputation(a);
        let sources = recomputation.sources.iter().copied();
        Entry {
            bytes: a.bytes,
            first_backward: a.first_backward.index(),
            last_backward: a.last.index(),
            sources: sources.filter_map(position).collect(),
            recompute_time: recomputation.time,
            rebuildable: recomputation.possible,
        }
    };
    activations.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::testing::chain;

    struct StopAtOnce;

    impl Watch for StopAtOnce {
        fn progress(&mut self, _: &Progress) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
    }

    #[test]
    fn it_stops_when_it_is_told_to() {
        let options = Options::default();
        let draft = draft(&chain(8), Bytes::ZERO, &options, &mut StopAtOnce);
        assert!(draft.stopped);
        assert_eq!(draft.work, 1);
    }
}
