//! The shape of the backward pass: which nodes there are, and in which order.

use rekindle_graph::{Bytes, Phase, Role};
use rekindle_program::op::{BatchNormState, ConvOptions, Op, SgdOptions, Then};
use rekindle_program::{Builder, DType, Init, Optimizer, Program, ProgramError, Var};

const NORMAL: Init = Init::Normal { std: 1.0 };

fn linear(b: &mut Builder, name: &str, x: &Var, out: usize) -> Var {
    let inputs = x.shape()[1];
    let weight = b.parameter(&format!("{name}.weight"), &[out, inputs], NORMAL);
    let bias = b.parameter(&format!("{name}.bias"), &[out], Init::Zeros);
    b.linear(name, x, &weight.unwrap(), Some(&bias.unwrap())).unwrap()
}

/// Two linear layers with a ReLU between them, trained.
fn two_layers(optimizer: Option<Optimizer>) -> Program {
    let mut b = Builder::new("two-layers");
    let x = b.input("x", &[4, 3], DType::F32).unwrap();
    let labels = b.input("labels", &[4], DType::I64).unwrap();
    let h = linear(&mut b, "fc1", &x, 5);
    let h = b.relu("relu", &h).unwrap();
    let logits = linear(&mut b, "fc2", &h, 2);
    let loss = b.cross_entropy("loss", &logits, &labels).unwrap();
    let gradients = b.backward(&loss).unwrap();
    if let Some(optimizer) = optimizer {
        b.optimize(&gradients, optimizer).unwrap();
    }
    b.finish(&[&loss]).unwrap()
}

fn names(program: &Program, phase: Phase) -> Vec<&str> {
    let nodes = program.nodes.iter().filter(|n| n.phase == phase);
    nodes.map(|n| n.name.as_str()).collect()
}

fn position(program: &Program, name: &str) -> usize {
    let at = program.nodes.iter().position(|n| n.name == name);
    at.unwrap_or_else(|| panic!("no node {name}"))
}

#[test]
fn weights_come_before_data_and_data_gets_no_gradient() {
    let program = two_layers(None);
    assert_eq!(
        names(&program, Phase::Backward),
        ["loss.dx", "fc2.dw", "fc2.db", "fc2.dx", "relu.dx", "fc1.dw", "fc1.db"]
    );
}

#[test]
fn each_update_comes_as_soon_as_it_can() {
    let program = two_layers(Some(Optimizer::sgd(0.1)));
    let from = position(&program, "loss.dx");
    let order: Vec<_> = program.nodes[from..].iter().map(|n| n.name.as_str()).collect();
    assert_eq!(
        order,
        [
            "loss.dx",
            "fc2.dw",
            "fc2.db",
            "fc2.bias.update",
            "fc2.dx",
            "fc2.weight.update",
            "relu.dx",
            "fc1.dw",
            "fc1.weight.update",
            "fc1.db",
            "fc1.bias.update",
        ]
    );
    program.graph(|_| Bytes::ZERO);
}

#[test]
fn roles_and_state_follow_the_optimizer() {
    let states = |optimizer| {
        let program = two_layers(Some(optimizer));
        let states = program.tensors.iter().filter(|t| t.role == Role::OptimizerState);
        states.map(|t| t.name.clone()).collect::<Vec<_>>()
    };
    let plain = Optimizer::Sgd(SgdOptions { learning_rate: 0.1, momentum: 0.0, weight_decay: 0.0 });
    assert!(states(plain).is_empty());
    assert_eq!(states(Optimizer::sgd(0.1))[0], "fc1.weight.momentum");
    assert_eq!(states(Optimizer::adam(0.1))[..2], ["fc1.weight.exp_avg", "fc1.weight.exp_avg_sq"]);
    let program = two_layers(None);
    for node in &program.nodes {
        let expected = match node.phase {
            Phase::Forward => Role::Activation,
            Phase::Backward => Role::Gradient,
            Phase::Input | Phase::Optimizer => continue,
        };
        assert!(node.writes.iter().all(|&w| program.tensor(w).role == expected), "{}", node.name);
    }
}

#[test]
fn contributions_are_added_up() {
    let mut b = Builder::new("fan-out");
    let x = b.parameter("x", &[4], NORMAL).unwrap();
    let (p, q) = (b.relu("p", &x).unwrap(), b.relu("q", &x).unwrap());
    let r = b.add("r", &p, &q).unwrap();
    let y = b.add("y", &r, &x).unwrap();
    let seed = b.tangent("seed", &[4], NORMAL).unwrap();
    let gradients = b.vjp(&[(&y, &seed)]).unwrap();
    let program = b.finish(&[]).unwrap();
    // An addition has no backward node; its terms share the gradient.
    assert_eq!(names(&program, Phase::Backward), ["q.dx", "q.dsum0", "p.dx", "p.dsum0"]);
    let last = program.nodes.last().unwrap();
    assert_eq!(gradients.of(&x), Some(last.writes[0]));
}

