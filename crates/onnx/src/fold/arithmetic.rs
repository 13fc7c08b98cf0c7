//! Operators that compute numbers from numbers, element by element or in sums.

use super::{Call, Constant, Kind, check_len};
use crate::OnnxError;
use crate::proto::Elements;

/// The result of an operator that computes, if it is one.
pub(super) fn fold(call: &Call<'_>) -> Result<Option<Constant>, OnnxError> {
    if let Some(result) = map(call)? {
        return Ok(Some(result));
    }
    if let Some(result) = pair(call)? {
        return Ok(Some(result));
    }
    Ok(Some(match call.node.op.as_str() {
        "Cast" | "CastLike" => {
            let x = call.operand(0)?;
            let kind = match call.operands.get(1).copied().flatten() {
                Some(like) => like.kind,
                None => kind_of(call)?,
            };
            Constant { kind, ..x.clone() }
        }
        "Where" => {
            let [c, a, b] = [call.operand(0)?, call.operand(1)?, call.operand(2)?];
            let shape = shared_shape(call, &[c, a, b])?;
            let [c, a, b] = [repeat(c, &shape), repeat(a, &shape), repeat(b, &shape)];
            let values = c.iter().zip(a).zip(b).map(|((&c, a), b)| if c != 0.0 { a } else { b });
            Constant { values: values.collect(), shape, kind: call.operand(1)?.kind }
        }
        "MatMul" => matmul(call)?,
        "CumSum" => cumulative(call)?,
        "ReduceSum" | "ReduceProd" | "ReduceMean" | "ReduceMax" | "ReduceMin" => reduce(call)?,
        _ => return Ok(None),
    }))
}

/// The kind that the attribute `to` names.
fn kind_of(call: &Call<'_>) -> Result<Kind, OnnxError> {
    match Elements::new(call.int("to", 1)) {
        Elements::F32 | Elements::F64 => Ok(Kind::Float),
        Elements::I64 | Elements::I32 => Ok(Kind::Int),
        Elements::Bool => Ok(Kind::Bool),
        Elements::Other(number) => Err(call.wrong(format!("elements of type {number}"))),
    }
}

/// Functions of one number.
fn map(call: &Call<'_>) -> Result<Option<Constant>, OnnxError> {
    let f: fn(f64) -> f64 = match call.node.op.as_str() {
        "Neg" => |x| -x,
        "Abs" => f64::abs,
        "Sqrt" => f64::sqrt,
        "Reciprocal" => |x| 1.0 / x,
        "Exp" => f64::exp,
        "Log" => f64::ln,
        "Cos" => f64::cos,
        "Sin" => f64::sin,
        "Tanh" => f64::tanh,
        "Sigmoid" => |x| 1.0 / (1.0 + (-x).exp()),
        "Floor" => f64::floor,
        "Ceil" => f64::ceil,
        "Round" => f64::round_ties_even,
        "Not" => |x| f64::from(x == 0.0),
        "IsNaN" => |x| f64::from(x.is_nan()),
        _ => return Ok(None),
    };
    let x = call.operand(0)?;
    let kind = match call.node.op.as_str() {
        "Not" | "IsNaN" => Kind::Bool,
        _ => x.kind,
    };
    let values = x.values.iter().map(|&value| f(value)).collect();
    Ok(Some(Constant { shape: x.shape.clone(), kind, values }))
}

/// Functions of two numbers; `Min` and `Max` of any count.
fn pair(call: &Call<'_>) -> Result<Option<Constant>, OnnxError> {
    let f: fn(f64, f64) -> f64 = match call.node.op.as_str() {
        "Add" => |a, b| a + b,
        "Sub" => |a, b| a - b,
        "Mul" => |a, b| a * b,
        "Div" => |a, b| a / b,
        "Pow" => f64::powf,
        "Mod" => |a, b| a - b * (a / b).floor(),
        "Min" => f64::min,
        "Max" => f64::max,
        "And" => |a, b| f64::from(a != 0.0 && b != 0.0),
        "Or" => |a, b| f64::from(a != 0.0 || b != 0.0),
        "Xor" => |a, b| f64::from((a != 0.0) != (b != 0.0)),
        "Equal" => |a, b| f64::from(a == b),
        "Less" => |a, b| f64::from(a < b),
        "Greater" => |a, b| f64::from(a > b),
        "LessOrEqual" => |a, b| f64::from(a <= b),
        "GreaterOrEqual" => |a, b| f64::from(a >= b),
        _ => return Ok(None),
    };
    let mut all = call.operands.iter().flatten();
    let mut result = (*all.next().ok_or_else(|| call.wrong("it has no operand".into()))?).clone();
    for other in all {
        let shape = shared_shape(call, &[&result, other])?;
        let (a, b) = (repeat(&result, &shape), repeat(other, &shape));
        if call.node.op == "Div" && result.kind == Kind::Int && b.contains(&0.0) {
            return Err(call.wrong("a division by zero".into()));
        }
        let values = a.into_iter().zip(b).map(|(a, b)| f(a, b)).collect();
        result = Constant { shape, kind: result.kind, values }.rounded();
    }
    if matches!(
        call.node.op.as_str(),
        "And" | "Or" | "Xor" | "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual"
    ) {
        result.kind = Kind::Bool;
    }
    Ok(Some(result))
}

