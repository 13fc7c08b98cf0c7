//! Operators on each element.

use std::rc::Rc;

use rekindle_program::Var;
use rekindle_program::op::{GeluKind, Map, Pair};

use super::{Handler, Import};
use crate::OnnxError;
use crate::fold::Constant;
use crate::proto::{Elements, NodeProto};
use crate::value::{Seen, Value};

pub(super) const OPERATORS: &[(&str, Handler)] = &[
    ("Relu", relu),
    ("Sigmoid", |i, n| map(i, n, Map::Sigmoid)),
    ("Tanh", |i, n| map(i, n, Map::Tanh)),
    ("HardSigmoid", |i, n| {
        map(i, n, Map::HardSigmoid { slope: n.float("alpha", 0.2), shift: n.float("beta", 0.5) })
    }),
    ("HardSwish", |i, n| map(i, n, Map::HardSwish)),
    ("LeakyRelu", |i, n| map(i, n, Map::LeakyRelu { slope: n.float("alpha", 0.01) })),
    ("Elu", |i, n| map(i, n, Map::Elu { alpha: n.float("alpha", 1.0) })),
    ("Softplus", |i, n| map(i, n, Map::Softplus)),
    ("Exp", |i, n| map(i, n, Map::Exp)),
    ("Log", |i, n| map(i, n, Map::Log)),
    ("Sqrt", |i, n| map(i, n, Map::Sqrt)),
    ("Reciprocal", |i, n| map(i, n, Map::Reciprocal)),
    ("Abs", |i, n| map(i, n, Map::Abs)),
    ("Erf", |i, n| map(i, n, Map::Erf)),
    ("Sin", |i, n| map(i, n, Map::Sin)),
    ("Cos", |i, n| map(i, n, Map::Cos)),
    ("Neg", |i, n| scaled(i, n, -1.0)),
    ("Gelu", gelu),
    ("Clip", clip),
    ("Min", bound),
    ("Max", bound),
    ("Pow", power),
    ("Add", sum),
    ("Sub", difference),
    ("Mul", product),
    ("Div", quotient),
    ("And", |i, n| pair(i, n, Pair::Mul, [0, 1])),
    ("Or", either),
    ("Xor", either),
    ("Not", not),
    ("Sign", sign),
    ("IsNaN", never),
    ("Equal", |i, n| pair(i, n, Pair::Equal, [0, 1])),
    ("Less", less),
    ("Greater", |i, n| pair(i, n, Pair::Less, [1, 0])),
    ("LessOrEqual", |i, n| at_most(i, n, [1, 0])),
    ("GreaterOrEqual", |i, n| at_most(i, n, [0, 1])),
    ("Where", choose),
    ("Cast", cast),
    ("CastLike", |i, n| Ok(vec![i.value(n, 0)?])),
    ("Identity", |i, n| Ok(vec![i.value(n, 0)?])),
    ("Dropout", dropout),
    ("RandomUniformLike", |i, n| Ok(vec![Value::Uniform(i.value(n, 0)?.shape())])),
    ("Bernoulli", bernoulli),
];

type Results = Result<Vec<Value>, OnnxError>;

fn map(import: &mut Import<'_>, node: &NodeProto, map: Map) -> Results {
    let x = import.tensor(node, 0)?;
    let name = import.name(node, "");
    let y = import.builder.unary(&name, &x.var, map)?;
    Ok(vec![Value::Tensor(x.with(y))])
}

fn relu(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let name = import.name(node, "");
    let y = import.builder.relu(&name, &x.var)?;
    Ok(vec![Value::Tensor(x.with(y))])
}

fn gelu(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let kind = match node.text("approximate", "none") {
        "tanh" => GeluKind::Tanh,
        _ => GeluKind::Erf,
    };
    let name = import.name(node, "");
    let y = import.builder.gelu(&name, &x.var, kind)?;
    Ok(vec![Value::Tensor(x.with(y))])
}

fn scaled(import: &mut Import<'_>, node: &NodeProto, factor: f32) -> Results {
    let x = import.tensor(node, 0)?;
    scale(import, node, &x, factor)
}

