//! Normalisations and the softmax.

use rekindle_program::op::{BatchNormState, Map, Mask, Pair, Then};
use rekindle_program::{DType, Var};

use super::{Handler, Import, Mode};
use crate::OnnxError;
use crate::proto::NodeProto;
use crate::value::{Seen, Value};

pub(super) const OPERATORS: &[(&str, Handler)] = &[
    ("BatchNormalization", batch_norm),
    ("LayerNormalization", layer_norm),
    ("RMSNormalization", rms_norm),
    ("GroupNormalization", group_norm),
    ("InstanceNormalization", instance_norm),
    ("Softmax", softmax),
    ("LogSoftmax", log_softmax),
    ("SoftmaxCrossEntropyLoss", cross_entropy),
    ("NegativeLogLikelihoodLoss", cross_entropy),
];

type Results = Result<Vec<Value>, OnnxError>;

impl Import<'_> {
    /// Operand `index`, a number for each channel.
    fn vector(&mut self, node: &NodeProto, index: usize, len: usize) -> Result<Var, OnnxError> {
        let seen = self.tensor(node, index)?;
        let var = self.plain(&seen)?;
        match var.len() == len {
            true => Ok(self.builder.reshape(&var, &[len])?),
            false => Err(node.wrong(format!("operand {index} has {} elements", var.len()))),
        }
    }

    /// Zeros, as many as there are channels.
    fn zeros(&mut self, node: &NodeProto, len: usize) -> Result<Var, OnnxError> {
        let name = self.name(node, "zeros");
        Ok(self.builder.constant(&name, &[len], vec![0.0; len])?)
    }
}

/// In training, by the statistics of the batch, whatever the file was exported for; a ReLU behind
/// it, or an addition and a ReLU, are part of it.
fn batch_norm(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let x = import.channels_last(&x)?;
    let channels = x.var.shape().last().copied().unwrap_or(1);
    let (gamma, beta) = (import.vector(node, 1, channels)?, import.vector(node, 2, channels)?);
    let mean = node.inputs.get(3).cloned().unwrap_or_default();
    let var = node.inputs.get(4).cloned().unwrap_or_default();
    let stored = |name: &String| import.onnx.initializer(name).is_some();
    if !stored(&mean) || !stored(&var) || import.value(node, 3)?.shape() != [channels] {
        return Err(node.wrong("running statistics that are not stored in the file"));
    }
    let prefix = mean.strip_suffix("running_mean").unwrap_or("").to_owned();
    let prefix = if prefix.is_empty() { format!("{mean}.") } else { prefix };
    let state = BatchNormState {
        gamma,
        beta,
        running_mean: import.buffer(&mean, &[channels], DType::F32)?,
        running_var: import.buffer(&var, &[channels], DType::F32)?,
        batches: import.buffer(&format!("{prefix}num_batches_tracked"), &[], DType::I64)?,
        eps: node.float("epsilon", 1e-5),
        // The file's is the share of the old statistics.
        momentum: 1.0 - node.float("momentum", 0.9),
    };
    if import.mode == Mode::Evaluate {
        return evaluated(import, node, &x, &state);
    }
    let name = import.name(node, "");
    if let Some((at, relu)) = import.only_reader(node, &["Relu"]) {
        let y = import.builder.batch_norm(&name, &x.var, &state, Then::Relu)?;
        return Ok(vec![finish(import, at, relu, x.with(y))]);
    }
    if let Some((at, add)) = import.only_reader(node, &["Add"])
        && let Some((at_relu, relu)) = import.only_reader(add, &["Relu"])
        && let Some(residual) = other_operand(import, node, add)
        && residual.shape() == x.shape()
    {
        let residual = import.in_order(&residual, &x.order.clone())?;
        let then = Then::AddRelu(&residual);
        let y = import.builder.batch_norm(&name, &x.var, &state, then)?;
        import.done.insert(at);
        return Ok(vec![finish(import, at_relu, relu, x.with(y))]);
    }
    let y = import.builder.batch_norm(&name, &x.var, &state, Then::Nothing)?;
    Ok(vec![Value::Tensor(x.with(y))])
}

