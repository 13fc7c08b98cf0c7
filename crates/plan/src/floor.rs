//! The floor: a peak below which no schedule can go, in any order and with any recomputation.
//!
//! Method: when a node runs, what is persistent from the start, what it reads and what it writes
//! must be live together, and its scratch with them. Every schedule runs the needed nodes; so the
//! largest such sum over them is a lower bound, and so are the bytes at the start and those of the
//! outputs at the end.
//!
//! Limits: it does not see what must be kept *across* a node for later, so the smallest feasible
//! peak may be higher.

use rekindle_graph::{Bytes, Graph, NodeId, Phase, StorageId};

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
    let fixed = Fixed::new(graph);
    let start = graph.storage_ids().filter(|&s| is_from_start(graph, s));
    let start = fixed.beside(start);
    let mut best = (fixed.with(&start), None, "the start of the step", start);
    let end = fixed.beside(graph.outputs().iter().copied());
    if fixed.with(&end) > best.0 {
        best = (fixed.with(&end), None, "the end of the step", end);
    }
    for (id, needed) in graph.node_ids().zip(needed_nodes(graph)) {
        if needed && fixed.bytes_at(id) > best.0 {
            let touched = fixed.beside(touched(graph, id));
            best = (fixed.bytes_at(id), Some(id), "a node", touched);
        }
    }
    let (bytes, at, moment, mut coexisting) = best;
    coexisting.extend(graph.storage_ids().filter(|s| fixed.holds[s.index()]));
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
    Fixed::new(graph).bytes_at(id)
}

fn is_from_start(graph: &Graph, s: StorageId) -> bool {
    graph.node(graph.writer(s)).phase == Phase::Input
}

/// What a node reads and writes.
fn touched(graph: &Graph, id: NodeId) -> impl Iterator<Item = StorageId> {
    let node = graph.node(id);
    node.reads.iter().chain(&node.writes).copied()
}

/// The storages that are live from the start and never freed.
struct Fixed<'g> {
    graph: &'g Graph,
    /// Indexed by storage.
    holds: Vec<bool>,
    bytes: Bytes,
}

impl<'g> Fixed<'g> {
    fn new(graph: &'g Graph) -> Self {
        let persists = |s| graph.storage(s).role.is_persistent() && is_from_start(graph, s);
        let holds: Vec<bool> = graph.storage_ids().map(persists).collect();
        let fixed = graph.storage_ids().filter(|s| holds[s.index()]);
        Fixed { graph, bytes: fixed.map(|s| graph.storage(s).bytes).sum(), holds }
    }

    /// Those of a list that are not fixed.
    fn beside(&self, list: impl Iterator<Item = StorageId>) -> Vec<StorageId> {
        list.filter(|s| !self.holds[s.index()]).collect()
    }

    /// The bytes of the fixed storages and of some others.
    fn with(&self, others: &[StorageId]) -> Bytes {
        let others = others.iter().map(|&s| self.graph.storage(s).bytes);
        self.bytes + others.sum()
    }

    /// The bytes that are live while `id` runs at least.
    fn bytes_at(&self, id: NodeId) -> Bytes {
        let others = touched(self.graph, id).filter(|s| !self.holds[s.index()]);
        let others: Bytes = others.map(|s| self.graph.storage(s).bytes).sum();
        self.bytes + others + self.graph.node(id).workspace
    }
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
