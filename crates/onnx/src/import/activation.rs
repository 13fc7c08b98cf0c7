//! Activations that are made of several functions of one number.

use rekindle_program::op::{Map, Pair};

use super::{Handler, Import};
use crate::OnnxError;
use crate::proto::NodeProto;
use crate::value::{Seen, Value};

pub(super) const OPERATORS: &[(&str, Handler)] = &[
    ("Mish", mish),
    ("PRelu", prelu),
    ("Selu", selu),
    ("Celu", celu),
    ("Softsign", softsign),
    ("ThresholdedRelu", thresholded),
    ("Shrink", shrink),
    ("Swish", swish),
];

type Results = Result<Vec<Value>, OnnxError>;

impl Import<'_> {
    /// A function of each element.
    pub(super) fn mapped(
        &mut self,
        node: &NodeProto,
        part: &str,
        x: &Seen,
        map: Map,
    ) -> Result<Seen, OnnxError> {
        let name = self.name(node, part);
        Ok(x.with(self.builder.unary(&name, &x.var, map)?))
    }

    /// Each element times a number.
    pub(super) fn times(
        &mut self,
        node: &NodeProto,
        part: &str,
        x: &Seen,
        factor: f32,
    ) -> Result<Seen, OnnxError> {
        if factor == 1.0 {
            return Ok(x.clone());
        }
        let name = self.name(node, part);
        Ok(x.with(self.builder.scale(&name, &x.var, factor)?))
    }

    /// A function of the elements of two values, which are repeated to one shape.
    pub(super) fn paired(
        &mut self,
        node: &NodeProto,
        part: &str,
        pair: Pair,
        [a, b]: [&Seen; 2],
    ) -> Result<Seen, OnnxError> {
        let (a, b, order) = self.aligned(a, b)?;
        let name = self.name(node, part);
        let var = self.builder.binary(&name, pair, &a, &b)?;
        Ok(Seen { var, order, causal: false })
    }
}

fn one(seen: Seen) -> Results {
    Ok(vec![Value::Tensor(seen)])
}

/// `x · tanh(ln(1 + e^x))`.
fn mish(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let soft = import.mapped(node, "softplus", &x, Map::Softplus)?;
    let tanh = import.mapped(node, "tanh", &soft, Map::Tanh)?;
    one(import.paired(node, "", Pair::Mul, [&x, &tanh])?)
}

/// `relu(x) + slope · (x - relu(x))`, with a slope that is trained.
fn prelu(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let (x, slope) = (import.tensor(node, 0)?, import.tensor(node, 1)?);
    let name = import.name(node, "positive");
    let positive = x.with(import.builder.relu(&name, &x.var)?);
    let negative = import.paired(node, "negative", Pair::Sub, [&x, &positive])?;
    let scaled = import.paired(node, "scaled", Pair::Mul, [&negative, &slope])?;
    one(import.paired(node, "", Pair::Add, [&positive, &scaled])?)
}

fn selu(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let alpha = node.float("alpha", 1.673_263_2);
    let elu = import.mapped(node, "elu", &x, Map::Elu { alpha })?;
    one(import.times(node, "", &elu, node.float("gamma", 1.050_701))?)
}

/// `alpha · elu(x / alpha)`.
fn celu(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let alpha = node.float("alpha", 1.0);
    if alpha == 0.0 {
        return Err(node.wrong("an alpha of zero"));
    }
    let inner = import.times(node, "inner", &x, 1.0 / alpha)?;
    let elu = import.mapped(node, "elu", &inner, Map::Elu { alpha: 1.0 })?;
    one(import.times(node, "", &elu, alpha)?)
}

/// `x / (1 + |x|)`.
fn softsign(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let size = import.mapped(node, "size", &x, Map::Abs)?;
    let below = import.mapped(node, "below", &size, Map::Shift { by: 1.0 })?;
    one(import.paired(node, "", Pair::Div, [&x, &below])?)
}

/// Ones where `x` is above `bound`, or below where `factor` is -1.
fn beyond(
    import: &mut Import<'_>,
    node: &NodeProto,
    x: &Seen,
    bound: f32,
    factor: f32,
) -> Result<Seen, OnnxError> {
    let name = import.name(node, "bound");
    let bound = import.builder.constant(&name, &vec![1; x.order.len()], vec![bound])?;
    let bound = x.with(bound);
    let x = import.times(node, "turned", x, factor)?;
    import.paired(node, "beyond", Pair::Less, [&bound, &x])
}

/// `x` where it is above a bound, else zero.
fn thresholded(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let above = beyond(import, node, &x, node.float("alpha", 1.0), 1.0)?;
    one(import.paired(node, "", Pair::Keep, [&x, &above])?)
}

/// `x - bias` above `lambd`, `x + bias` below its negative, and zero between.
fn shrink(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let (bias, bound) = (node.float("bias", 0.0), node.float("lambd", 0.5));
    let mut sides = Vec::new();
    for (part, factor) in [("above", 1.0), ("below", -1.0)] {
        let beyond = beyond(import, node, &x, bound, factor)?;
        let moved = import.mapped(node, "moved", &x, Map::Shift { by: -factor * bias })?;
        sides.push(import.paired(node, part, Pair::Keep, [&moved, &beyond])?);
    }
    one(import.paired(node, "", Pair::Add, [&sides[0], &sides[1]])?)
}

/// `x · sigmoid(alpha · x)`.
fn swish(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let alpha = node.float("alpha", 1.0);
    if alpha == 1.0 {
        return one(import.mapped(node, "", &x, Map::Silu)?);
    }
    let scaled = import.times(node, "scaled", &x, alpha)?;
    let gate = import.mapped(node, "gate", &scaled, Map::Sigmoid)?;
    one(import.paired(node, "", Pair::Mul, [&x, &gate])?)
}
