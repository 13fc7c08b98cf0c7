//! Every model against the facts that its original publishes: parameter counts and names.

use rekindle_graph::{Bytes, Phase};
use rekindle_models::weights::stored;
use rekindle_models::{BertConfig, Model, ModelError, ModelOptions, build, build_bert, names};
use rekindle_program::Optimizer;

/// A step small enough to build fast; sizes do not change the parameters.
fn small() -> ModelOptions {
    ModelOptions {
        batch: 2,
        image_size: 64,
        sequence: 16,
        optimizer: Some(Optimizer::sgd(0.1)),
        ..ModelOptions::default()
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
    check_count("transformer", 49_672_496);
    check_count("bert-base", 109_514_298);
    check_count("bert-large", 335_174_458);
    check_count("gpt2", 124_439_808);
    check_count("gpt2-medium", 354_823_168);
    check_count("gpt2-large", 774_030_080);
    check_count("gpt2-xl", 1_557_611_200);
}

/// FNV-1a of a text: enough to tell two lists of names apart.
fn fingerprint(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The lines `name [shape]` of a model's `state_dict()`, sorted and joined by newlines, against
/// their number and fingerprint as PyTorch gives them.
#[track_caller]
fn check_names(name: &str, tensors: usize, expected: u64) {
    let model = model(name);
    let stored = stored(&model);
    let shape_of = |id| &stored.iter().find(|s| s.tensor == id).unwrap().shape;
    let first = stored.iter().map(|s| format!("{} {:?}", s.name, s.shape));
    let tied = model.tied.iter();
    let tied = tied.map(|(name, id)| format!("{name} {:?}", shape_of(*id)));
    let mut lines: Vec<String> = first.chain(tied).collect();
    lines.sort();
    assert_eq!(lines.len(), tensors, "{name}");
    assert_eq!(fingerprint(&lines.join("\n")), expected, "{name}: {lines:#?}");
}

/// Expected values: torchvision 0.29, transformers 5.22, and plain PyTorch modules for the MLP and
/// the transformer (at a sequence of 16).
#[test]
fn names_and_shapes_are_those_of_the_originals() {
    check_names("mlp", 18, 0x20dd_d6bf_c265_3f03);
    check_names("resnet18", 122, 0xdd65_621d_2d3b_5d36);
    check_names("resnet34", 218, 0xa705_3380_cbbe_6b88);
    check_names("resnet50", 320, 0x11c9_c0d7_2f03_d8fc);
    check_names("resnet101", 626, 0xe70d_5beb_430f_c569);
    check_names("resnet152", 932, 0x99a2_15cb_a183_5ea4);
    check_names("transformer", 76, 0xd08c_dc40_9b3f_5595);
    check_names("bert-tiny", 44, 0x26af_cc72_ce00_9430);
    check_names("bert-base", 204, 0xe6ab_1a6a_be99_3492);
    check_names("bert-large", 396, 0xc9fe_f551_59ad_4e88);
    check_names("gpt2", 149, 0x0fc1_4a1c_02f7_0be8);
    check_names("gpt2-medium", 293, 0x952e_fc28_f29c_b8ce);
    check_names("gpt2-large", 437, 0x47f9_7834_7962_12ee);
    check_names("gpt2-xl", 581, 0xd38a_4243_9d98_bdde);
}

/// Lowering checks the whole program: one writer each, written before read, updated last.
#[test]
fn every_model_is_a_valid_graph_with_and_without_an_optimizer() {
    for name in names() {
        for optimizer in [None, Some(Optimizer::sgd(0.1)), Some(Optimizer::adam(1e-3))] {
            let options = ModelOptions { optimizer, ..small() };
            let model = build(name, &options).unwrap();
            let graph = model.program.graph(|_| Bytes::ZERO);
            let updates = graph.nodes().iter().filter(|n| n.phase == Phase::Optimizer);
            let trained = if optimizer.is_some() { model.gradients.len() } else { 0 };
            assert_eq!(updates.count(), trained, "{name}");
        }
    }
}

#[test]
fn an_unknown_name_gets_a_suggestion() {
    let error = build("resnet-50", &small()).unwrap_err();
    assert!(matches!(&error, ModelError::UnknownModel { suggestion: "resnet50", .. }), "{error}");
    assert!(error.to_string().contains("did you mean `resnet50`"), "{error}");
}

#[test]
fn an_image_that_is_too_small_is_refused_with_its_sizes() {
    let options = ModelOptions { image_size: 0, ..small() };
    let error = build("resnet18", &options).unwrap_err().to_string();
    assert!(error.contains("`images` would have shape [2, 0, 0, 3]"), "{error}");
    let one_pixel = ModelOptions { image_size: 32, batch: 1, ..small() };
    let error = build("resnet18", &one_pixel).unwrap_err().to_string();
    assert!(error.contains("`layer4.0.bn1`") && error.contains("at least 2"), "{error}");
}

#[test]
fn a_sequence_beyond_the_positions_is_refused_with_both_numbers() {
    let options = ModelOptions { sequence: 513, ..small() };
    let error = build("bert-tiny", &options).unwrap_err().to_string();
    assert!(error.contains("512 positions, but the sequence length is 513"), "{error}");
}

#[test]
fn a_sequence_without_a_next_token_is_refused() {
    let options = ModelOptions { sequence: 1, ..small() };
    for name in ["gpt2-tiny", "transformer-tiny"] {
        let error = build(name, &options).unwrap_err().to_string();
        assert!(error.contains("at least 2"), "{error}");
    }
    assert!(build("bert-tiny", &options).is_ok());
}

#[test]
fn heads_that_do_not_divide_the_width_are_refused() {
    for heads in [0, 3] {
        let error = build_bert("odd", BertConfig::new(8, 1, heads), &small()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("attention.self.query"), "{text}");
    }
}

/// Between the node that makes a gradient and the update that ends it stand at most the bias's
/// gradient and update, and the gradient of the data. A tied table's gradient is the exception.
#[test]
fn gradients_die_as_soon_as_they_are_complete() {
    for name in names() {
        let model = model(name);
        let nodes = &model.program.nodes;
        let tied = |parameter| model.tied.iter().any(|&(_, id)| id == parameter);
        for &(parameter, gradient) in model.gradients.iter().filter(|&&(p, _)| !tied(p)) {
            let made = nodes.iter().position(|n| n.writes.contains(&gradient));
            let updated = nodes
                .iter()
                .position(|n| n.phase == Phase::Optimizer && n.reads[..2] == [parameter, gradient]);
            let between = updated.unwrap() - made.unwrap() - 1;
            let tensor = &model.program.tensor(parameter).name;
            assert!(between <= 3, "{name}: {between} nodes hold the gradient of {tensor}");
        }
    }
}
