//! When each storage is made and used, in an order of runs without recomputation.

use crate::{Graph, NodeId, Phase, StorageId};

/// Positions (in the order given) at which a storage is made and used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// Where its writer runs; `None` for what is there from the start.
    pub made: Option<usize>,
    /// The last read by a forward node.
    pub last_forward: Option<usize>,
    /// The first read by a backward node.
    pub first_backward: Option<usize>,
    /// The last read by a backward node.
    pub last_backward: Option<usize>,
    /// The last read by any node, the optimizer's included.
    pub last: Option<usize>,
}

/// The uses of every storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Liveness {
    uses: Vec<Uses>,
}

impl Liveness {
    /// The uses along `order`, in which every node stands at most once.
    pub fn new(graph: &Graph, order: &[NodeId]) -> Liveness {
        let mut uses = vec![Uses::default(); graph.storages().len()];
        for (at, &id) in order.iter().enumerate() {
            let node = graph.node(id);
            for w in &node.writes {
                uses[w.index()].made = Some(at);
            }
            for r in &node.reads {
                let uses = &mut uses[r.index()];
                uses.last = Some(at);
                match node.phase {
                    Phase::Forward => uses.last_forward = Some(at),
                    Phase::Backward => {
                        uses.first_backward.get_or_insert(at);
                        uses.last_backward = Some(at);
                    }
                    Phase::Input | Phase::Optimizer => {}
                }
            }
        }
        Liveness { uses }
    }

    /// The uses of one storage.
    pub fn of(&self, storage: StorageId) -> &Uses {
        &self.uses[storage.index()]
    }
}