/// Gives the result to a node that is part of the op.
fn finish(import: &mut Import<'_>, at: usize, node: &NodeProto, seen: Seen) -> Value {
    import.done.insert(at);
    if let Some(name) = node.outputs.first() {
        import.values.insert(name.clone(), Value::Tensor(seen.clone()));
    }
    Value::Tensor(seen)
}

/// What is added to the result of `node`, if it is there already.
fn other_operand(import: &Import<'_>, node: &NodeProto, add: &NodeProto) -> Option<Seen> {
    let own = node.outputs.first()?;
    let other = add.inputs.iter().find(|input| *input != own)?;
    match import.values.get(other)? {
        Value::Tensor(seen) if !seen.causal && !import.is_ids(&seen.var) => Some(seen.clone()),
        _ => None,
    }
}

/// By the running statistics: `(x - mean) · gamma / √(var + eps) + beta`.
fn evaluated(
    import: &mut Import<'_>,
    node: &NodeProto,
    x: &Seen,
    state: &BatchNormState,
) -> Results {
    let names = ["shifted", "root", "factor", "centred", "scaled", ""];
    let [shifted, root, factor, centred, scaled, result] =
        names.map(|part| import.name(node, part));
    let b = &mut import.builder;
    let variance = b.unary(&shifted, &state.running_var, Map::Shift { by: state.eps })?;
    let root = b.unary(&root, &variance, Map::Power { exponent: -0.5 })?;
    let factor = b.binary(&factor, Pair::Mul, &root, &state.gamma)?;
    let centred = b.binary(&centred, Pair::Sub, &x.var, &state.running_mean)?;
    let scaled = b.binary(&scaled, Pair::Mul, &centred, &factor)?;
    let y = b.binary(&result, Pair::Add, &scaled, &state.beta)?;
    Ok(vec![Value::Tensor(x.with(y))])
}

/// A value with the axes from `axis` on as the columns of rows, and the order to see rows in.
fn rows(import: &mut Import<'_>, x: &Seen, axis: usize) -> Result<(Var, Seen), OnnxError> {
    let last = x.order.len() - 1;
    if axis == last && x.order[last] == last {
        return Ok((x.var.clone(), x.clone()));
    }
    let var = import.plain(x)?;
    let seen = Seen::plain(var.clone());
    let cols: usize = var.shape()[axis..].iter().product();
    let flat = import.builder.reshape(&var, &[var.len() / cols.max(1), cols])?;
    Ok((flat, seen))
}

fn layer_norm(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let axis = node.axis(node.int("axis", -1), x.order.len())?;
    let (rows, seen) = rows(import, &x, axis)?;
    let cols = rows.shape().last().copied().unwrap_or(1);
    let gamma = import.vector(node, 1, cols)?;
    let beta = match import.optional(node, 2)? {
        Some(_) => import.vector(node, 2, cols)?,
        None => import.zeros(node, cols)?,
    };
    let name = import.name(node, "");
    let eps = node.float("epsilon", 1e-5);
    let y = import.builder.layer_norm(&name, &rows, &gamma, &beta, eps)?;
    let y = import.builder.reshape(&y, seen.var.shape())?;
    Ok(vec![Value::Tensor(seen.with(y))])
}

fn rms_norm(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let axis = node.axis(node.int("axis", -1), x.order.len())?;
    let (rows, seen) = rows(import, &x, axis)?;
    let cols = rows.shape().last().copied().unwrap_or(1);
    let gamma = import.vector(node, 1, cols)?;
    let name = import.name(node, "");
    let y = import.builder.rms_norm(&name, &rows, &gamma, node.float("epsilon", 1e-5))?;
    let y = import.builder.reshape(&y, seen.var.shape())?;
    Ok(vec![Value::Tensor(seen.with(y))])
}

