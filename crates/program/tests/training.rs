//! Training a part of a model: frozen parameters, adapters, clipped and summed gradients.

use rekindle_program::op::Op;
use rekindle_program::{
    Builder, DType, Init, Lora, Optimizer, Patterns, Program, Settings, Updates,
};

/// Two linear layers, trained as these say.
fn program(settings: Settings, updates: Updates) -> (Program, Vec<String>) {
    let mut b = Builder::with_settings("small", settings);
    let x = b.input("x", &[4, 6], DType::F32).expect("a source");
    let labels = b.input("labels", &[4], DType::I64).expect("a source");
    let mut y = x;
    for (layer, out) in [("a", 5), ("b", 3)] {
        let columns = y.shape()[1];
        let weight = b.parameter(&format!("{layer}.weight"), &[out, columns], Init::Ones);
        let bias = b.parameter(&format!("{layer}.bias"), &[out], Init::Zeros);
        let (weight, bias) = (weight.expect("a source"), bias.expect("a source"));
        y = b.linear(layer, &y, &weight, Some(&bias)).expect("shapes agree");
    }
    let loss = b.cross_entropy("loss", &y, &labels).expect("shapes agree");
    let gradients = b.backward(&loss).expect("it has parameters");
    let names: Vec<_> = gradients.pairs().to_vec();
    b.optimize(&gradients, updates).expect("the first time");
    let program = b.finish(&[&loss]).expect("its own output");
    let names = names.iter().map(|&(p, _)| program.tensor(p).name.clone()).collect();
    (program, names)
}

fn plain() -> Updates {
    Optimizer::adamw(0.1).into()
}

#[test]
fn frozen_parameters_get_no_gradient_and_no_state() {
    let frozen = Patterns::new("a.*,*.bias");
    let trained = Patterns::new("b.bias");
    let (program, names) = program(Settings { frozen, trained, ..Settings::default() }, plain());
    assert_eq!(names, ["b.weight", "b.bias"]);
    assert!(!program.tensors.iter().any(|tensor| tensor.name.starts_with("a.weight.exp")));
}

#[test]
fn adapters_stand_beside_the_matrices_that_match() {
    let lora = Some(Lora { rank: 2, alpha: 4.0, weights: Patterns::new("*.weight") });
    let frozen = Patterns::new("*");
    let (program, names) = program(Settings { frozen, lora, ..Settings::default() }, plain());
    let adapters = ["a.lora_A.weight", "a.lora_B.weight", "b.lora_A.weight", "b.lora_B.weight"];
    assert_eq!(names, adapters);
    let shape = |name: &str| {
        let mut tensors = program.tensors.iter();
        tensors.find(|tensor| tensor.name == name).expect("it is there").shape.clone()
    };
    assert_eq!([shape("a.lora_A.weight"), shape("a.lora_B.weight")], [[2, 6], [5, 2]]);
}

#[test]
fn clipped_updates_wait_for_every_gradient_and_summed_ones_take_the_sums() {
    let updates = Updates { clip: Some(1.0), accumulate: true, ..plain() };
    let (program, names) = program(Settings::default(), updates);
    let place = |is: &dyn Fn(&Op) -> bool| -> Vec<usize> {
        (0..program.nodes.len()).filter(|&at| is(&program.nodes[at].op)).collect()
    };
    let sums = place(&|op| matches!(op, Op::Accumulate(_)));
    let squares = place(&|op| matches!(op, Op::SquareSum(_)));
    let adams = place(&|op| matches!(op, Op::Adam(_)));
    assert_eq!([sums.len(), squares.len(), adams.len()], [names.len(); 3]);
    assert!(squares.last() < adams.first(), "{squares:?} and {adams:?}");
    for &adam in &adams {
        let gradient = program.nodes[adam].reads[1];
        assert!(program.tensor(gradient).name.ends_with(".gradient_sum.total"));
    }
}

#[test]
fn what_is_named_and_what_has_one_axis_does_not_decay() {
    let no_decay = Patterns::new("a.weight");
    let updates = Updates { no_decay, vectors_decay: false, ..plain() };
    let (program, _) = program(Settings::default(), updates);
    let decaying: Vec<&str> = program
        .nodes
        .iter()
        .filter(|node| matches!(node.op, Op::Adam(adam) if adam.options.weight_decay > 0.0))
        .map(|node| node.name.as_str())
        .collect();
    assert_eq!(decaying, ["b.weight.update"]);
}