/// `factor · x`; nothing to do for one.
fn scale(import: &mut Import<'_>, node: &NodeProto, x: &Seen, factor: f32) -> Results {
    if factor == 1.0 {
        return Ok(vec![Value::Tensor(x.clone())]);
    }
    let name = import.name(node, "");
    let y = import.builder.scale(&name, &x.var, factor)?;
    Ok(vec![Value::Tensor(x.with(y))])
}

/// `x + by`; nothing to do for zero.
fn shift(import: &mut Import<'_>, node: &NodeProto, x: &Seen, by: f32) -> Results {
    if by == 0.0 {
        return Ok(vec![Value::Tensor(x.clone())]);
    }
    let name = import.name(node, "");
    let y = import.builder.unary(&name, &x.var, Map::Shift { by })?;
    Ok(vec![Value::Tensor(x.with(y))])
}

fn clip(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let bound = |index: usize, default: f32| -> Result<f32, OnnxError> {
        let bound = import.constant(node, index)?.and_then(|bound| bound.single());
        Ok(bound.map_or(default, |bound| bound as f32))
    };
    let (low, high) = (bound(1, f32::NEG_INFINITY)?, bound(2, f32::INFINITY)?);
    map(import, node, Map::Clip { low, high })
}

/// The larger or smaller of a tensor and a number, or of tensors; of equal ones the first gets the
/// gradient.
fn bound(import: &mut Import<'_>, node: &NodeProto) -> Results {
    if node.inputs.len() == 2
        && let Some((x, other)) = number(import, node)?
    {
        let other = other as f32;
        let (low, high) = match node.op.as_str() {
            "Max" => (other, f32::INFINITY),
            _ => (f32::NEG_INFINITY, other),
        };
        let x = import.tensor(node, x)?;
        return Ok(vec![Value::Tensor(import.mapped(node, "", &x, Map::Clip { low, high })?)]);
    }
    let mut best = import.tensor(node, 0)?;
    for index in 1..node.inputs.len() {
        let next = import.tensor(node, index)?;
        let pair = if node.op == "Max" { [&best, &next] } else { [&next, &best] };
        let beaten = import.paired(node, "beaten", Pair::Less, pair)?;
        let negative = import.times(node, "negative", &beaten, -1.0)?;
        let holds = import.mapped(node, "holds", &negative, Map::Shift { by: 1.0 })?;
        let kept = import.paired(node, "kept", Pair::Keep, [&best, &holds])?;
        let taken = import.paired(node, "taken", Pair::Keep, [&next, &beaten])?;
        best = import.paired(node, "", Pair::Add, [&kept, &taken])?;
    }
    Ok(vec![Value::Tensor(best)])
}

fn power(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let exponent = import.constant(node, 1)?.and_then(|exponent| exponent.single());
    match exponent {
        Some(exponent) => map(import, node, Map::Power { exponent: exponent as f32 }),
        None => Err(node.wrong("an exponent that is not one number")),
    }
}

/// Which operand is a tensor, and the number that the other one is; the number must not widen it.
fn number(import: &Import<'_>, node: &NodeProto) -> Result<Option<(usize, f64)>, OnnxError> {
    for (number, other) in [(1, 0), (0, 1)] {
        if let Some(Value::Constant(constant)) = import.optional(node, number)? {
            let rank = import.value(node, other)?.shape().len();
            let single = constant.shrunk().single().filter(|_| {
                constant.shape.len() <= rank && constant.shape.iter().all(|&extent| extent == 1)
            });
            return Ok(single.map(|single| (other, single)));
        }
    }
    Ok(None)
}

fn sum(import: &mut Import<'_>, node: &NodeProto) -> Results {
    if let Some((x, by)) = number(import, node)? {
        let x = import.tensor(node, x)?;
        return shift(import, node, &x, by as f32);
    }
    for (mask, scores) in [(1, 0), (0, 1)] {
        if let Value::Constant(mask) = import.value(node, mask)?
            && let Value::Tensor(scores) = import.value(node, scores)?
            && let Some(seen) = masked_scores(&mask, &scores)
        {
            return Ok(vec![Value::Tensor(seen)]);
        }
    }
    pair(import, node, Pair::Add, [0, 1])
}

