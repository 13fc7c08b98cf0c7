//! What a strategy hands to [`plan`](crate::plan): a schedule that nobody has checked yet.

use rekindle_graph::{Graph, Micros, NodeId, Phase, Schedule, Timeline};

use crate::{PlanError, Strategy};

/// A schedule, and what the strategy knows about it.
pub(crate) struct Draft {
    /// Under the budget if the strategy found such a schedule, otherwise the lowest that it
    /// reached. Frees may be missing: only the runs count, see
    /// [`freeing_after_last_use`](Draft::freeing_after_last_use).
    pub(crate) schedule: Schedule,
    /// No schedule under the budget takes less time than this.
    pub(crate) time_bound: Micros,
    /// Whether the bound is the best that can be shown.
    pub(crate) is_bound_best: bool,
    /// Work done, in the strategy's own count.
    pub(crate) work: u64,
    /// Whether the watch ended the work early.
    pub(crate) stopped: bool,
}

impl Draft {
    /// The plain step: every node once, in the graph's own order.
    pub(crate) fn plain(graph: &Graph) -> Draft {
        Draft::of_order(graph, &graph.natural_order())
    }

    /// The schedule that runs `order` and frees every storage after its last use.
    pub(crate) fn of_order(graph: &Graph, order: &[NodeId]) -> Draft {
        Draft {
            schedule: Schedule::of_order(graph, order),
            time_bound: least_time(graph),
            is_bound_best: false,
            work: order.len() as u64,
            stopped: false,
        }
    }

    /// The same runs with every storage freed right after its last use. This is never higher than
    /// the schedule as it was, and it is what the rewritten graph does. A schedule with transfers
    /// says itself where each storage is.
    pub(crate) fn freeing_after_last_use(self, graph: &Graph) -> Draft {
        if self.schedule.has_transfers() {
            return self;
        }
        let order: Vec<NodeId> = self.schedule.runs().collect();
        Draft { schedule: Schedule::of_order(graph, &order), ..self }
    }

    /// The draft with its replay.
    ///
    /// # Errors
    /// If it cannot be replayed, which is the strategy's fault.
    pub(crate) fn replay(
        self,
        graph: &Graph,
        strategy: Strategy,
    ) -> Result<ReplayedDraft, PlanError> {
        match Timeline::new(graph, &self.schedule) {
            Ok(timeline) => Ok(ReplayedDraft { draft: self, timeline }),
            Err(error) => {
                Err(PlanError::Rejected { strategy: strategy.name, why: error.to_string() })
            }
        }
    }
}

/// A draft that can be run.
pub(crate) struct ReplayedDraft {
    pub(crate) draft: Draft,
    pub(crate) timeline: Timeline,
}

/// The time of any schedule is at least this: every node that the outputs, targets and updates need
/// runs once.
pub(crate) fn least_time(graph: &Graph) -> Micros {
    let needed = needed_nodes(graph);
    let times = graph.nodes().iter().zip(&needed);
    times.filter(|(_, n)| **n).map(|(node, _)| node.time).sum()
}

/// The nodes that every valid schedule runs: targets, nodes that update storages in place, writers
/// of outputs, and whatever these read from.
pub(crate) fn needed_nodes(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes().len()];
    for t in graph.targets() {
        needed[t.index()] = true;
    }
    for &s in graph.outputs() {
        needed[graph.writer(s).index()] = true;
    }
    // File order is a valid order, so one sweep from the end meets every reader before its sources.
    for id in graph.node_ids().rev() {
        let node = graph.node(id);
        needed[id.index()] |= !node.updates.is_empty();
        if needed[id.index()] {
            for &r in &node.reads {
                needed[graph.writer(r).index()] = true;
            }
        }
    }
    for (needed, node) in needed.iter_mut().zip(graph.nodes()) {
        *needed &= node.phase != Phase::Input;
    }
    needed
}
