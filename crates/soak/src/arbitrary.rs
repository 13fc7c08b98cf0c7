//! Random graphs of no particular shape: what no model has, but the format allows.

use rekindle_graph::{GraphParts, NodeId, Phase, Role, StorageId};

use crate::parts::Assembly;
use crate::random::Random;

pub(crate) fn parts(random: &mut Random, size: usize) -> GraphParts {
    let count = 3 + random.below(2 * size.max(1));
    let mut graph = Assembly::new(format!("arbitrary{count}"));
    let roles = [Role::Parameter, Role::Input, Role::Constant, Role::Other];
    for _ in 0..1 + random.below(4) {
        let role = random.pick(&roles);
        graph.input(random, role);
    }
    // Storages that a later node may read: those that have been overwritten are gone.
    let mut readable: Vec<StorageId> =
        (0..graph.parts.storages.len()).map(StorageId::new).collect();
    for i in 0..count {
        let phase = phase(random, i, count);
        let mut reads: Vec<StorageId> = Vec::new();
        for _ in 0..random.below(4) {
            // Mostly what was made lately, so that depth grows.
            let recent = readable.len().saturating_sub(6);
            let from = if random.chance(75) { &readable[recent..] } else { &readable[..] };
            if !from.is_empty() {
                reads.push(random.pick(from));
            }
        }
        let roles = [Role::Activation, Role::Gradient, Role::Other, Role::Other];
        let outputs = random.pick(&[0, 1, 1, 1, 1, 2, 2, 3]);
        let writes: Vec<StorageId> = (0..outputs)
            .map(|_| {
                // Now and then something persistent is made on the way.
                let role = match random.chance(4) {
                    true => Role::OptimizerState,
                    false => random.pick(&roles),
                };
                graph.storage(random, role)
            })
            .collect();
        let id = graph.run(random, format!("n{i}"), phase, reads.clone(), writes.clone());
        if random.chance(10) {
            let mut updates = Vec::new();
            if !reads.is_empty() && random.chance(60) {
                updates.push(random.pick(&reads));
            }
            readable.retain(|s| !updates.contains(s));
            graph.once(id, updates);
        }
        readable.extend(writes);
        if random.chance(10) {
            graph.parts.targets.push(id);
        }
    }
    ends(&mut graph, random);
    graph.parts
}

/// Forward, then backward, then optimizer; now and then out of turn.
fn phase(random: &mut Random, i: usize, count: usize) -> Phase {
    let phases = [Phase::Forward, Phase::Backward, Phase::Optimizer];
    match random.chance(5) {
        true => random.pick(&phases),
        false if 2 * i < count => Phase::Forward,
        false if 10 * i < 9 * count => Phase::Backward,
        false => Phase::Optimizer,
    }
}

/// At least one output or target, so that something must run.
fn ends(graph: &mut Assembly, random: &mut Random) {
    for s in 0..graph.parts.storages.len() {
        if random.chance(8) {
            graph.parts.outputs.push(StorageId::new(s));
        }
    }
    let last = NodeId::new(graph.parts.nodes.len() - 1);
    graph.parts.targets.push(last);
}
