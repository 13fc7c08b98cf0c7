//! The steps of a schedule, and the frees that follow from an order of runs.

use crate::{Graph, NodeId, Phase, StorageId};

/// One step of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Run a node. A node that has run before is recomputed.
    Run(NodeId),
    /// Give a storage's bytes back.
    Free(StorageId),
}

/// The steps that run `order` and free every storage right after its last use.
///
/// Outputs and persistent storages are never freed. A storage that is written again later is freed
/// after the last read that comes before that write, unless it has been updated in place by then:
/// what its writer would make is not what it holds, so it stays and the new copy is dropped. What
/// is there from the start and is never used is freed at once.
pub fn with_frees(graph: &Graph, order: &[NodeId]) -> Vec<Step> {
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
    let inputs = graph.nodes().iter().filter(|n| n.phase == Phase::Input);
    let unused = inputs
        .flat_map(|node| node.writes.iter().copied())
        .filter(|&s| !used[s.index()] && freeable(s));
    steps.extend(unused.collect::<Vec<_>>().into_iter().rev().map(Step::Free));
    steps.reverse();
    steps
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
        let steps = with_frees(&graph, &[1, 2, 1, 3].map(NodeId));
        assert_eq!(steps, [run(1), s2, run(2), run(1), run(3), s2]);
        // The second `make` needs s1 twice: 1 + 2 + 2 + 4.
        let timeline = crate::Timeline::new(&graph, &steps).expect("valid");
        assert_eq!(timeline.peak, crate::Bytes(9));
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
        let steps = with_frees(&graph, &[NodeId(1)]);
        assert_eq!(steps, [free(1), Step::Run(NodeId(1)), free(2)]);
    }
}
