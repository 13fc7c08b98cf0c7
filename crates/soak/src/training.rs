//! Random training steps: a forward pass, the backward pass that mirrors it, optimizer nodes.

use rekindle_graph::{GraphParts, NodeId, Phase, Role, StorageId};

use crate::parts::Assembly;
use crate::random::Random;

/// One forward node, as the backward pass needs it.
struct Layer {
    reads: Vec<StorageId>,
    weight: StorageId,
    output: StorageId,
    /// A second output (a mask, indices) for the backward node alone.
    extra: Option<StorageId>,
}

pub(crate) fn parts(random: &mut Random, size: usize) -> GraphParts {
    let depth = 2 + random.below(size.max(1));
    let mut step = Assembly::new(format!("training{depth}"));
    let data = step.input(random, Role::Input);
    let weights: Vec<StorageId> = (0..depth).map(|_| step.input(random, Role::Parameter)).collect();
    let layers = forward(&mut step, random, data, &weights);
    let loss = step.storage(random, Role::Other);
    let last = layers[depth - 1].output;
    step.run(random, "loss".into(), Phase::Forward, vec![last], vec![loss]);
    step.parts.outputs.push(loss);
    backward(&mut step, random, &layers, loss);
    step.parts
}

fn forward(
    step: &mut Assembly,
    random: &mut Random,
    data: StorageId,
    weights: &[StorageId],
) -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    let mut available = vec![data];
    for (i, &weight) in weights.iter().enumerate() {
        let mut reads = vec![available[available.len() - 1]];
        if random.chance(30) {
            reads.push(random.pick(&available));
        }
        reads.dedup();
        let output = step.storage(random, Role::Activation);
        let has_extra = random.chance(25);
        let extra = has_extra.then(|| step.storage(random, Role::Activation));
        let all_reads = reads.iter().copied().chain([weight]).collect();
        let writes = [output].into_iter().chain(extra).collect();
        let id = step.run(random, format!("f{i}"), Phase::Forward, all_reads, writes);
        if random.chance(5) {
            step.once(id, Vec::new()); // A collective.
        }
        if random.chance(15) {
            track(step, random, i, output);
        }
        available.push(output);
        layers.push(Layer { reads, weight, output, extra });
    }
    layers
}

/// A node that moves a buffer, as batch-norm's running statistics do.
fn track(step: &mut Assembly, random: &mut Random, i: usize, output: StorageId) {
    let buffer = step.input(random, Role::Parameter);
    let reads = vec![output, buffer];
    let id = step.run(random, format!("track{i}"), Phase::Forward, reads, Vec::new());
    step.once(id, vec![buffer]);
    if random.chance(70) {
        step.parts.targets.push(id);
    }
}

/// The backward node of each layer, last first, and the optimizer node of its weight.
fn backward(step: &mut Assembly, random: &mut Random, layers: &[Layer], loss: StorageId) {
    // Contributions to the gradient of each storage; the loss starts with itself.
    let mut gradients: Vec<Vec<StorageId>> = vec![Vec::new(); step.parts.storages.len()];
    gradients[layers[layers.len() - 1].output.index()].push(loss);
    let optimizer_at_the_end = random.chance(50);
    let mut late = Vec::new();
    for (i, layer) in layers.iter().enumerate().rev() {
        let mut reads = gradients[layer.output.index()].clone();
        reads.extend(layer.extra);
        reads.push(layer.weight);
        if random.chance(70) {
            reads.extend(&layer.reads);
        }
        if random.chance(50) {
            reads.push(layer.output);
        }
        let weight_gradient = step.storage(random, Role::Gradient);
        let mut writes = vec![weight_gradient];
        for &read in &layer.reads {
            let gradient = step.storage(random, Role::Gradient);
            gradients[read.index()].push(gradient);
            writes.push(gradient);
        }
        step.run(random, format!("b{i}"), Phase::Backward, reads, writes);
        match random.below(3) {
            0 => step.parts.outputs.push(weight_gradient),
            _ if optimizer_at_the_end => late.push((layer.weight, weight_gradient)),
            _ => _ = optimize(step, random, layer.weight, weight_gradient),
        }
    }
    for (weight, gradient) in late {
        optimize(step, random, weight, gradient);
    }
}

fn optimize(
    step: &mut Assembly,
    random: &mut Random,
    weight: StorageId,
    gradient: StorageId,
) -> NodeId {
    let name = format!("sgd{}", weight.0);
    let (mut reads, mut updates) = (vec![gradient, weight], vec![weight]);
    if random.chance(30) {
        let state = step.input(random, Role::OptimizerState);
        reads.push(state);
        updates.push(state);
    }
    let id = step.run(random, name, Phase::Optimizer, reads, Vec::new());
    step.once(id, updates);
    step.parts.targets.push(id);
    id
}
