//! The static analysis of a step: what each part is for, and when each activation is used.
//!
//! In: a graph. Out: an [`Analysis`]. Nothing is run and no time is read.
//!
//! The *rank* of a node is its position in the graph's own order, inputs included, so rank `r` is
//! node `r` in every file and every later stage.

use rekindle_graph::{Bytes, Graph, NodeId, Phase, StorageId};

use crate::kind::{Kind, is_activation, node_kind, storage_kinds};

/// Where the passes begin and end, as ranks. `None` where a step has no such node.
///
/// The optimizer's nodes may stand between those of the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Boundaries {
    /// The last forward node.
    pub last_forward: Option<NodeId>,
    /// The first backward node.
    pub first_backward: Option<NodeId>,
    /// The last backward node.
    pub last_backward: Option<NodeId>,
    /// The first optimizer node.
    pub first_optimizer: Option<NodeId>,
}

/// When one activation is made and used in the plain step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivationUses {
    /// The storage that holds the activation.
    pub storage: StorageId,
    /// How large it is (`memory_size`).
    pub bytes: Bytes,
    /// The node that makes it.
    pub made: NodeId,
    /// The last node that reads it before its first backward use, if one does.
    pub last_forward: Option<NodeId>,
    /// The first backward node that reads it.
    pub first_backward: NodeId,
    /// The last backward node that reads it.
    pub last_backward: NodeId,
    /// The last node of any phase that reads it.
    pub last: NodeId,
}

impl ActivationUses {
    /// The node after which it lies idle until the backward pass: its last reader before, or its
    /// maker.
    pub fn idle_after(&self) -> NodeId {
        self.last_forward.unwrap_or(self.made)
    }
}

/// What is known about a step without running it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// Where the passes begin and end.
    pub boundaries: Boundaries,
    /// What each storage is for; indexed by storage.
    pub storage_kinds: Vec<Kind>,
    /// What each node makes; indexed by node.
    pub node_kinds: Vec<Kind>,
    /// The activations in the order in which they are made, and where a node makes several, by
    /// storage.
    pub activations: Vec<ActivationUses>,
}

impl Analysis {
    /// Analyses a graph.
    pub fn new(graph: &Graph) -> Analysis {
        let storage_kinds = storage_kinds(graph);
        let nodes = graph.nodes().iter();
        let mut activations = activations(graph);
        activations.sort_by_key(|a| (a.made, a.storage));
        Analysis {
            boundaries: boundaries(graph),
            node_kinds: nodes.map(|n| node_kind(n, &storage_kinds)).collect(),
            storage_kinds,
            activations,
        }
    }
}

fn boundaries(graph: &Graph) -> Boundaries {
    let is = |phase| move |&n: &NodeId| graph.node(n).phase == phase;
    Boundaries {
        last_forward: graph.node_ids().rfind(is(Phase::Forward)),
        first_backward: graph.node_ids().find(is(Phase::Backward)),
        last_backward: graph.node_ids().rfind(is(Phase::Backward)),
        first_optimizer: graph.node_ids().find(is(Phase::Optimizer)),
    }
}

/// The activations of a graph, ascending by storage: what the forward pass makes, the backward pass
/// reads, and nothing keeps anyway.
pub fn activations(graph: &Graph) -> Vec<ActivationUses> {
    let storages = graph.storage_ids().filter(|&s| is_activation(graph, s));
    storages.map(|s| uses(graph, s)).collect()
}

fn uses(graph: &Graph, storage: StorageId) -> ActivationUses {
    // The readers ascend, and the graph's own order is the plain step's.
    let readers = graph.readers(storage);
    let mut backward = readers.iter().filter(|&&r| graph.node(r).phase == Phase::Backward);
    let read = "an activation is read by the backward pass";
    let first_backward = *backward.next().expect(read);
    ActivationUses {
        storage,
        bytes: graph.storage(storage).bytes,
        made: graph.writer(storage),
        last_forward: readers.iter().rfind(|&&r| r < first_backward).copied(),
        first_backward,
        last_backward: backward.next_back().copied().unwrap_or(first_backward),
        last: *readers.last().expect(read),
    }
}
