//! Small graphs for the tests of this crate.

use crate::search::random::Random;
use rekindle_graph::{Bytes, Graph, GraphParts, Node, NodeId, Phase, Role, Storage, StorageId};

/// A node that takes 1 µs.
pub(crate) fn node(name: &str, phase: Phase, reads: &[u32], writes: &[u32]) -> Node {
    Node::new(name, phase, 1.0, reads, writes)
}

/// A chain of `n` forward nodes `f0…`, and backward nodes `b(n-1)…b0` in which `b_i` reads what
/// `f_i` made and the gradient before it. Every activation and gradient has 10 bytes, the input 1.
pub(crate) fn chain(n: u32) -> Graph {
    let storage = |bytes, role| Storage { bytes: Bytes(bytes), role };
    let mut storages = vec![storage(1, Role::Input)];
    storages.extend(vec![storage(10, Role::Activation); n as usize]);
    storages.extend(vec![storage(10, Role::Gradient); n as usize]);
    let mut nodes = vec![node("x", Phase::Input, &[], &[0])];
    for i in 0..n {
        nodes.push(node(&format!("f{i}"), Phase::Forward, &[i], &[i + 1]));
    }
    for (k, i) in (0..n).rev().enumerate() {
        let gradient = n + 1 + k as u32;
        let reads = match k {
            0 => vec![i + 1],
            _ => vec![i + 1, gradient - 1],
        };
        nodes.push(node(&format!("b{i}"), Phase::Backward, &reads, &[gradient]));
    }
    Graph::new(GraphParts {
        name: format!("chain{n}"),
        origin: "by hand".into(),
        storages,
        outputs: vec![StorageId(2 * n)],
        targets: vec![NodeId(2 * n)],
        nodes,
    })
    .expect("a chain is a graph")
}

/// Parts of a graph with a parameter `x` of 1 byte, which is storage 0; the other storages have
/// `bytes`, and the last of them is the output.
pub(crate) fn parts(bytes: &[u64], nodes: Vec<Node>) -> GraphParts {
    let storage = |bytes, role| Storage { bytes: Bytes(bytes), role };
    let mut storages = vec![storage(1, Role::Parameter)];
    storages.extend(bytes.iter().map(|&bytes| storage(bytes, Role::Activation)));
    let mut all = vec![node("x", Phase::Input, &[], &[0])];
    all.extend(nodes);
    GraphParts {
        name: "parts".into(),
        origin: "by hand".into(),
        outputs: vec![StorageId(storages.len() as u32 - 1)],
        targets: Vec::new(),
        storages,
        nodes: all,
    }
}

/// A random graph of `n` nodes that each read one to three of the last storages; all is needed.
pub(crate) fn random(n: u32, seed: u64) -> Graph {
    let mut dice = Random::new(seed);
    let mut bytes = Vec::new();
    let mut nodes: Vec<Node> = Vec::new();
    for i in 0..n {
        let mut reads: Vec<u32> = (0..1 + dice.below(3))
            .map(|_| i - dice.below((i as usize + 1).min(6)) as u32)
            .collect();
        reads.sort_unstable();
        reads.dedup();
        bytes.push(1 + dice.below(9) as u64);
        let time = 1.0 + dice.below(9) as f64;
        nodes.push(Node::new(&format!("n{i}"), Phase::Forward, time, &reads, &[i + 1]));
    }
    let mut parts = parts(&bytes, nodes);
    let is_read = |s: &u32| parts.nodes.iter().any(|n| n.reads.contains(&StorageId(*s)));
    parts.outputs = (1..=n).filter(|s| !is_read(s)).map(StorageId).collect();
    Graph::new(parts).expect("a graph")
}

/// The names of the nodes of a sequence, without the search's own first one.
pub(crate) fn names(graph: &Graph, order: &[u32]) -> String {
    let nodes = order.iter().filter_map(|&v| graph.nodes().get(v as usize));
    let names: Vec<&str> = nodes.map(|node| node.name.as_str()).collect();
    names.join(" ")
}
