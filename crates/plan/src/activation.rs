//! Activations: what the forward pass makes and the backward pass reads, and what rebuilds each.
//!
//! In: a graph. Out: one [`Activation`] for each storage that a forward node writes, a backward
//! node reads, and that is not persistent; ascending by storage.
//!
//! The *sources* of an activation are the storages at which the trace back through the writers
//! ends: persistent ones, inputs, and other activations. The nodes met on the way are its
//! *recomputation sub-graph*. This is what μ-TWO calls `recomp_srcs` and `recomp_graph`.
//!
//! Limits: a sub-graph may hold a node that cannot run again ([`Activation::rebuildable`] is false
//! then).

use rekindle_graph::{Bytes, Effect, Graph, Liveness, Micros, NodeId, Phase, StorageId};

/// One activation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Activation {
    pub(crate) storage: StorageId,
    /// `memory_size`.
    pub(crate) bytes: Bytes,
    /// Position of its writer in the natural order.
    pub(crate) made: usize,
    /// Position of its last use before its first backward use; its making if there is none.
    pub(crate) last_forward: usize,
    /// Position of its first backward use.
    pub(crate) first_backward: usize,
    /// Position of its last use.
    pub(crate) last_backward: usize,
    /// `recomp_srcs`: ascending, activations only. What is persistent is there anyway.
    pub(crate) sources: Vec<StorageId>,
    /// `recomp_graph`: ascending, so in an order that can run.
    pub(crate) nodes: Vec<NodeId>,
    /// `recomp_time`: the sum of the times of `nodes`.
    pub(crate) recompute_time: Micros,
    /// Whether every node of the sub-graph may run again just before the first backward use.
    pub(crate) rebuildable: bool,
}

/// The activations of `graph` along its natural order.
pub(crate) fn activations(graph: &Graph) -> Vec<Activation> {
    let mut all = Vec::new();
    for_each_activation(graph, |activation| all.push(activation));
    all
}

/// Gives each activation to `take`, one after the other.
pub(crate) fn for_each_activation(graph: &Graph, mut take: impl FnMut(Activation)) {
    let order = graph.natural_order();
    let liveness = Liveness::new(graph, &order);
    let mut position = vec![usize::MAX; graph.nodes().len()];
    for (at, id) in order.iter().enumerate() {
        position[id.index()] = at;
    }
    let is_activation: Vec<bool> = graph
        .storage_ids()
        .map(|s| {
            let written_forward = graph.node(graph.writer(s)).phase == Phase::Forward;
            let kept_anyway = graph.storage(s).role.is_persistent();
            written_forward && !kept_anyway && liveness.of(s).first_backward.is_some()
        })
        .collect();
    let mut tracer = Tracer::new(graph, &is_activation);
    let of = |s: &StorageId| is_activation[s.index()];
    let storages = graph.storage_ids().filter(of);
    let readers = |s: StorageId| graph.readers(s).iter().map(|r| position[r.index()]);
    for storage in storages {
        let uses = liveness.of(storage);
        let made = uses.made.expect("a forward node makes it");
        let first_backward = uses.first_backward.expect("a backward node reads it");
        let (sources, nodes) = tracer.trace(storage);
        let may_run_again = |&id: &NodeId| {
            let node = graph.node(id);
            // A node cannot run again once one of its reads has been overwritten.
            let mut updaters = node.reads.iter().filter_map(|&r| graph.updater(r));
            let intact = updaters.all(|u| position[u.index()] >= first_backward);
            let is_input = node.phase == Phase::Input;
            node.effect != Effect::Once && intact && !is_input
        };
        take(Activation {
            storage,
            bytes: graph.storage(storage).bytes,
            made,
            last_forward: readers(storage)
                .rfind(|&at| at < first_backward)
                .unwrap_or(made),
            first_backward,
            last_backward: readers(storage).next_back().unwrap_or(first_backward),
            recompute_time: nodes.iter().map(|&n| graph.node(n).time).sum(),
            rebuildable: nodes.iter().all(may_run_again),
            sources,
            nodes,
        });
    }
}

/// Traces back from storages to their sources. Marks carry the number of the trace, so that a new
/// trace needs no clearing.
struct Tracer<'g> {
    graph: &'g Graph,
    is_activation: &'g [bool],
    trace: u32,
    node_seen: Vec<u32>,
    storage_seen: Vec<u32>,
}

impl<'g> Tracer<'g> {
    fn new(graph: &'g Graph, is_activation: &'g [bool]) -> Self {
        Tracer {
            graph,
            is_activation,
            trace: 0,
            node_seen: vec![0; graph.nodes().len()],
            storage_seen: vec![0; graph.storages().len()],
        }
    }

    fn trace(&mut self, target: StorageId) -> (Vec<StorageId>, Vec<NodeId>) {
        self.trace += 1;
        let (mut sources, mut nodes) = (Vec::new(), Vec::new());
        let mut open = vec![self.graph.writer(target)];
        self.node_seen[open[0].index()] = self.trace;
        while let Some(id) = open.pop() {
            nodes.push(id);
            for &read in &self.graph.node(id).reads {
                if std::mem::replace(&mut self.storage_seen[read.index()], self.trace) == self.trace
                {
                    continue;
                }
                let writer = self.graph.writer(read);
                let kept_anyway = self.graph.storage(read).role.is_persistent();
                if self.is_activation[read.index()] {
                    sources.push(read);
                } else if !kept_anyway && self.node_seen[writer.index()] != self.trace {
                    self.node_seen[writer.index()] = self.trace;
                    open.push(writer);
                }
            }
        }
        sources.sort();
        nodes.sort();
        (sources, nodes)
    }
}
