//! Every model against the facts that its original publishes: parameter counts and names.

use remat_graph::{Bytes, Phase};
use remat_models::{Model, ModelError, ModelOptions, build, names};
use remat_program::Optimizer;

/// A step small enough to build fast; sizes do not change the parameters.
fn small() -> ModelOptions {
    ModelOptions {
        batch: 2,
        image_size: 64,
        sequence: 16,
        optimizer: Some(Optimizer::sgd(0.1)),
        dropout: None,
    }
}

fn model(name: &str) -> Model {
    build(name, &small()).unwrap()
}

#[track_caller]
fn check_count(name: &str, parameters: usize) {
    assert_eq!(model(name).parameter_count(), parameters, "{name}");
}

#[test]
fn parameter_counts_are_those_of_the_originals() {
    check_count("mlp", 8 * (1024 * 1024 + 1024) + 10 * 1024 + 10);
    check_count("resnet18", 11_689_512);
    check_count("resnet34", 21_797_672);
    check_count("resnet50", 25_557_032);
    check_count("resnet101", 44_549_160);
    check_count("resnet152", 60_192_808);
    check_count("bert-base", 109_514_298);
    check_count("bert-large", 335_174_458);
    check_count("gpt2", 124_439_808);
}

/// Lowering checks the whole program: one writer each, written before read, updated last.
#[test]
fn every_model_is_a_valid_graph_with_and_without_an_optimizer() {
    for name in names() {
        for optimizer in [None, Some(Optimizer::sgd(0.1)), Some(Optimizer::adam(1e-3))] {
            let options = ModelOptions {
                optimizer,
                ..small()
            };
            let model = build(name, &options).unwrap();
            let graph = model.program.graph(|_| Bytes::ZERO);
            let updates = graph.nodes().iter().filter(|n| n.phase == Phase::Optimizer);
            let trained = if optimizer.is_some() {
                model.gradients.len()
            } else {
                0
            };
            assert_eq!(updates.count(), trained, "{name}");
        }
    }
}

#[test]
fn an_unknown_name_gets_a_suggestion() {
    let error = build("resnet-50", &small()).unwrap_err();
    assert!(
        matches!(
            &error,
            ModelError::UnknownModel {
                suggestion: "resnet50",
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("did you mean `resnet50`"),
        "{error}"
    );
}

#[test]
fn an_image_that_is_too_small_is_refused_with_its_sizes() {
    let options = ModelOptions {
        image_size: 0,
        ..small()
    };
    let error = build("resnet18", &options).unwrap_err().to_string();
    assert!(
        error.contains("`images` would have shape [2, 0, 0, 3]"),
        "{error}"
    );
    let one_pixel = ModelOptions {
        image_size: 32,
        batch: 1,
        ..small()
    };
    let error = build("resnet18", &one_pixel).unwrap_err().to_string();
    assert!(
        error.contains("`layer4.0.bn1`") && error.contains("at least 2"),
        "{error}"
    );
}
