//! Puts a random graph together, storage by storage and node by node.

use rekindle_graph::{Bytes, Effect, GraphParts, Node, NodeId, Phase, Role, Storage, StorageId};

use crate::random::Random;

/// The parts so far.
pub(crate) struct Assembly {
    pub(crate) parts: GraphParts,
}

impl Assembly {
    pub(crate) fn new(name: String) -> Assembly {
        Assembly { parts: GraphParts { name, origin: "random".into(), ..GraphParts::default() } }
    }

    /// A storage of up to 100 bytes; some are empty.
    pub(crate) fn storage(&mut self, random: &mut Random, role: Role) -> StorageId {
        let bytes = match random.chance(5) {
            true => 0,
            false => 1 + random.below(100) as u64,
        };
        self.parts.storages.push(Storage { bytes: Bytes(bytes), role });
        StorageId::new(self.parts.storages.len() - 1)
    }

    /// A storage that is there from the start.
    pub(crate) fn input(&mut self, random: &mut Random, role: Role) -> StorageId {
        let storage = self.storage(random, role);
        let name = format!("in{}", storage.0);
        self.parts.nodes.push(Node { writes: vec![storage], ..node(name, Phase::Input, 0) });
        storage
    }

    /// A node that reads and writes these; some have scratch, some take no time, some draw numbers.
    pub(crate) fn run(
        &mut self,
        random: &mut Random,
        name: String,
        phase: Phase,
        reads: Vec<StorageId>,
        writes: Vec<StorageId>,
    ) -> NodeId {
        let time = match random.chance(5) {
            true => 0,
            false => 1 + random.below(50),
        };
        let workspace = match random.chance(20) {
            true => random.below(60) as u64,
            false => 0,
        };
        self.parts.nodes.push(Node {
            reads,
            writes,
            workspace: Bytes(workspace),
            effect: match random.chance(10) {
                true => Effect::Random,
                false => Effect::Pure,
            },
            ..node(name, phase, time)
        });
        NodeId::new(self.parts.nodes.len() - 1)
    }

    /// Makes a node one that runs once and overwrites `updates`, which it reads.
    pub(crate) fn once(&mut self, id: NodeId, updates: Vec<StorageId>) {
        let node = &mut self.parts.nodes[id.index()];
        node.effect = Effect::Once;
        node.updates = updates;
    }
}

fn node(name: String, phase: Phase, time: usize) -> Node {
    Node { op: "random".into(), ..Node::new(&name, phase, time as f64, &[], &[]) }
}
