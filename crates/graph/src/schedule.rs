//! A schedule: steps in their order, the store that they use, and what lives in it between training
//! steps.
//!
//! The meaning of each step, in bytes and in time, is in `replay.rs`.

use crate::{Graph, NodeId, StorageId, Store};

/// One step of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Run a node. A node that has run before is recomputed.
    Run(NodeId),
    /// Give a storage's bytes back.
    Free(StorageId),
    /// Begin to copy a storage to the store. It stays in memory.
    Offload(StorageId),
    /// Claim a storage's bytes and begin to copy it back from the store.
    Fetch(StorageId),
}

/// What to do, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    /// The steps.
    pub steps: Vec<Step>,
    /// The store that the steps use; `None` where nothing is moved.
    pub store: Option<Store>,
    /// Persistent storages that live in the store between training steps: the schedule finds them
    /// there, and leaves them there.
    pub stored_at_start: Vec<StorageId>,
}

impl From<Vec<Step>> for Schedule {
    fn from(steps: Vec<Step>) -> Schedule {
        Schedule { steps, ..Schedule::default() }
    }
}

impl Schedule {
    /// The plain step: every node once, in the graph's own order.
    pub fn plain(graph: &Graph) -> Schedule {
        Schedule::of_order(graph, &graph.natural_order())
    }

    /// Runs `order` and frees every storage right after its last use.
    ///
    /// Outputs and persistent storages are never freed. A storage that is written again later is
    /// freed after the last read that comes before that write, unless it has been updated in place
    /// by then: what its writer would make is not what it holds, so it stays and the new copy is
    /// dropped. What is there from the start and is never used is freed at once.
    pub fn of_order(graph: &Graph, order: &[NodeId]) -> Schedule {
        let mut needed = vec![false; graph.storages().len()];
        for s in graph.outputs() {
            needed[s.index()] = true;
        }
        let updated_at = first_updates(graph, order);
        let freeable = |s: StorageId| !graph.storage(s).role.is_persistent();
        // From the end, where it is known what is needed later; turned round at last.
        let mut steps = Vec::with_capacity(2 * order.len());
        let mut frees = Vec::new();
        let mut used = needed.clone();
        for (at, &id) in order.iter().enumerate().rev() {
            let node = graph.node(id);
            for s in node.reads.iter().chain(&node.writes) {
                used[s.index()] = true;
            }
            for &w in &node.writes {
                if !needed[w.index()] && freeable(w) {
                    frees.push(w);
                }
                needed[w.index()] &= updated_at[w.index()] < at;
            }
            for &r in &node.reads {
                if !needed[r.index()] && freeable(r) {
                    frees.push(r);
                }
                needed[r.index()] = true;
            }
            steps.extend(frees.drain(..).rev().map(Step::Free));
            steps.push(Step::Run(id));
        }
        let unused = |s: &StorageId| !used[s.index()] && freeable(*s);
        let mut at_once: Vec<StorageId> = graph.sources().filter(unused).collect();
        at_once.reverse();
        steps.extend(at_once.into_iter().map(Step::Free));
        steps.reverse();
        steps.into()
    }

    /// The nodes that it runs, in order.
    pub fn runs(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.steps.iter().filter_map(|step| match *step {
            Step::Run(node) => Some(node),
            Step::Free(_) | Step::Offload(_) | Step::Fetch(_) => None,
        })
    }

    /// Whether it moves anything, or finds anything in a store.
    pub fn has_transfers(&self) -> bool {
        let moves = |step: &Step| matches!(step, Step::Offload(_) | Step::Fetch(_));
        !self.stored_at_start.is_empty() || self.steps.iter().any(moves)
    }
}

/// Where each storage is first updated in place; past the end if nowhere.
fn first_updates(graph: &Graph, order: &[NodeId]) -> Vec<usize> {
    let mut updated_at = vec![usize::MAX; graph.storages().len()];
    for (at, &id) in order.iter().enumerate() {
        for u in &graph.node(id).updates {
            updated_at[u.index()] = updated_at[u.index()].min(at);
        }
    }
    updated_at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bytes;

    /// `make` writes s1 (an output) and s2; `touch` updates s1 in place; `use` reads s2.
    #[test]
    fn what_has_been_updated_is_not_made_anew() {
        let graph = Graph::from_json(
            r#"{"format": "remat.graph/1",
            "storages": [{"bytes": 1, "role": "input"}, {"bytes": 2, "role": "other"},
                         {"bytes": 4, "role": "other"}],
            "nodes": [
            {"name": "x", "phase": "input", "time_us": 0, "reads": [], "writes": [0]},
            {"name": "make", "phase": "forward", "time_us": 1, "reads": [0], "writes": [1, 2]},
            {"name": "touch", "phase": "forward", "time_us": 1, "reads": [1], "writes": [],
             "updates": [1], "recompute": false},
            {"name": "use", "phase": "forward", "time_us": 1, "reads": [2], "writes": []}],
            "outputs": [1], "targets": [3]}"#,
        )
        .expect("a graph");
        let run = |n| Step::Run(NodeId(n));
        let s2 = Step::Free(StorageId(2));
        let schedule = Schedule::of_order(&graph, &[1, 2, 1, 3].map(NodeId));
        assert_eq!(schedule.steps, [run(1), s2, run(2), run(1), run(3), s2]);
        // The second `make` needs s1 twice: 1 + 2 + 2 + 4.
        let timeline = crate::Timeline::new(&graph, &schedule).expect("valid");
        assert_eq!(timeline.peak, Bytes(9));
    }

    #[test]
    fn what_is_never_used_is_freed_at_once() {
        let graph = Graph::from_json(
            r#"{"format": "remat.graph/1",
            "storages": [{"bytes": 1, "role": "input"}, {"bytes": 2, "role": "other"},
                         {"bytes": 4, "role": "other"}, {"bytes": 8, "role": "other"}],
            "nodes": [
            {"name": "x", "phase": "input", "time_us": 0, "reads": [], "writes": [0, 1, 2]},
            {"name": "use", "phase": "forward", "time_us": 1, "reads": [2], "writes": [3]}],
            "outputs": [3]}"#,
        )
        .expect("a graph");
        let free = |s| Step::Free(StorageId(s));
        let schedule = Schedule::of_order(&graph, &[NodeId(1)]);
        assert_eq!(schedule.steps, [free(1), Step::Run(NodeId(1)), free(2)]);
    }
}