#[test]
fn a_batch_norm_takes_two_gradients_apart_and_a_third_is_added() {
    let mut b = Builder::new("norm");
    let x = b.parameter("x", &[4, 2], NORMAL).unwrap();
    let channels = [2];
    let buffer = |b: &mut Builder, name| b.buffer(name, &channels, DType::F32, Init::Zeros);
    let state = BatchNormState {
        gamma: b.parameter("gamma", &channels, Init::Ones).unwrap(),
        beta: b.parameter("beta", &channels, Init::Zeros).unwrap(),
        running_mean: buffer(&mut b, "mean").unwrap(),
        running_var: buffer(&mut b, "var").unwrap(),
        batches: b.buffer("batches", &[], DType::I64, Init::Zeros).unwrap(),
        eps: 1e-5,
        momentum: 0.1,
    };
    let y = b.batch_norm("bn", &x, &state, Then::AddRelu(&x)).unwrap();
    let branches = ["p", "q", "r"].map(|name| b.relu(name, &y).unwrap());
    let seeds = ["dp", "dq", "dr"].map(|name| b.tangent(name, &[4, 2], NORMAL).unwrap());
    let starts: Vec<_> = branches.iter().zip(&seeds).collect();
    let gradients = b.vjp(&starts).unwrap();
    assert_eq!(gradients.pairs().len(), 3, "x, gamma and beta, but no buffer");
    let program = b.finish(&[]).unwrap();
    assert_eq!(
        names(&program, Phase::Backward),
        ["r.dx", "q.dx", "p.dx", "p.dsum0", "bn.dx", "bn.dsum0"]
    );
    let dx = &program.nodes[position(&program, "bn.dx")];
    let y = program.nodes[position(&program, "bn")].writes[0];
    assert_eq!(dx.reads.len(), 6, "x, stats, gamma, y and two gradients");
    assert_eq!(dx.reads[3], y);
    assert_eq!(dx.writes.len(), 4);
}

/// The dense gradient of the decoder is the base of the embedding's sparse one.
#[test]
fn a_tied_table_has_one_gradient() {
    let mut b = Builder::new("tied");
    let ids = b.input("ids", &[3], DType::I64).unwrap();
    let table = b.parameter("table", &[7, 4], NORMAL).unwrap();
    let x = b.embedding("embed", &ids, &table).unwrap();
    let logits = b.linear("decoder", &x, &table, None).unwrap();
    let loss = b.cross_entropy("loss", &logits, &ids).unwrap();
    b.backward(&loss).unwrap();
    let program = b.finish(&[&loss]).unwrap();
    assert_eq!(
        names(&program, Phase::Backward),
        ["loss.dx", "decoder.dw", "decoder.dx", "embed.dw"]
    );
    let sparse = program.nodes.last().unwrap();
    assert!(matches!(sparse.op, Op::EmbeddingDw(op) if op.base));
    let dense = &program.nodes[position(&program, "decoder.dw")];
    assert_eq!(sparse.reads[2], dense.writes[0]);
}

#[test]
fn a_dropout_repeats_its_own_mask() {
    let mut b = Builder::new("dropout");
    let x = b.parameter("x", &[4], NORMAL).unwrap();
    let y = b.dropout("first", &x, 0.5).unwrap();
    let y = b.dropout("second", &y, 0.5).unwrap();
    let seed = b.tangent("seed", &[4], NORMAL).unwrap();
    b.vjp(&[(&y, &seed)]).unwrap();
    let program = b.finish(&[&y]).unwrap();
    let site = |name: &str| match program.nodes[position(&program, name)].op {
        Op::Dropout(dims) => dims.site,
        op => panic!("{op:?} is no dropout"),
    };
    assert_ne!(site("first"), site("second"));
    assert_eq!(site("first"), site("first.dx"));
    assert_eq!(site("second"), site("second.dx"));
}

#[test]
fn branches_without_influence_get_no_nodes() {
    let mut b = Builder::new("branches");
    let x = b.input("x", &[1, 4, 4, 2], DType::F32).unwrap();
    let w = b.parameter("w", &[1, 1, 2, 2], NORMAL).unwrap();
    let unused = b.parameter("unused", &[1, 1, 2, 2], NORMAL).unwrap();
    let options = ConvOptions::default();
    let frozen = b.relu("frozen", &x).unwrap();
    let y = b.conv("conv", &frozen, &w, None, options).unwrap();
    b.conv("aside", &x, &unused, None, options).unwrap();
    let seed = b.tangent("seed", y.shape(), NORMAL).unwrap();
    let gradients = b.vjp(&[(&y, &seed)]).unwrap();
    assert_eq!(gradients.of(&unused), None);
    let program = b.finish(&[&y]).unwrap();
    assert_eq!(names(&program, Phase::Backward), ["conv.dw"]);
}

#[test]
fn a_part_that_nothing_reads_counts_as_zero() {
    let mut b = Builder::new("split");
    let x = b.parameter("x", &[3, 4], NORMAL).unwrap();
    let parts = b.split("split", &x, 2).unwrap();
    let seed = b.tangent("seed", &[3, 2], NORMAL).unwrap();
    b.vjp(&[(&parts[1], &seed)]).unwrap();
    let program = b.finish(&[]).unwrap();
    let join = program.nodes.last().unwrap();
    assert!(matches!(join.op, Op::Concat(_)));
    assert_eq!(join.reads[1], seed.tensor());
    assert_eq!(program.init[join.reads[0].index()], Some(Init::Zeros));
}

#[test]
fn a_start_that_cannot_be_differentiated_is_refused() {
    let mut b = Builder::new("starts");
    let x = b.input("x", &[4], DType::F32).unwrap();
    let w = b.parameter("w", &[4], NORMAL).unwrap();
    let seed = b.tangent("seed", &[4], NORMAL).unwrap();
    let short = b.tangent("short", &[3], NORMAL).unwrap();
    let constant = b.relu("constant", &x).unwrap();
    let y = b.relu("y", &w).unwrap();
    let error = b.vjp(&[(&constant, &seed)]).unwrap_err();
    assert!(error.to_string().contains("`constant` does not depend on any parameter"));
    assert!(matches!(b.vjp(&[(&y, &short)]), Err(ProgramError::Shape { .. })));
    assert!(matches!(b.vjp(&[(&y, &seed), (&y, &seed)]), Err(ProgramError::Duplicate { .. })));
    assert!(matches!(b.backward(&y), Err(ProgramError::Shape { .. })));
}
