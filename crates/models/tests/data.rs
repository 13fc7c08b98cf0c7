//! Synthetic batches: deterministic, in range, and consistent between inputs.

use rekindle_models::{Input, InputKind, Model, ModelOptions, Values, build, data, names};
use rekindle_program::op::CrossEntropy;

fn model(name: &str) -> Model {
    let options =
        ModelOptions { batch: 4, image_size: 64, sequence: 64, ..ModelOptions::default() };
    build(name, &options).unwrap()
}

fn ids(model: &Model, seed: u64, step: u64, which: usize) -> Vec<i64> {
    match data::batch(model, seed, step).swap_remove(which) {
        (_, Values::I64(ids)) => ids,
        (id, _) => panic!("{id} does not hold ids"),
    }
}

#[test]
fn every_model_gets_values_for_each_input_within_range() {
    for name in names() {
        let model = model(name);
        let batch = data::batch(&model, 1, 2);
        assert_eq!(batch.len(), model.inputs.len());
        for ((id, values), Input { tensor, kind }) in batch.iter().zip(&model.inputs) {
            assert_eq!(id, tensor);
            assert_eq!(values.len(), model.program.tensor(*id).len(), "{name}");
            assert_eq!(values.dtype(), model.program.tensor(*id).dtype, "{name}");
            let limit = match *kind {
                InputKind::Features { .. } | InputKind::Targets => continue,
                InputKind::Classes { classes: limit }
                | InputKind::Tokens { vocab: limit }
                | InputKind::MaskedTokens { vocab: limit }
                | InputKind::MaskedLabels { vocab: limit }
                | InputKind::NextLabels { vocab: limit } => limit as i64,
            };
            let Values::I64(ids) = values else { panic!("{name}: ids are i64") };
            let allowed = |id: &i64| (0..limit).contains(id) || *id == CrossEntropy::IGNORE;
            assert!(ids.iter().all(allowed), "{name}: {kind:?}");
        }
    }
}

#[test]
fn a_batch_depends_on_seed_and_step_alone() {
    let model = model("resnet18");
    assert!(data::batch(&model, 3, 4) == data::batch(&model, 3, 4));
    assert!(data::batch(&model, 3, 4) != data::batch(&model, 3, 5));
    assert!(data::batch(&model, 3, 4) != data::batch(&model, 4, 4));
}

#[test]
fn next_labels_are_the_tokens_moved_by_one() {
    let model = model("gpt2");
    let (tokens, labels) = (ids(&model, 1, 0, 0), ids(&model, 1, 0, 1));
    for (tokens, labels) in tokens.chunks(64).zip(labels.chunks(64)) {
        assert_eq!(tokens[1..], labels[..63]);
        assert_eq!(labels[63], CrossEntropy::IGNORE);
    }
}

#[test]
fn masked_labels_are_the_tokens_behind_the_mask() {
    let model = model("bert-tiny");
    let mut chosen = 0;
    let mut hidden = 0;
    for step in 0..20 {
        let (tokens, labels) = (ids(&model, 1, step, 0), ids(&model, 1, step, 1));
        assert_ne!(labels[0], CrossEntropy::IGNORE, "every batch has a loss");
        assert!(!tokens.contains(&0), "padding does not occur");
        let masked = labels.iter().zip(&tokens).filter(|(l, _)| **l != CrossEntropy::IGNORE);
        chosen += masked.clone().count();
        hidden += masked.filter(|(_, token)| **token == 103).count();
    }
    // 20 × 256 draws: four standard deviations around 15 %, and around 80 % of these.
    let share = chosen as f64 / (20.0 * 256.0);
    assert!((0.13..0.17).contains(&share), "{share}");
    let share = hidden as f64 / chosen as f64;
    assert!((0.74..0.86).contains(&share), "{share}");
}

/// The same class looks alike at different steps, so there is something to learn.
#[test]
fn features_carry_their_class() {
    let model = model("mlp");
    let sample = |step| {
        let mut batch = data::batch(&model, 9, step);
        let (_, Values::I64(classes)) = batch.remove(1) else { panic!("classes are ids") };
        let (_, Values::F32(features)) = batch.remove(0) else { panic!("features are numbers") };
        (classes[0], features[..1024].to_vec())
    };
    let (class, features) = sample(0);
    let dot = |other: &[f32]| features.iter().zip(other).map(|(a, b)| a * b).sum::<f32>() / 1024.0;
    for step in 1..40 {
        let (other, values) = sample(step);
        let alike = dot(&values);
        // The squared share of the pattern is 0.25; noise has a deviation of about 1/32.
        let expected = if other == class { 0.25 } else { 0.0 };
        assert!((alike - expected).abs() < 0.15, "{class} {other}: {alike}");
    }
}