/// Scores with a mask that hides nothing, or just what comes later.
pub(super) fn masked_scores(mask: &Rc<Constant>, scores: &Seen) -> Option<Seen> {
    let shape = scores.shape();
    let mask = mask.shrunk();
    if mask.shape.len() > shape.len() {
        return None;
    }
    if mask.single() == Some(0.0) {
        return Some(scores.clone());
    }
    let &[.., rows, cols] = &shape[..] else {
        return None;
    };
    let outer = mask.shape.len().checked_sub(2)?;
    let square = mask.shape[outer..] == [rows, cols] && rows == cols;
    if !square || mask.shape[..outer].iter().any(|&extent| extent != 1) {
        return None;
    }
    let hides = |value: f64| value <= -1e30;
    let causal = mask.values.iter().enumerate().all(|(at, &value)| match at % cols > at / cols {
        true => hides(value),
        false => value == 0.0,
    });
    let plain = scores.order.iter().enumerate().all(|(at, &axis)| at == axis);
    (causal && plain).then(|| Seen { causal: true, ..scores.clone() })
}

impl Import<'_> {
    /// Scores whose mask nobody took along: the mask is added after all.
    pub(super) fn masked(&mut self, node: &NodeProto, scores: &Seen) -> Result<Seen, OnnxError> {
        let cols = scores.var.shape().last().copied().unwrap_or(1);
        let hidden = |at: usize| if at % cols > at / cols { f32::NEG_INFINITY } else { 0.0 };
        let name = self.name(node, "mask");
        let mask = (0..cols * cols).map(hidden).collect();
        let mask = self.builder.constant(&name, &[cols, cols], mask)?;
        let name = self.name(node, "masked");
        let var = self.builder.binary(&name, Pair::Add, &scores.var, &mask)?;
        Ok(scores.with(var))
    }

    /// Both operands in the order of the larger one's axes, with as many axes each.
    pub(super) fn aligned(
        &mut self,
        a: &Seen,
        b: &Seen,
    ) -> Result<(Var, Var, Vec<usize>), OnnxError> {
        let rank = a.order.len().max(b.order.len());
        let widen = |import: &Import<'_>, x: &Seen| -> Result<Seen, OnnxError> {
            let more = rank - x.order.len();
            let mut shape = vec![1; more];
            shape.extend(x.var.shape());
            let order = (0..more).chain(x.order.iter().map(|&axis| axis + more)).collect();
            let var = import.builder.reshape(&x.var, &shape)?;
            Ok(Seen { var, order, causal: false })
        };
        let (a, b) = (widen(self, a)?, widen(self, b)?);
        let order = if b.var.len() > a.var.len() { b.order.clone() } else { a.order.clone() };
        Ok((self.in_order(&a, &order)?, self.in_order(&b, &order)?, order))
    }
}

/// A function of the operands at these places.
fn pair(import: &mut Import<'_>, node: &NodeProto, pair: Pair, places: [usize; 2]) -> Results {
    let mut operands = Vec::new();
    for place in places {
        let value = match import.value(node, place)? {
            Value::Constant(constant) => Value::from(constant.shrunk()),
            value => value,
        };
        operands.push(import.floats(node, value)?);
    }
    let whole: Vec<Vec<usize>> = places
        .iter()
        .map(|&place| Ok(import.value(node, place)?.shape()))
        .collect::<Result<_, OnnxError>>()?;
    let (a, b, order) = import.aligned(&operands[0], &operands[1])?;
    let name = import.name(node, "");
    let y = match pair == Pair::Add && a.shape() == b.shape() {
        true => import.builder.add(&name, &a, &b)?,
        false => import.builder.binary(&name, pair, &a, &b)?,
    };
    let seen = Seen { var: y, order, causal: false };
    // A constant that was repeated may have widened the result.
    let rank = seen.order.len();
    let widest = |axis: usize| {
        let own = whole
            .iter()
            .filter_map(|shape| (axis + shape.len()).checked_sub(rank).map(|axis| shape[axis]));
        own.max().unwrap_or(1)
    };
    let shape: Vec<usize> = (0..rank).map(widest).collect();
    let seen = import.expanded(node, &seen, &shape)?;
    Ok(vec![Value::Tensor(seen)])
}

