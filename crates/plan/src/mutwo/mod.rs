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
//! With a store, swaps are executed: the schedule has them as transfers (`moves`). At the level of
//! activations swapping is a cost model.

mod activation_level;
mod emit;
mod moves;
mod swap;
mod table;

pub use activation_level::{
    ActivationLevel, ActivationPlan, ActivationPlanError, Candidate, TableChoice, plan_activations,
};

use rekindle_analysis::{ActivationUses, Tracer, activations, inactive_times};
use rekindle_graph::{Bytes, Graph, Micros, Node, NodeId, Phase, Schedule, Step, Store, replay};

use crate::draft::Draft;
use crate::{Options, Progress, Strategy, Watch};
use swap::{Channel, Transfer};
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
fn draft(graph: &Graph, budget: Bytes, options: &Options, watch: &mut dyn Watch) -> Draft {
    let activations = activations(graph);
    let mut table = Table::new(entries(graph, &activations));
    let both_ways = |store: &&Store| store.out_rate.get() > 0.0 && store.in_rate.get() > 0.0;
    let store = options.store.as_ref().filter(both_ways);
    let mut swaps = Swaps::new(graph, &activations, store);
    let mut dropped = vec![false; activations.len()];
    let mut lowest = Draft::plain(graph).schedule;
    let mut now = replayed(graph, &lowest).expect("the plain step can be replayed");
    let mut lowest_peak = now.peak;
    let (mut rounds, mut stopped) = (0, false);
    while lowest_peak > budget && !stopped {
        let recompute = table.recompute_candidate();
        let swap = swaps.candidate(&table).map(|i| (i, swaps.cost(i, &now, budget)));
        let is_swap = match (swap, recompute) {
            (Some((_, cost)), Some(r)) => cost.overhead < table.total_time(r),
            (swap, _) => swap.is_some(),
        };
        let Some(candidate) = swap.map(|(i, _)| i).filter(|_| is_swap).or(recompute) else {
            break;
        };
        rounds += 1;
        let progress = Progress {
            done: rounds,
            total: activations.len() as u64,
            best: None,
            lowest: lowest_peak,
        };
        stopped = watch.progress(&progress).is_break();
        match swap.filter(|_| is_swap) {
            Some((i, transfer)) => {
                swaps.take(i, transfer);
                table.keep(i);
            }
            None => dropped[candidate] = true,
        }
        let order = emit::order(graph, &activations, &dropped);
        let schedule = order.map(|order| swaps.schedule(&order));
        let next = schedule.and_then(|s| Some((replayed(graph, &s)?, s)));
        let Some((next, schedule)) = next else {
            // Its sub-graph reads what will have been overwritten by then, or the store has no
            // room, or what is made on the way is moved.
            match is_swap {
                true => swaps.give_up(),
                false => {
                    dropped[candidate] = false;
                    table.keep(candidate);
                }
            }
            continue;
        };
        if !is_swap {
            swaps.hide_behind(candidate, table.total_time(candidate));
            table.recompute(candidate);
        }
        now = next;
        if now.peak < lowest_peak {
            (lowest, lowest_peak) = (schedule, now.peak);
        }
    }
    Draft { schedule: lowest, work: rounds, stopped, ..Draft::plain(graph) }
}

/// What is swapped, and the channel that it takes. Without a store nothing is.
struct Swaps<'a> {
    graph: &'a Graph,
    activations: &'a [ActivationUses],
    store: Option<&'a Store>,
    inactive: Vec<Micros>,
    channel: Channel,
    chosen: Vec<moves::Swap<'a>>,
}

impl<'a> Swaps<'a> {
    fn new(graph: &'a Graph, activations: &'a [ActivationUses], store: Option<&'a Store>) -> Self {
        let runs = |n: &Node| if n.phase == Phase::Input { Micros::ZERO } else { n.time };
        let times: Vec<Micros> = graph.nodes().iter().map(runs).collect();
        let is_backward = |n: &Node| n.phase == Phase::Backward;
        let backward = graph.nodes().iter().position(is_backward).unwrap_or(times.len());
        Swaps {
            graph,
            activations,
            store,
            inactive: inactive_times(graph, activations),
            channel: Channel::new(&times, backward),
            chosen: Vec::new(),
        }
    }

    /// The longest `inactive_time`; the lower id where two are equal.
    fn candidate(&self, table: &Table) -> Option<usize> {
        self.store?;
        let all = (0..self.activations.len()).filter(|&i| table.is_candidate(i));
        all.max_by(|&a, &b| {
            let time = |i: usize| self.inactive[i].get();
            time(a).total_cmp(&time(b)).then(b.cmp(&a))
        })
    }

    /// How long its way back takes.
    fn takes(&self, i: usize) -> Micros {
        let store = self.store.expect("there is a candidate");
        let bytes = self.activations[i].bytes.get() as f64;
        Micros(store.latency.get() + bytes / store.in_rate.get())
    }

    /// What the swap would cost where memory is as in `now`.
    fn cost(&self, i: usize, now: &Ranked, budget: Bytes) -> Transfer {
        let first = self.activations[i].first_backward.index();
        let over = (0..first).rev().find(|&rank| now.during[rank] > budget);
        self.channel.cost(self.takes(i), first, over)
    }

    fn take(&mut self, i: usize, transfer: Transfer) {
        let activation = &self.activations[i];
        self.channel.take(self.takes(i), activation.first_backward.index(), transfer);
        self.chosen.push((activation, NodeId::new(transfer.starts)));
    }

    /// Takes the last one back.
    fn give_up(&mut self) {
        self.chosen.pop();
    }

    /// A recomputation hides transfers too.
    fn hide_behind(&mut self, i: usize, time: Micros) {
        self.channel.add_recomputation(self.activations[i].first_backward.index(), time);
    }

    fn schedule(&self, order: &[NodeId]) -> Schedule {
        match self.store.filter(|_| !self.chosen.is_empty()) {
            Some(store) => moves::schedule(self.graph, order, &self.chosen, store),
            None => Schedule::of_order(self.graph, order),
        }
    }
}

/// The replay of a schedule, as the algorithm sees it.
struct Ranked {
    peak: Bytes,
    /// Bytes while each node runs for the last time.
    during: Vec<Bytes>,
}

/// Nothing if it cannot be replayed.
fn replayed(graph: &Graph, schedule: &Schedule) -> Option<Ranked> {
    let mut during = vec![Bytes::ZERO; graph.nodes().len()];
    let timeline = replay(graph, schedule, |moment| {
        if let Step::Run(id) = moment.step {
            during[id.index()] = moment.during;
        }
    });
    Some(Ranked { peak: timeline.ok()?.peak, during })
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
