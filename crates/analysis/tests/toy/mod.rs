//! A perceptron of two layers with a plain optimizer, small enough to work out by hand.

use rekindle_graph::{
    Bytes, Effect, Graph, GraphParts, Node, NodeId, Phase, Role, Storage, StorageId,
};

/// Adds nodes one by one; every node writes at most one storage.
#[derive(Default)]
pub(crate) struct Toy {
    pub(crate) parts: GraphParts,
}

impl Toy {
    /// A storage that is there from the start.
    pub(crate) fn source(&mut self, name: &str, role: Role, bytes: u64) -> StorageId {
        self.node(name, Phase::Input, 0.0, &[], Some((role, bytes))).expect("it writes")
    }

    /// A node that makes `makes`, if anything.
    pub(crate) fn node(
        &mut self,
        name: &str,
        phase: Phase,
        time: f64,
        reads: &[StorageId],
        makes: Option<(Role, u64)>,
    ) -> Option<StorageId> {
        let made = makes.map(|(role, bytes)| {
            let bytes = Bytes(bytes);
            self.parts.storages.push(Storage { bytes, role });
            StorageId::new(self.parts.storages.len() - 1)
        });
        self.parts.nodes.push(Node {
            reads: reads.to_vec(),
            writes: made.into_iter().collect(),
            ..Node::new(name, phase, time, &[], &[])
        });
        made
    }

    /// The node that was added last.
    pub(crate) fn last(&mut self) -> &mut Node {
        self.parts.nodes.last_mut().expect("there is one")
    }

    pub(crate) fn graph(self) -> Graph {
        Graph::new(self.parts).expect("the toy is valid")
    }
}

/// The perceptron. The comments number the ranks.
///
/// `shift` stands between `fc1` and `relu`, so that `fc1`'s output is read by the forward pass only
/// and making `shift`'s output again takes two nodes.
pub(crate) fn perceptron() -> Graph {
    use Phase::{Backward, Forward, Optimizer};
    use Role::{Activation, Gradient, Input, OptimizerState, Other, Parameter};
    let mut toy = Toy::default();
    let x = toy.source("x", Input, 64); // 0
    let target = toy.source("target", Input, 8); // 1
    let w1 = toy.source("w1", Parameter, 16); // 2
    let b1 = toy.source("b1", Parameter, 4); // 3
    let w2 = toy.source("w2", Parameter, 12); // 4
    let m1 = toy.source("m1", OptimizerState, 16); // 5
    let m2 = toy.source("m2", OptimizerState, 12); // 6

    let mut forward = |name: &str, time, reads: &[StorageId], bytes| {
        let made = toy.node(name, Forward, time, reads, Some((Activation, bytes)));
        made.expect("it writes")
    };
    let z = forward("fc1", 10.0, &[x, w1], 100); // 7
    let h = forward("shift", 2.0, &[z, b1], 100); // 8
    let a = forward("relu", 3.0, &[h], 100); // 9
    let y = forward("fc2", 8.0, &[a, w2], 40); // 10
    let loss = forward("loss", 1.0, &[y, target], 4); // 11

    let mut backward = |name: &str, time, reads: &[StorageId], role, bytes| {
        let made = toy.node(name, Backward, time, reads, Some((role, bytes)));
        made.expect("it writes")
    };
    let dy = backward("loss_dx", 1.0, &[y, target], Gradient, 40); // 12
    let dw2 = backward("fc2_dw", 7.0, &[a, dy], Gradient, 12); // 13
    let da = backward("fc2_dx", 9.0, &[dy, w2], Gradient, 50); // 14
    let dh = backward("relu_dx", 3.0, &[h, da], Gradient, 50); // 15
    let dw1 = backward("fc1_dw", 11.0, &[x, dh], Gradient, 16); // 16
    toy.last().workspace = Bytes(5);
    let db1 = toy
        .node("shift_db", Backward, 1.0, &[dh], Some((Gradient, 4))) // 17
        .expect("it writes");

    let mut update = |name: &str, reads: &[StorageId], updates: &[StorageId]| {
        toy.node(name, Optimizer, 2.0, reads, None);
        toy.last().updates = updates.to_vec();
        toy.last().effect = Effect::Once;
        toy.parts.targets.push(NodeId::new(toy.parts.nodes.len() - 1));
    };
    update("momentum_w1", &[w1, dw1, m1], &[w1, m1]); // 18
    update("momentum_w2", &[w2, dw2, m2], &[w2, m2]); // 19
    update("sgd_b1", &[b1, db1], &[b1]); // 20
    toy.parts.storages[loss.index()].role = Other;
    toy.parts.outputs = vec![loss];
    toy.parts.name = "perceptron".into();
    toy.graph()
}
