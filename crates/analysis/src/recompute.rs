//! What it takes to make each activation again: the recomputation metrics of μ-TWO.
//!
//! In: a graph whose nodes have times, and its activations. Out: the [`Recomputation`] of any of
//! them.
//!
//! Method: from the activation's maker, the trace goes back through the real dependencies and ends
//! at what is there anyway (persistent storages) and at other activations, which count as kept. The
//! nodes met on the way, in their own order, are the sub-graph. Its time is the sum of theirs; its
//! memory is found by replaying it, each storage freed after its last use inside.
//!
//! An activation cannot be made again if its sub-graph holds a node that may run only once or never
//! runs, or reads a storage that has been overwritten before the activation's first backward use.

use rekindle_graph::{Bytes, Effect, Graph, Micros, NodeId, Phase, StorageId};

use crate::analysis::ActivationUses;

/// What it takes to make one activation again.
#[derive(Clone, Debug, PartialEq)]
pub struct Recomputation {
    /// What must be there (`recomp_srcs`): persistent storages and other activations, ascending.
    pub sources: Vec<StorageId>,
    /// What must run (`recomp_graph`), ascending and so in an order that can run.
    pub nodes: Vec<NodeId>,
    /// The sum of the nodes' times (`recomp_time`).
    pub time: Micros,
    /// Whether every one of the nodes may run again just before the first backward use.
    pub possible: bool,
}

impl Recomputation {
    /// `recompute_ratio`: bytes won per second of recomputation. Infinite where recomputing costs
    /// no time, and zero where there is nothing to win.
    pub fn ratio(&self, memory_size: Bytes) -> f64 {
        match (memory_size, self.time.seconds()) {
            (Bytes::ZERO, _) => 0.0,
            (_, 0.0) => f64::INFINITY,
            (Bytes(bytes), seconds) => bytes as f64 / seconds,
        }
    }

    /// `recomp_memory`: the most that running the nodes adds to the bytes of the sources, while
    /// they make `target`.
    pub fn memory(&self, graph: &Graph, target: StorageId) -> Bytes {
        peak_of(graph, &self.nodes, target)
    }
}

/// `inactive_time` of each of `activations`: from the end of its last forward use to the start of
/// its first backward use.
pub fn inactive_times(graph: &Graph, activations: &[ActivationUses]) -> Vec<Micros> {
    // `start[r]` is when rank `r` starts in the plain step.
    let mut start = Vec::with_capacity(graph.nodes().len() + 1);
    start.push(Micros::ZERO);
    for (rank, node) in graph.nodes().iter().enumerate() {
        let runs = node.phase != Phase::Input;
        start.push(start[rank] + if runs { node.time } else { Micros::ZERO });
    }
    let times = activations.iter();
    times.map(|a| start[a.first_backward.index()] - start[a.idle_after().index() + 1]).collect()
}

/// Traces back from activations to what makes them. Marks carry the number of the trace, so that a
/// new trace needs no clearing.
pub struct Tracer<'g> {
    graph: &'g Graph,
    is_activation: Vec<bool>,
    trace: u32,
    node_seen: Vec<u32>,
    storage_seen: Vec<u32>,
}

impl<'g> Tracer<'g> {
    /// A tracer that stops at `activations`, all of `graph`.
    pub fn new(graph: &'g Graph, activations: &[ActivationUses]) -> Tracer<'g> {
        let mut is_activation = vec![false; graph.storages().len()];
        for a in activations {
            is_activation[a.storage.index()] = true;
        }
        Tracer {
            graph,
            is_activation,
            trace: 0,
            node_seen: vec![0; graph.nodes().len()],
            storage_seen: vec![0; graph.storages().len()],
        }
    }

    /// What makes `activation` again if every other one is kept.
    pub fn recomputation(&mut self, activation: &ActivationUses) -> Recomputation {
        let (sources, nodes) = self.trace(activation.made);
        let can_run = |&n: &NodeId| may_run_again(self.graph, n, activation.first_backward);
        Recomputation {
            time: nodes.iter().map(|&n| self.graph.node(n).time).sum(),
            possible: nodes.iter().all(can_run),
            sources,
            nodes,
        }
    }

    fn trace(&mut self, maker: NodeId) -> (Vec<StorageId>, Vec<NodeId>) {
        self.trace += 1;
        let (mut sources, mut nodes) = (Vec::new(), Vec::new());
        let mut open = vec![maker];
        self.node_seen[maker.index()] = self.trace;
        while let Some(id) = open.pop() {
            nodes.push(id);
            for &read in &self.graph.node(id).reads {
                let seen = &mut self.storage_seen[read.index()];
                if std::mem::replace(seen, self.trace) == self.trace {
                    continue;
                }
                let persistent = self.graph.storage(read).role.is_persistent();
                let writer = self.graph.writer(read);
                if persistent || self.is_activation[read.index()] {
                    sources.push(read);
                } else if self.node_seen[writer.index()] != self.trace {
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

/// Whether a node may run a second time just before `before`.
fn may_run_again(graph: &Graph, id: NodeId, before: NodeId) -> bool {
    let node = graph.node(id);
    let mut updaters = node.reads.iter().filter_map(|&r| graph.updater(r));
    let intact = updaters.all(|updater| updater >= before);
    intact && node.effect != Effect::Once && node.phase != Phase::Input
}

/// The highest sum of bytes that `nodes` make, scratch included, when they run in order, each
/// storage goes after its last use among them, and `target` stays.
fn peak_of(graph: &Graph, nodes: &[NodeId], target: StorageId) -> Bytes {
    let mut last_use = std::collections::BTreeMap::new();
    for (at, &id) in nodes.iter().enumerate() {
        for &s in &graph.node(id).writes {
            last_use.insert(s, at);
        }
        for s in &graph.node(id).reads {
            if let Some(last) = last_use.get_mut(s) {
                *last = at;
            }
        }
    }
    last_use.insert(target, nodes.len());
    let (mut now, mut peak) = (Bytes::ZERO, Bytes::ZERO);
    for (at, &id) in nodes.iter().enumerate() {
        let node = graph.node(id);
        now += node.writes.iter().map(|&w| graph.storage(w).bytes).sum();
        peak = peak.max(now + node.workspace);
        let touched = node.reads.iter().chain(&node.writes);
        now -=
            touched.filter(|s| last_use.get(s) == Some(&at)).map(|&s| graph.storage(s).bytes).sum();
    }
    peak
}