fn difference(import: &mut Import<'_>, node: &NodeProto) -> Results {
    match number(import, node)? {
        Some((0, by)) => {
            let x = import.tensor(node, 0)?;
            shift(import, node, &x, -(by as f32))
        }
        Some((_, from)) => {
            let x = import.tensor(node, 1)?;
            let name = import.name(node, "negative");
            let negative = import.builder.scale(&name, &x.var, -1.0)?;
            shift(import, node, &x.with(negative), from as f32)
        }
        None => pair(import, node, Pair::Sub, [0, 1]),
    }
}

/// `x · sigmoid(x)` is one function.
fn product(import: &mut Import<'_>, node: &NodeProto) -> Results {
    if let Some((x, factor)) = number(import, node)? {
        let x = import.tensor(node, x)?;
        return scale(import, node, &x, factor as f32);
    }
    pair(import, node, Pair::Mul, [0, 1])
}

fn quotient(import: &mut Import<'_>, node: &NodeProto) -> Results {
    if let (Value::Coin(shape, chance), Some((_, by))) =
        (import.value(node, 0)?, number(import, node)?)
        && (chance - by).abs() < 1e-6
    {
        return Ok(vec![Value::Tensor(import.coin(node, &shape, chance)?)]);
    }
    match number(import, node)? {
        Some((0, by)) => {
            let x = import.tensor(node, 0)?;
            scale(import, node, &x, (1.0 / by) as f32)
        }
        Some((_, over)) => {
            let x = import.tensor(node, 1)?;
            let name = import.name(node, "reciprocal");
            let y = import.builder.unary(&name, &x.var, Map::Reciprocal)?;
            scale(import, node, &x.with(y), over as f32)
        }
        None => pair(import, node, Pair::Div, [0, 1]),
    }
}

/// Ones where the operands are: at least one of them, or just one.
fn either(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let (a, b) = (import.tensor(node, 0)?, import.tensor(node, 1)?);
    let y = match node.op.as_str() {
        "Or" => {
            let sum = import.paired(node, "sum", Pair::Add, [&a, &b])?;
            import.mapped(node, "", &sum, Map::Clip { low: 0.0, high: 1.0 })?
        }
        _ => {
            let difference = import.paired(node, "difference", Pair::Sub, [&a, &b])?;
            import.mapped(node, "", &difference, Map::Abs)?
        }
    };
    Ok(vec![Value::Tensor(y)])
}

/// One above zero, minus one below.
fn sign(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let name = import.name(node, "zero");
    let zero = x.with(import.builder.constant(&name, &vec![1; x.order.len()], vec![0.0])?);
    let above = import.paired(node, "above", Pair::Less, [&zero, &x])?;
    let below = import.paired(node, "below", Pair::Less, [&x, &zero])?;
    Ok(vec![Value::Tensor(import.paired(node, "", Pair::Sub, [&above, &below])?)])
}

/// `1 - x`, for ones and zeros.
fn not(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let name = import.name(node, "negative");
    let negative = import.builder.scale(&name, &x.var, -1.0)?;
    shift(import, node, &x.with(negative), 1.0)
}

/// Exporters guard a softmax against rows that see nothing, which a causal mask does not have.
fn never(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let shape = import.value(node, 0)?.shape();
    let zero = Constant {
        kind: crate::fold::Kind::Bool,
        ..Constant::scalar(crate::fold::Kind::Bool, 0.0)
    };
    let rank = vec![1; shape.len()];
    Ok(vec![Constant { shape: rank, ..zero }.into()])
}

fn less(import: &mut Import<'_>, node: &NodeProto) -> Results {
    if let Value::Uniform(shape) = import.value(node, 0)?
        && let Some(chance) = import.constant(node, 1)?.and_then(|chance| chance.shrunk().single())
    {
        return Ok(vec![Value::Coin(shape, chance.clamp(0.0, 1.0))]);
    }
    pair(import, node, Pair::Less, [0, 1])
}

/// `a ≤ b` is not `b < a`.
fn at_most(import: &mut Import<'_>, node: &NodeProto, places: [usize; 2]) -> Results {
    let less = pair(import, node, Pair::Less, places)?;
    let Some(Value::Tensor(less)) = less.into_iter().next() else {
        return Err(node.wrong("it compares nothing"));
    };
    let name = import.name(node, "negative");
    let negative = import.builder.scale(&name, &less.var, -1.0)?;
    shift(import, node, &less.with(negative), 1.0)
}