fn groups_normed(import: &mut Import<'_>, node: &NodeProto, groups: Option<usize>) -> Results {
    let x = import.tensor(node, 0)?;
    let x = import.channels_last(&x)?;
    let channels = x.var.shape().last().copied().unwrap_or(1);
    let (gamma, beta) = (import.vector(node, 1, channels)?, import.vector(node, 2, channels)?);
    let name = import.name(node, "");
    let eps = node.float("epsilon", 1e-5);
    let groups = groups.unwrap_or(channels);
    let y = import.builder.group_norm(&name, &x.var, [&gamma, &beta], groups, eps)?;
    Ok(vec![Value::Tensor(x.with(y))])
}

fn group_norm(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let groups = usize::try_from(node.int("num_groups", 1));
    let groups = groups.map_err(|_| node.wrong("a negative number of groups"))?;
    groups_normed(import, node, Some(groups))
}

fn instance_norm(import: &mut Import<'_>, node: &NodeProto) -> Results {
    groups_normed(import, node, None)
}

fn softmax(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let value = import.value(node, 0)?;
    let rank = value.shape().len();
    let axis = node.axis(node.int("axis", -1), rank)?;
    let (x, mask) = match value {
        Value::Tensor(seen) if seen.causal && axis + 1 == rank => (seen, Mask::Causal),
        value => (import.floats(node, value)?, Mask::Full),
    };
    let order: Vec<usize> = match x.order.last() {
        Some(&last) if last == axis => x.order.clone(),
        _ => (0..rank).filter(|&own| own != axis).chain([axis]).collect(),
    };
    let var = import.in_order(&x, &order)?;
    let name = import.name(node, "");
    let var = import.builder.softmax(&name, &var, mask)?;
    Ok(vec![Value::Tensor(Seen { var, order, causal: false })])
}

/// `ln(softmax(x))`, as `x - max - ln Σ e^(x - max)`.
fn log_softmax(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let axis = x.place(node.axis(node.int("axis", -1), x.order.len())?);
    let names = ["max", "shifted", "exp", "sum", "log", ""].map(|part| import.name(node, part));
    let [max, shifted, exp, sum, log, result] = names;
    let b = &mut import.builder;
    let max = b.max(&max, &x.var, &[axis])?;
    let shifted = b.binary(&shifted, Pair::Sub, &x.var, &max)?;
    let exp = b.unary(&exp, &shifted, Map::Exp)?;
    let sum = b.sum(&sum, &exp, &[axis], 1.0)?;
    let log = b.unary(&log, &sum, Map::Log)?;
    let y = b.binary(&result, Pair::Sub, &shifted, &log)?;
    Ok(vec![Value::Tensor(x.with(y))])
}

/// The mean cross-entropy of scores `[n, classes, …]` and a class for each rest. Of logarithms of
/// probabilities, which add up to one, it is the same.
fn cross_entropy(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let mut makers = import.onnx.graph.nodes.iter();
    let is_log = makers
        .any(|maker| maker.op == "LogSoftmax" && maker.outputs.first() == node.inputs.first());
    if node.op == "NegativeLogLikelihoodLoss" && !is_log {
        return Err(node.wrong("operand 0 is no result of LogSoftmax"));
    }
    if import.optional(node, 2)?.is_some() || node.text("reduction", "mean") != "mean" {
        return Err(node.wrong("weights of classes, or no mean; leave the loss out of the file"));
    }
    if !matches!(node.int("ignore_index", -100), -100) {
        return Err(node.wrong("another label than -100 that does not count"));
    }
    let scores = import.tensor(node, 0)?;
    let labels = match import.value(node, 1)? {
        Value::Tensor(seen) if import.is_ids(&seen.var) => import.plain(&seen)?,
        _ => return Err(node.wrong("labels that are no input of whole numbers")),
    };
    if scores.order.len() < 2 {
        return Err(node.wrong("scores without classes"));
    }
    let logits = import.with_last(&scores, 1)?;
    let name = import.name(node, "");
    let loss = import.builder.cross_entropy(&name, &logits, &labels)?;
    Ok(vec![Value::Tensor(Seen::plain(import.builder.reshape(&loss, &[])?))])
}
