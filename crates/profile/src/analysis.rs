//! The static analysis of a step: what each part is for, and when each activation is used.
//!
//! In: a graph. Out: an [`Analysis`]. Nothing is run and no time is read.
//!
//! The *rank* of a node is its position in the graph's own order, inputs included, so rank `r` is
//! node `r` in every file and every later stage.

use rekindle_graph::{Bytes, Graph, Liveness, NodeId, Phase, StorageId};

use crate::kind::{Kind, node_kind, storage_kinds};

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

/// One activation and when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activation {
    /// Its storage.
    pub storage: StorageId,
    /// `memory_size`.
    pub bytes: Bytes,
    /// The node that makes it.
    pub made: NodeId,
    /// The last forward node that reads it, if one does.
    pub last_forward: Option<NodeId>,
    /// The first backward node that reads it.
    pub first_backward: NodeId,
    /// The last backward node that reads it.
    pub last_backward: NodeId,
}

impl Activation {
    /// The forward node after which it lies idle: its last reader, or its maker.
    pub fn idle_after(&self) -> NodeId {
        self.last_forward.unwrap_or(self.made)
    }
}

/// What is known about a step without running it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Analysis {
    /// Where the passes begin and end.
    pub boundaries: Boundaries,
    /// Indexed by storage.
    pub storage_kinds: Vec<Kind>,
    /// Indexed by node.
    pub node_kinds: Vec<Kind>,
    /// Ascending by maker, then by storage.
    pub activations: Vec<Activation>,
}

impl Analysis {
    /// Analyses a graph.
    pub fn new(graph: &Graph) -> Analysis {
        let storage_kinds = storage_kinds(graph);
        let nodes = graph.nodes().iter();
        let node_kinds = nodes.map(|n| node_kind(n, &storage_kinds)).collect();
        Analysis {
            boundaries: boundaries(graph),
            activations: activations(graph, &storage_kinds),
            storage_kinds,
            node_kinds,
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

fn activations(graph: &Graph, kinds: &[Kind]) -> Vec<Activation> {
    // Along all nodes, inputs included, a position is a rank.
    let order: Vec<NodeId> = graph.node_ids().collect();
    let liveness = Liveness::new(graph, &order);
    let is_activation = |s: &StorageId| kinds[s.index()] == Kind::Activation;
    let mut activations: Vec<Activation> = graph
        .storage_ids()
        .filter(is_activation)
        .map(|storage| {
            let uses = liveness.of(storage);
            let read = "an activation is read by the backward pass";
            Activation {
                storage,
                bytes: graph.storage(storage).bytes,
                made: graph.writer(storage),
                last_forward: uses.last_forward.map(NodeId::new),
                first_backward: NodeId::new(uses.first_backward.expect(read)),
                last_backward: NodeId::new(uses.last_backward.expect(read)),
            }
        })
        .collect();
    activations.sort_by_key(|a| (a.made, a.storage));
    activations
}
