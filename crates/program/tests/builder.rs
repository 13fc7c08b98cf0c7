//! What the builder infers, and what it refuses.

use rekindle_program::op::{
    BatchNormState, ConvOptions, HeadOperand, Heads, Mask, PoolOptions, Then, Transpose,
};
use rekindle_program::{Builder, DType, Init, ProgramError, Var};

fn input(b: &mut Builder, name: &str, shape: &[usize]) -> Var {
    b.input(name, shape, DType::F32).unwrap()
}

/// The message of an error, with the parts that a reader needs.
#[track_caller]
fn check(result: Result<Var, ProgramError>, parts: &[&str]) {
    let text = result.unwrap_err().to_string();
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

#[test]
fn scopes_name_nodes_and_tensors() {
    let mut b = Builder::new("scopes");
    let x = input(&mut b, "x", &[2, 3]);
    let y = b.scope("layer1", |b| b.scope("0", |b| b.relu("relu", &x)));
    let y = y.unwrap();
    let program = b.finish(&[&y]).unwrap();
    assert_eq!(program.tensor(y.tensor()).name, "layer1.0.relu");
    assert_eq!(program.nodes[1].name, "layer1.0.relu");
}

#[test]
fn a_reshape_is_another_view_of_the_same_tensor() {
    let mut b = Builder::new("reshape");
    let x = input(&mut b, "x", &[2, 6]);
    let y = b.reshape(&x, &[3, 4]).unwrap();
    assert_eq!((y.tensor(), y.shape()), (x.tensor(), &[3, 4][..]));
    check(b.reshape(&x, &[5, 2]), &["x.reshape", "[2, 6]", "[5, 2]"]);
    check(b.reshape(&x, &[usize::MAX, 3]), &["x.reshape"]);
    assert_eq!(b.finish(&[&y]).unwrap().nodes.len(), 1);
}

#[test]
fn convolutions_and_poolings_infer_their_output() {
    let mut b = Builder::new("images");
    let x = input(&mut b, "x", &[2, 9, 7, 4]);
    let w = b.parameter("w", &[3, 3, 2, 6], Init::Zeros).unwrap();
    let options =
        ConvOptions { stride: [2, 1], padding: [1, 0], groups: 2, ..ConvOptions::default() };
    let y = b.conv("conv", &x, &w, None, options).unwrap();
    assert_eq!(y.shape(), [2, 5, 5, 6]);
    let pool = PoolOptions { kernel: [3, 2], stride: [2, 2], padding: [1, 0], extra: [0; 2] };
    assert_eq!(b.max_pool("max", &y, pool).unwrap().shape(), [2, 3, 2, 6]);
    assert_eq!(b.avg_pool("avg", &y, pool).unwrap().shape(), [2, 3, 2, 6]);
}

#[test]
fn convolutions_refuse_what_does_not_fit() {
    let mut b = Builder::new("images");
    let x = input(&mut b, "x", &[1, 4, 4, 3]);
    let w = b.parameter("w", &[3, 3, 4, 8], Init::Zeros).unwrap();
    let plain = ConvOptions::default();
    let found = b.conv("c", &x, &w, None, plain);
    check(found, &["`c`", "`weight`", "[3, 3, 4, 8]", "[3, 3, 3, 8]"]);

    let large = b.parameter("large", &[7, 7, 3, 8], Init::Zeros).unwrap();
    let found = b.conv("c", &x, &large, None, plain);
    check(found, &["window of [7, 7]", "image of [4, 4]", "larger image"]);

    let w = b.parameter("w3", &[3, 3, 3, 8], Init::Zeros).unwrap();
    let bias = b.parameter("bias", &[7], Init::Zeros).unwrap();
    let found = b.conv("c", &x, &w, Some(&bias), plain);
    check(found, &["`bias`", "[7]", "[8]"]);
    let groups = ConvOptions { groups: 2, ..plain };
    check(b.conv("c", &x, &w, None, groups), &["groups is 2", "3 and 8"]);
    let still = ConvOptions { stride: [0, 1], ..plain };
    check(b.conv("c", &x, &w, None, still), &["stride", "positive"]);
    let flat = b.reshape(&x, &[4, 12]).unwrap();
    check(b.conv("c", &flat, &w, None, plain), &["[4, 12]", "[n, h, w, channels]"]);
}

#[test]
fn a_pooling_of_padding_alone_is_refused() {
    let mut b = Builder::new("pool");
    let x = input(&mut b, "x", &[1, 4, 4, 3]);
    let options = PoolOptions { kernel: [2, 2], stride: [1, 1], padding: [2, 0], extra: [0; 2] };
    check(b.max_pool("p", &x, options), &["padding is [2, 0]", "half the kernel"]);
    let y = input(&mut b, "y", &[1, 20, 20, 3]);
    let options = PoolOptions { kernel: [17, 16], stride: [1, 1], padding: [0, 0], extra: [0; 2] };
    check(b.max_pool("p", &y, options), &["at most 256 positions", "[17, 16]"]);
}

#[test]
fn products_agree_on_the_summed_dimension() {
    let mut b = Builder::new("products");
    let x = input(&mut b, "x", &[2, 5, 3]);
    let w = b.parameter("w", &[7, 3], Init::Zeros).unwrap();
    assert_eq!(b.linear("fc", &x, &w, None).unwrap().shape(), [2, 5, 7]);
    let wide = b.parameter("wide", &[7, 4], Init::Zeros).unwrap();
    check(b.linear("fc2", &x, &wide, None), &["`fc2`", "[2, 5, 3]", "[…, 4]"]);

    let a = input(&mut b, "a", &[3, 5]);
    let transpose = Transpose { a: true, b: false };
    let c = b.matmul("ab", &a, &wide, None, transpose);
    check(c, &["`ab`", "`b`", "[7, 4]", "[3, 4]"]);
    let plain = b.matmul("ok", &w, &a, None, Transpose::default()).unwrap();
    assert_eq!(plain.shape(), [7, 5]);
}

#[test]
fn attention_products_know_both_layouts() {
    let mut b = Builder::new("heads");
    let q = input(&mut b, "q", &[2, 5, 3, 4]);
    let k = input(&mut b, "k", &[2, 7, 3, 4]);
    let operand = |var, transposed| HeadOperand { var, heads: Heads::Interleaved, transposed };
    let scores = b.head_matmul("s", operand(&q, false), operand(&k, true), Heads::Outer, 0.5);
    let scores = scores.unwrap();
    assert_eq!(scores.shape(), [2, 3, 5, 7]);
    let found = b.softmax("causal", &scores, Mask::Causal);
    check(found, &["[2, 3, 5, 7]", "causal"]);
    let found = b.head_matmul("x", operand(&q, false), operand(&k, false), Heads::Outer, 1.0);
    check(found, &["`b`", "[2, 7, 3, 4]", "[2, 4, 3, 4]"]);
}

#[test]
fn a_batch_norm_wants_its_channels_and_more_than_one_row() {
    let mut b = Builder::new("norm");
    let state = |b: &mut Builder, channels: usize| BatchNormState {
        gamma: b.parameter(&format!("g{channels}"), &[channels], Init::Ones).unwrap(),
        beta: b.parameter(&format!("b{channels}"), &[channels], Init::Zeros).unwrap(),
        running_mean: input(b, &format!("m{channels}"), &[channels]),
        running_var: input(b, &format!("v{channels}"), &[channels]),
        batches: b.input(&format!("n{channels}"), &[], DType::I64).unwrap(),
        eps: 1e-5,
        momentum: 0.1,
    };
    let x = input(&mut b, "x", &[2, 4, 4, 8]);
    let five = state(&mut b, 5);
    let found = b.batch_norm("bn", &x, &five, Then::Nothing);
    check(found, &["`bn`", "`gamma`", "[5]", "[8]"]);
    let eight = state(&mut b, 8);
    let other = input(&mut b, "other", &[2, 4, 2, 8]);
    let found = b.batch_norm("bn", &x, &eight, Then::AddRelu(&other));
    check(found, &["`residual`", "[2, 4, 2, 8]"]);
    let single = input(&mut b, "single", &[1, 1, 1, 8]);
    let found = b.batch_norm("bn", &single, &eight, Then::Relu);
    check(found, &["per channel is 1", "at least 2"]);
}

#[test]
fn ids_and_numbers_are_not_mixed_up() {
    let mut b = Builder::new("types");
    let x = input(&mut b, "x", &[4, 10]);
    let ids = b.input("ids", &[4], DType::I64).unwrap();
    let table = b.parameter("table", &[10, 3], Init::Zeros).unwrap();
    assert_eq!(b.embedding("e", &ids, &table).unwrap().shape(), [4, 3]);
    check(b.embedding("e2", &x, &table), &["`ids`", "F32", "I64"]);
    check(b.relu("r", &ids), &["`x`", "I64", "F32"]);
    check(b.cross_entropy("l", &x, &x), &["`labels`", "I64"]);
    let few = b.input("few", &[3], DType::I64).unwrap();
    check(b.cross_entropy("l", &x, &few), &["`labels`", "[3]", "4 elements"]);
    check(b.constant_ids("c", &[3], vec![1, 2]), &["`c`", "[2]", "[3]"]);
}

#[test]
fn dropout_of_zero_is_nothing_and_of_one_is_refused() {
    let mut b = Builder::new("dropout");
    let x = input(&mut b, "x", &[4]);
    assert_eq!(b.dropout("d", &x, 0.0).unwrap(), x);
    check(b.dropout("d", &x, 1.0), &["dropout probability is 1", "below 1"]);
    check(b.dropout("d", &x, f32::NAN), &["NaN"]);
}

#[test]
fn names_are_unique_and_sizes_possible() {
    let mut b = Builder::new("sizes");
    let x = input(&mut b, "x", &[4]);
    check(b.input("x", &[5], DType::F32), &["already a node `x`"]);
    check(b.input("none", &[3, 0], DType::F32), &["[3, 0]", "positive"]);
    let huge = b.input("huge", &[usize::MAX, 2], DType::F32);
    check(huge, &["`huge`", "reduce the batch"]);
    check(b.split("s", &x, 3).map(|mut v| v.remove(0)), &["parts is 3", "4 columns"]);
    check(b.concat("c", &[]), &["parts is 0", "1 to 16"]);
    check(b.permute("p", &x, [0, 1, 2, 3]), &["[4]"]);
    // A refused call leaves no trace.
    assert_eq!(b.finish(&[&x]).unwrap().nodes.len(), 1);
}

#[test]
fn handles_of_another_builder_are_refused() {
    let mut other = Builder::new("other");
    input(&mut other, "a", &[2]);
    let foreign = input(&mut other, "b", &[2]);
    let mut b = Builder::new("own");
    let x = input(&mut b, "x", &[2]);
    check(b.add("sum", &x, &foreign), &["`sum`", "another builder"]);
    assert!(matches!(b.backward(&foreign), Err(ProgramError::Foreign { .. })));
    assert!(matches!(b.finish(&[&foreign]), Err(ProgramError::Foreign { .. })));
}