/// Where the condition is known everywhere alike, one of both; else what is kept of each.
fn choose(import: &mut Import<'_>, node: &NodeProto) -> Results {
    if let Value::Constant(condition) = import.value(node, 0)? {
        let shrunk = condition.shrunk();
        if let Some(single) = shrunk.single() {
            let chosen = import.value(node, if single != 0.0 { 1 } else { 2 })?;
            let shape = shared(&[import.value(node, 1)?, import.value(node, 2)?]);
            if chosen.shape() == shape {
                return Ok(vec![chosen]);
            }
        }
    }
    let mut parts = Vec::new();
    for (place, kept) in [(1, true), (2, false)] {
        let value = import.value(node, place)?;
        if let Value::Constant(constant) = &value
            && constant.shrunk().single() == Some(0.0)
        {
            continue;
        }
        let condition = match import.value(node, 0)? {
            Value::Constant(condition) => {
                let mut condition = condition.shrunk();
                for value in &mut condition.values {
                    *value = f64::from((*value != 0.0) == kept);
                }
                import.floats(node, condition.into())?
            }
            value => {
                let seen = import.floats(node, value)?;
                match kept {
                    true => seen,
                    false => {
                        let name = import.name(node, "not");
                        let negative = import.builder.scale(&name, &seen.var, -1.0)?;
                        let name = import.name(node, "else");
                        let shifted = Map::Shift { by: 1.0 };
                        let var = import.builder.unary(&name, &negative, shifted)?;
                        seen.with(var)
                    }
                }
            }
        };
        let value = import.floats(node, value)?;
        let (x, c, order) = import.aligned(&value, &condition)?;
        let name = import.name(node, "kept");
        let var = import.builder.binary(&name, Pair::Keep, &x, &c)?;
        parts.push(Seen { var, order, causal: false });
    }
    let sum = match &parts[..] {
        [] => return Err(node.wrong("a choice between zeros")),
        [only] => only.clone(),
        [a, b, ..] => {
            let (a, b, order) = import.aligned(a, b)?;
            let name = import.name(node, "");
            let var = import.builder.binary(&name, Pair::Add, &a, &b)?;
            Seen { var, order, causal: false }
        }
    };
    let values: Vec<Value> = (0..3).map(|k| import.value(node, k)).collect::<Result<_, _>>()?;
    Ok(vec![Value::Tensor(import.expanded(node, &sum, &shared(&values))?)])
}

/// The shape to which these are repeated.
fn shared(values: &[Value]) -> Vec<usize> {
    let shapes: Vec<Vec<usize>> = values.iter().map(Value::shape).collect();
    let rank = shapes.iter().map(Vec::len).max().unwrap_or(0);
    let extent = |axis: usize| {
        let own = shapes
            .iter()
            .filter_map(|shape| (axis + shape.len()).checked_sub(rank).map(|axis| shape[axis]));
        own.max().unwrap_or(1)
    };
    (0..rank).map(extent).collect()
}

/// Ones, zeros and ids are floats to the engine where they are computed with.
fn cast(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.value(node, 0)?;
    match (Elements::new(node.int("to", 1)), &x) {
        (Elements::F32 | Elements::F64, Value::Tensor(_)) => {
            Ok(vec![Value::Tensor(import.floats(node, x)?)])
        }
        (Elements::Other(number), _) => Err(node.wrong(format!("elements of type {number}"))),
        _ => Ok(vec![x]),
    }
}

/// Ones with a chance that is the same for each.
fn bernoulli(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let chances = import.constant(node, 0)?;
    let single = chances.as_ref().and_then(|chances| chances.shrunk().single());
    match (chances, single) {
        (Some(chances), Some(chance)) => {
            Ok(vec![Value::Coin(chances.shape.clone(), chance.clamp(0.0, 1.0))])
        }
        _ => Err(node.wrong("chances that are not all the same")),
    }
}

fn dropout(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let ratio = import.constant(node, 1)?.and_then(|ratio| ratio.single()).unwrap_or(0.5);
    let p = import.drop_probability(ratio as f32);
    let x = import.tensor(node, 0)?;
    let name = import.name(node, "");
    let y = import.builder.dropout(&name, &x.var, p)?;
    Ok(vec![Value::Tensor(x.with(y))])
}
