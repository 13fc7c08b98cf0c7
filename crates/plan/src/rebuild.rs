//! Orders with recomputation: the natural order, with dropped storages made again where needed.
//!
//! The builder walks forward: [`Rebuild::run`] runs a node, [`Rebuild::drop_storage`] forgets a
//! storage, and [`Rebuild::ensure`] makes a storage live again by running its writer, and whatever
//! that needs, first. Frees follow from the order of runs alone (`Schedule::of_order`), so
//! the builder never frees: what it has dropped is exactly what is written again before it is read.

use rekindle_graph::{Graph, NodeId, Phase, StorageId};

pub(crate) struct Rebuild<'g> {
    graph: &'g Graph,
    /// The runs so far.
    pub(crate) order: Vec<NodeId>,
    live: Vec<bool>,
}

impl<'g> Rebuild<'g> {
    pub(crate) fn new(graph: &'g Graph) -> Self {
        let from_start = |s| graph.node(graph.writer(s)).phase == Phase::Input;
        Rebuild {
            graph,
            order: Vec::with_capacity(2 * graph.nodes().len()),
            live: graph.storage_ids().map(from_start).collect(),
        }
    }

    /// Runs a node whose reads are live.
    pub(crate) fn run(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        debug_assert!(node.reads.iter().all(|r| self.live[r.index()]), "{id}");
        for w in &node.writes {
            self.live[w.index()] = true;
        }
        self.order.push(id);
    }

    pub(crate) fn is_live(&self, storage: StorageId) -> bool {
        self.live[storage.index()]
    }

    pub(crate) fn drop_storage(&mut self, storage: StorageId) {
        self.live[storage.index()] = false;
    }

    /// Makes `storage` live. Returns everything that was not live before and is now.
    pub(crate) fn ensure(&mut self, storage: StorageId) -> Vec<StorageId> {
        let mut made = Vec::new();
        // Depth first with an explicit stack: a node is looked at again once its reads are live.
        let mut open = match self.live[storage.index()] {
            true => Vec::new(),
            false => vec![self.graph.writer(storage)],
        };
        while let Some(&id) = open.last() {
            let node = self.graph.node(id);
            if node.writes.iter().all(|w| self.live[w.index()]) {
                open.pop();
                continue;
            }
            let before = open.len();
            let dead = node.reads.iter().filter(|r| !self.live[r.index()]);
            open.extend(dead.map(|&r| self.graph.writer(r)));
            if open.len() == before {
                open.pop();
                let dead = node.writes.iter().filter(|w| !self.live[w.index()]);
                made.extend(dead.copied());
                self.run(id);
            }
        }
        made
    }
}
