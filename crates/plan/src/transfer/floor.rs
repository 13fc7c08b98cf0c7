//! The floor with a store: a peak below which no schedule can go that moves storages.
//!
//! Method: when a node runs, what it reads and what it writes must be in memory, and its scratch
//! with them. Everything else can be in the store, but at the start, where what may not live there
//! between training steps is in memory, and at the end, where that and the outputs are.
//!
//! It is reached: a walk along the graph's own order that frees all that a node does not touch has
//! this peak, if both ways to the store exist and the store has room.

use rekindle_graph::{Bytes, Graph, NodeId, StorageId};

use crate::Floor;
use crate::draft::needed_nodes;

/// The floor of `graph` with a store.
pub fn floor_with_store(graph: &Graph) -> Floor {
    let mut is_source = vec![false; graph.storages().len()];
    for s in graph.sources() {
        is_source[s.index()] = true;
    }
    let role = |s: &StorageId| graph.storage(*s).role;
    let lives_outside = |s: &StorageId| is_source[s.index()] && role(s).may_be_stored();
    let start: Vec<StorageId> = graph.sources().filter(|s| !lives_outside(s)).collect();
    let mut is_output = vec![false; graph.storages().len()];
    for s in graph.outputs() {
        is_output[s.index()] = true;
    }
    let stays =
        |s: &StorageId| is_source[s.index()] && role(s).is_persistent() || is_output[s.index()];
    let end: Vec<StorageId> =
        graph.storage_ids().filter(|s| stays(s) && !lives_outside(s)).collect();
    let mut best = Need { at: None, moment: "the start of the step", coexisting: start };
    best = best.or(graph, Need { at: None, moment: "the end of the step", coexisting: end });
    let mut bytes = best.bytes(graph);
    for (id, needed) in graph.node_ids().zip(needed_nodes(graph)) {
        if needed && bytes_at(graph, id) > bytes {
            let node = graph.node(id);
            let coexisting = node.reads.iter().chain(&node.writes).copied().collect();
            best = Need { at: Some(id), moment: "a node", coexisting };
            bytes = best.bytes(graph);
        }
    }
    best.coexisting.sort_by_key(|&s| (std::cmp::Reverse(graph.storage(s).bytes), s));
    Floor {
        bytes,
        at: best.at,
        moment: best.moment,
        coexisting: best.coexisting,
        workspace: best.at.map_or(Bytes::ZERO, |id| graph.node(id).workspace),
    }
}

/// What must be in memory while `id` runs.
pub(crate) fn bytes_at(graph: &Graph, id: NodeId) -> Bytes {
    let node = graph.node(id);
    let touched = node.reads.iter().chain(&node.writes);
    let touched: Bytes = touched.map(|&s| graph.storage(s).bytes).sum();
    touched + node.workspace
}

/// What must be in memory at some moment.
struct Need {
    at: Option<NodeId>,
    moment: &'static str,
    coexisting: Vec<StorageId>,
}

impl Need {
    fn bytes(&self, graph: &Graph) -> Bytes {
        let scratch = self.at.map_or(Bytes::ZERO, |id| graph.node(id).workspace);
        let storages = self.coexisting.iter().map(|&s| graph.storage(s).bytes);
        scratch + storages.sum()
    }

    /// The larger one, this if they are equal.
    fn or(self, graph: &Graph, other: Need) -> Need {
        match other.bytes(graph) > self.bytes(graph) {
            true => other,
            false => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::chain;
    use rekindle_graph::Role;

    #[test]
    fn only_what_a_node_touches_must_be_there() {
        // b1 reads an activation and a gradient and writes a gradient; the input can be elsewhere.
        let found = floor_with_store(&chain(3));
        assert_eq!((found.bytes, found.coexisting.len()), (Bytes(30), 3));

        // An input of 35 bytes is in memory at the start; a parameter need not be.
        let mut parts = chain(3).into_parts();
        parts.storages[0].bytes = Bytes(35);
        let graph = Graph::new(parts.clone()).expect("a graph");
        let found = floor_with_store(&graph);
        // It is there at the end too, beside the output of 10.
        assert_eq!((found.bytes, found.moment), (Bytes(45), "the end of the step"));
        parts.outputs = (1..=6).map(StorageId).collect();
        let graph = Graph::new(parts.clone()).expect("a graph");
        assert_eq!(floor_with_store(&graph).bytes, Bytes(35 + 60));
        parts.storages[0].role = Role::Parameter;
        let graph = Graph::new(parts).expect("a graph");
        assert_eq!(floor_with_store(&graph).bytes, Bytes(60));
    }
}