/// The shape to which all are repeated.
pub(super) fn shared_shape(
    call: &Call<'_>,
    operands: &[&Constant],
) -> Result<Vec<usize>, OnnxError> {
    let rank = operands.iter().map(|operand| operand.shape.len()).max().unwrap_or(0);
    let mut shape = vec![1; rank];
    for operand in operands {
        let first = rank - operand.shape.len();
        for (extent, &own) in shape[first..].iter_mut().zip(&operand.shape) {
            match (*extent, own) {
                (a, b) if a == b || b == 1 => {}
                (1, b) => *extent = b,
                (a, b) => return Err(call.wrong(format!("extents {a} and {b} do not agree"))),
            }
        }
    }
    check_len(&call.node.label(), &shape)?;
    Ok(shape)
}

/// The elements of a constant, repeated to a shape that it can be repeated to.
pub(super) fn repeat(constant: &Constant, shape: &[usize]) -> Vec<f64> {
    let mut values = constant.values.clone();
    let mut own = vec![1; shape.len() - constant.shape.len()];
    own.extend(&constant.shape);
    for axis in (0..shape.len()).rev() {
        if own[axis] != shape[axis] {
            let inner: usize = shape[axis + 1..].iter().product();
            let rows = values.chunks(inner.max(1));
            values =
                rows.flat_map(|row| (0..shape[axis]).flat_map(move |_| row.to_vec())).collect();
        }
    }
    values
}

/// A product of matrices; leading axes must be equal or one.
fn matmul(call: &Call<'_>) -> Result<Constant, OnnxError> {
    let (a, b) = (call.operand(0)?, call.operand(1)?);
    let ([.., m, k], [.., k2, n]) = (&a.shape[..], &b.shape[..]) else {
        return Err(call.wrong("it is no product of matrices".into()));
    };
    if k != k2 {
        return Err(call.wrong(format!("extents {k} and {k2} do not agree")));
    }
    let outer = |x: &Constant| Constant {
        shape: x.shape[..x.shape.len() - 2].to_vec(),
        kind: x.kind,
        values: vec![],
    };
    let mut shape = shared_shape(call, &[&outer(a), &outer(b)])?;
    let (batch, rank) = (shape.iter().product::<usize>(), shape.len());
    let whole = |x: &Constant, matrix: [usize; 2]| {
        let mut to = shape.clone();
        to.extend(matrix);
        check_len(&call.node.label(), &to)?;
        Ok::<_, OnnxError>(repeat(x, &to))
    };
    let (x, y) = (whole(a, [*m, *k])?, whole(b, [*k, *n])?);
    shape.extend([*m, *n]);
    debug_assert_eq!(shape.len(), rank + 2);
    let len = check_len(&call.node.label(), &shape)?;
    if len.saturating_mul(*k) > super::MOST {
        return Err(call.wrong("a product of constants this large".into()));
    }
    let mut values = vec![0.0; len];
    for i in 0..batch * m {
        for j in 0..*n {
            let row = &x[i * k..(i + 1) * k];
            let column = i / m * k * n + j;
            values[i * n + j] = row.iter().enumerate().map(|(t, x)| x * y[column + t * n]).sum();
        }
    }
    Ok(Constant { shape, kind: a.kind, values })
}

fn cumulative(call: &Call<'_>) -> Result<Constant, OnnxError> {
    let x = call.operand(0)?;
    let axis = call.operand(1)?.to_ints().first().copied().unwrap_or(0);
    let axis = call.axis(axis, x.shape.len())?;
    if call.int("exclusive", 0) != 0 || call.int("reverse", 0) != 0 {
        return Err(call.wrong("a sum that is exclusive or reversed".into()));
    }
    let inner: usize = x.shape[axis + 1..].iter().product();
    let mut result = x.clone();
    for part in result.values.chunks_mut((x.shape[axis] * inner).max(1)) {
        for i in inner..part.len() {
            part[i] += part[i - inner];
        }
    }
    Ok(result)
}

fn reduce(call: &Call<'_>) -> Result<Constant, OnnxError> {
    let x = call.operand(0)?;
    let rank = x.shape.len();
    let axes = call.ints(1, "axes").filter(|axes| !axes.is_empty());
    let axes = match axes {
        Some(axes) => axes.iter().map(|&axis| call.axis(axis, rank)).collect::<Result<_, _>>()?,
        None => (0..rank).collect::<Vec<_>>(),
    };
    let (start, f): (f64, fn(f64, f64) -> f64) = match call.node.op.as_str() {
        "ReduceProd" => (1.0, |a, b| a * b),
        "ReduceMax" => (f64::NEG_INFINITY, f64::max),
        "ReduceMin" => (f64::INFINITY, f64::min),
        _ => (0.0, |a, b| a + b),
    };
    let kept: Vec<usize> =
        (0..rank).map(|axis| if axes.contains(&axis) { 1 } else { x.shape[axis] }).collect();
    let mut values = vec![start; kept.iter().product()];
    for (flat, &value) in x.values.iter().enumerate() {
        let (mut rest, mut at, mut step) = (flat, 0, 1);
        for axis in (0..rank).rev() {
            at += rest % x.shape[axis] % kept[axis] * step;
            step *= kept[axis];
            rest /= x.shape[axis];
        }
        values[at] = f(values[at], value);
    }
    if call.node.op == "ReduceMean" {
        let count = x.values.len() as f64 / values.len() as f64;
        values.iter_mut().for_each(|value| *value /= count);
    }
    let kept = match call.int("keepdims", 1) {
        0 => (0..rank).filter(|axis| !axes.contains(axis)).map(|axis| x.shape[axis]).collect(),
        _ => kept,
    };
    Ok(Constant { shape: kept, kind: x.kind, values })
}
