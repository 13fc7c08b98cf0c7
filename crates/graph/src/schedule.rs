//! The steps of a schedule, and the frees that follow from an order of runs.

use crate::{Graph, NodeId, StorageId};

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
/// after the last read that comes before that write.
pub fn with_frees(graph: &Graph, order: &[NodeId]) -> Vec<Step> {
    let mut needed = vec![false; graph.storages().len()];
    for s in graph.outputs() {
        needed[s.index()] = true;
    }
    let mut frees: Vec<Vec<StorageId>> = vec![Vec::new(); order.len()];
    for (at, &id) in order.iter().enumerate().rev() {
        let node = graph.node(id);
        let freeable = |s: StorageId| !graph.storage(s).role.is_persistent();
        for &w in &node.writes {
            if !needed[w.index()] && freeable(w) {
                frees[at].push(w);
            }
            needed[w.index()] = false;
        }
        for &r in &node.reads {
            if !needed[r.index()] && freeable(r) {
                frees[at].push(r);
            }
            needed[r.index()] = true;
        }
    }
    let mut steps = Vec::with_capacity(2 * order.len());
    for (&id, frees) in order.iter().zip(frees) {
        steps.push(Step::Run(id));
        steps.extend(frees.into_iter().map(Step::Free));
    }
    steps
}
