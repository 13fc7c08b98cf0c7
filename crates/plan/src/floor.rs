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
    let from_start = |s: StorageId| graph.node(graph.writer(s)).phase == Phase::Input;
    let always = |s: &StorageId| graph.storage(*s).role.is_persistent() && from_start(*s);
    let fixed: Vec<StorageId> = graph.storage_ids().filter(always).collect();
    let sum = |list: &[StorageId]| list.iter().map(|&s| graph.storage(s).bytes).sum::<Bytes>();
    let fixed_bytes = sum(&fixed);
    let beside_fixed = |list: &mut dyn Iterator<Item = StorageId>| -> Vec<StorageId> {
        list.filter(|s| !always(s)).collect()
    };

    let mut start = graph.storage_ids().filter(|&s| from_start(s));
    let start = beside_fixed(&mut start);
    let mut best = (
        fixed_bytes + sum(&start),
        None,
        "the start of the step",
        start,
    );
    let end = beside_fixed(&mut graph.outputs().iter().copied());
    if fixed_bytes + sum(&end) > best.0 {
        best = (fixed_bytes + sum(&end), None, "the end of the step", end);
    }
    for (id, needed) in graph.node_ids().zip(needed_nodes(graph)) {
        let node = graph.node(id);
        let touched = beside_fixed(&mut node.reads.iter().chain(&node.writes).copied());
        let bytes = fixed_bytes + sum(&touched) + node.workspace;
        if needed && bytes > best.0 {
            best = (bytes, Some(id), "a node", touched);
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
