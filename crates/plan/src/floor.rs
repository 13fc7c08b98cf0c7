//! The floor: a peak below which no schedule can go, in any order and with any recomputation.
//!
//! Method: when a node runs, what is persistent from the start, what it reads and what it writes
//! must be live together, and its scratch with them. Every schedule runs the needed nodes; so the
//! largest such sum over them is a lower bound, and so are the bytes at the start and those of the
//! outputs at the end.
//!
//! Limits: it does not see what must be kept *across* a node for later, so the smallest feasible peak
//! may be higher.

use remat_graph::{Bytes, Graph, NodeId, Phase, StorageId};

use crate::draft::needed_nodes;

/// A lower bound on the peak of every schedule, and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Floor {
    /// The bound.
    pub bytes: Bytes,
    /// The node that gives it; `None` if the start or the end of the step does.
    pub at: Option<NodeId>,
    /// When that is, in words.
    pub moment: &'static str,
    /// The storages that must be live then, largest first.
    pub coexisting: Vec<StorageId>,
    /// The node's scratch.
    pub workspace: Bytes,
}

/// The floor of `graph`.
pub fn floor(graph: &Graph) -> Floor {
    let fixed = fixed_storages(graph);
    let sum = |list: &[StorageId]| list.iter().map(|&s| graph.storage(s).bytes).sum::<Bytes>();
    let fixed_bytes = sum(&fixed);

    let start: Vec<StorageId> = graph
        .storage_ids()
        .filter(|&s| is_from_start(graph, s) && !is_fixed(graph, s))
        .collect();
    let mut best = (
        fixed_bytes + sum(&start),
        None,
        "the start of the step",
        start,
    );
    let end = beside_fixed(graph, graph.outputs().iter());
    if fixed_bytes + sum(&end) > best.0 {
        best = (fixed_bytes + sum(&end), None, "the end of the step", end);
    }
    for (id, needed) in graph.node_ids().zip(needed_nodes(graph)) {
        let (touched, bytes) = touched(graph, id);
        if needed && fixed_bytes + bytes > best.0 {
            best = (fixed_bytes + bytes, Some(id), "a node", touched);
        }
    }
    let (bytes, at, moment, mut coexisting) = best;
    coexisting.extend(fixed);
    coexisting.sort_by_key(|&s| (std::cmp::Reverse(graph.storage(s).bytes), s));
    Floor {
        bytes,
        at,
        moment,
        coexisting,
        workspace: at.map_or(Bytes::ZERO, |id| graph.node(id).workspace),
    }
}

/// What must be live while `id` runs.
pub(crate) fn floor_at(graph: &Graph, id: NodeId) -> Bytes {
    let fixed = fixed_storages(graph);
    fixed.iter().map(|&s| graph.storage(s).bytes).sum::<Bytes>() + touched(graph, id).1
}

fn is_from_start(graph: &Graph, s: StorageId) -> bool {
    graph.node(graph.writer(s)).phase == Phase::Input
}

/// Live from the start and never freed.
fn is_fixed(graph: &Graph, s: StorageId) -> bool {
    graph.storage(s).role.is_persistent() && is_from_start(graph, s)
}

fn fixed_storages(graph: &Graph) -> Vec<StorageId> {
    graph
        .storage_ids()
        .filter(|&s| is_fixed(graph, s))
        .collect()
}

fn beside_fixed<'a>(graph: &Graph, list: impl Iterator<Item = &'a StorageId>) -> Vec<StorageId> {
    list.copied().filter(|&s| !is_fixed(graph, s)).collect()
}

/// What a node reads and writes beside the fixed storages, and its bytes with scratch.
fn touched(graph: &Graph, id: NodeId) -> (Vec<StorageId>, Bytes) {
    let node = graph.node(id);
    let touched = beside_fixed(graph, node.reads.iter().chain(&node.writes));
    let bytes: Bytes = touched.iter().map(|&s| graph.storage(s).bytes).sum();
    (touched, bytes + node.workspace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::chain;

    #[test]
    fn the_floor_is_the_node_that_needs_most() {
        // Inputs 1, then b1 reads an activation and a gradient and writes a gradient: 1 + 3 × 10.
        let mut parts = chain(3).into_parts();
        let expected = floor(&chain(3));
        assert_eq!(expected.bytes, Bytes(31));
        assert_eq!(parts.nodes[expected.at.expect("a node").index()].name, "b1");
        assert_eq!(expected.coexisting.len(), 4);

        // With scratch, f1 needs more: 1 + 2 × 10 + 15.
        parts.nodes[2].workspace = Bytes(15);
        let graph = Graph::new(parts.clone()).expect("a graph");
        let found = floor(&graph);
        assert_eq!((found.bytes, found.at), (Bytes(36), Some(NodeId(2))));
        assert_eq!(found.workspace, Bytes(15));

        // Everything must be there at the end: 1 + 6 × 10.
        parts.outputs = (1..=6).map(StorageId).collect();
        let graph = Graph::new(parts.clone()).expect("a graph");
        let found = floor(&graph);
        assert_eq!((found.bytes, found.at), (Bytes(61), None));
        assert_eq!(found.moment, "the end of the step");
    }

    #[test]
    fn a_node_that_nothing_needs_does_not_count() {
        let mut parts = chain(3).into_parts();
        parts.outputs = vec![StorageId(1)];
        parts.targets = vec![NodeId(1)];
        // Only f0 must run: 1 + 10.
        let graph = Graph::new(parts).expect("a graph");
        assert_eq!(floor(&graph).bytes, Bytes(11));
    }
}
