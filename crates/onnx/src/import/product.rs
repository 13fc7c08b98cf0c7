//! Products of matrices.

use rekindle_program::Var;
use rekindle_program::op::{HeadOperand, Heads, Pair, Transpose};

use super::{Handler, Import};
use crate::OnnxError;
use crate::proto::NodeProto;
use crate::value::{Seen, Value};

pub(super) const OPERATORS: &[(&str, Handler)] = &[("Gemm", gemm), ("MatMul", matmul)];

type Results = Result<Vec<Value>, OnnxError>;

/// A matrix in memory, and whether it is stored transposed.
fn stored(seen: &Seen) -> (Var, bool) {
    (seen.var.clone(), seen.order == [1, 0])
}

fn gemm(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let (a, b) = (import.tensor(node, 0)?, import.tensor(node, 1)?);
    if a.order.len() != 2 || b.order.len() != 2 {
        return Err(node.wrong("factors that are no matrices"));
    }
    let flip = |seen: Seen, flipped: i64| match flipped {
        0 => seen,
        _ => seen.transposed(&[1, 0]),
    };
    let a = flip(a, node.int("transA", 0));
    let b = flip(b, node.int("transB", 0));
    let ((a, a_transposed), (b, b_transposed)) = (stored(&a), stored(&b));
    let (alpha, beta) = (node.float("alpha", 1.0), node.float("beta", 1.0));
    let columns = if b_transposed { b.shape()[0] } else { b.shape()[1] };
    let bias = match import.optional(node, 2)? {
        Some(bias) => {
            let bias = import.floats(node, bias)?;
            Some(import.plain(&bias)?)
        }
        None => None,
    };
    let plain = alpha == 1.0 && beta == 1.0;
    let fused = bias.as_ref().filter(|bias| plain && bias.shape() == [columns]);
    let transpose = Transpose { a: a_transposed, b: b_transposed };
    let name = import.name(node, if bias.is_some() && fused.is_none() { "product" } else { "" });
    let y = import.builder.matmul(&name, &a, &b, fused, transpose)?;
    if fused.is_some() || (bias.is_none() && alpha == 1.0) {
        return Ok(vec![Value::Tensor(Seen::plain(y))]);
    }
    let name = import.name(node, "alpha");
    let y = import.builder.scale(&name, &y, alpha)?;
    let Some(bias) = bias else {
        return Ok(vec![Value::Tensor(Seen::plain(y))]);
    };
    let name = import.name(node, "beta");
    let bias = import.builder.scale(&name, &bias, beta)?;
    let name = import.name(node, "");
    let y = import.builder.binary(&name, Pair::Add, &y, &bias)?;
    Ok(vec![Value::Tensor(Seen::plain(y))])
}

fn matmul(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let (a, b) = (import.tensor(node, 0)?, import.tensor(node, 1)?);
    match (a.order.len(), b.order.len()) {
        (0 | 1, _) | (_, 0 | 1) => Err(node.wrong("factors that are no matrices")),
        (_, 2) => linear(import, node, &a, &b),
        _ => by_batch(import, node, &a, &b),
    }
}

/// The last axis of `a` times a matrix; a bias that is added next is part of it.
fn linear(import: &mut Import<'_>, node: &NodeProto, a: &Seen, b: &Seen) -> Results {
    let last = a.order.len() - 1;
    let a = match a.order[last] == last {
        true => a.clone(),
        false => Seen::plain(import.plain(a)?),
    };
    let (b, transposed) = stored(b);
    let columns = if transposed { b.shape()[0] } else { b.shape()[1] };
    let inner = a.var.shape()[last];
    let rows = import.builder.reshape(&a.var, &[a.var.len() / inner.max(1), inner])?;
    let bias = bias_behind(import, node, columns);
    let bias = match bias {
        Some((at, name, shape)) => Some((at, import.parameter(&name, &shape)?.var)),
        None => None,
    };
    let transpose = Transpose { a: false, b: transposed };
    let name = import.name(node, "");
    let bias_var = bias.as_ref().map(|(_, var)| var);
    let y = import.builder.matmul(&name, &rows, &b, bias_var, transpose)?;
    let mut shape = a.var.shape().to_vec();
    shape[last] = columns;
    let y = import.builder.reshape(&y, &shape)?;
    let y = Value::Tensor(a.with(y));
    if let Some((at, _)) = bias {
        import.done.insert(at);
        if let Some(name) = import.onnx.graph.nodes[at].outputs.first() {
            import.values.insert(name.clone(), y.clone());
        }
    }
    Ok(vec![y])
}

/// The addition of a parameter with a number for each column, if nothing else reads the product.
fn bias_behind(
    import: &Import<'_>,
    node: &NodeProto,
    columns: usize,
) -> Option<(usize, String, Vec<usize>)> {
    let (at, add) = import.only_reader(node, &["Add"])?;
    let own = node.outputs.first()?;
    let other = add.inputs.iter().find(|input| *input != own)?;
    match import.values.get(other)? {
        Value::Parameter(name, shape) if shape[..] == [columns] => {
            Some((at, name.clone(), shape.clone()))
        }
        _ => None,
    }
}

/// Products for each batch and head, where a linear map left the heads.
fn by_batch(import: &mut Import<'_>, node: &NodeProto, a: &Seen, b: &Seen) -> Results {
    let (a_shape, b_shape) = (a.shape(), b.shape());
    let rank = a_shape.len().max(b_shape.len());
    let (a_outer, b_outer) = (&a_shape[..a_shape.len() - 2], &b_shape[..b_shape.len() - 2]);
    let outer = |axis: usize| {
        let extent =
            |own: &[usize]| (axis + own.len()).checked_sub(rank - 2).map_or(1, |axis| own[axis]);
        extent(a_outer).max(extent(b_outer))
    };
    let outer: Vec<usize> = (0..rank - 2).map(outer).collect();
    let mut operands = Vec::new();
    for (seen, shape) in [(a, &a_shape), (b, &b_shape)] {
        let mut to = outer.clone();
        to.extend(&shape[shape.len() - 2..]);
        let whole = import.expanded(node, seen, &to)?;
        operands.push(head_operand(import, &whole, &outer)?);
    }
    let interleaved = outer.len() == 2
        && import
            .only_reader(node, &["Transpose"])
            .is_some_and(|(_, reader)| reader.ints("perm") == Some(&[0, 2, 1, 3]));
    let heads = if interleaved { Heads::Interleaved } else { Heads::Outer };
    let name = import.name(node, "");
    let [a, b] = [0, 1].map(|k| {
        let (var, heads, transposed): &(Var, Heads, bool) = &operands[k];
        HeadOperand { var, heads: *heads, transposed: *transposed }
    });
    let y = import.builder.head_matmul(&name, a, b, heads, 1.0)?;
    if interleaved {
        return Ok(vec![Value::Tensor(Seen { var: y, order: vec![0, 2, 1, 3], causal: false })]);
    }
    let mut shape = outer;
    shape.extend(&y.shape()[2..]);
    let y = import.builder.reshape(&y, &shape)?;
    Ok(vec![Value::Tensor(Seen::plain(y))])
}

/// A factor as `[batch, heads, rows, columns]`, in one of the layouts that a product takes.
pub(super) fn head_operand(
    import: &mut Import<'_>,
    seen: &Seen,
    outer: &[usize],
) -> Result<(Var, Heads, bool), OnnxError> {
    let (var, heads, transposed) = match seen.order[..] {
        [0, 2, 1, 3] => (seen.var.clone(), Heads::Interleaved, false),
        [0, 3, 1, 2] => (seen.var.clone(), Heads::Interleaved, true),
        _ => {
            let rank = seen.order.len();
            let mut swapped: Vec<usize> = (0..rank).collect();
            swapped.swap(rank - 1, rank - 2);
            let transposed = seen.order == swapped;
            let var = match transposed {
                true => seen.var.clone(),
                false => import.plain(seen)?,
            };
            (var, Heads::Outer, transposed)
        }
    };
    if heads == Heads::Interleaved {
        return Ok((var, heads, transposed));
    }
    let shape = var.shape();
    let [rows, cols] = [shape[shape.len() - 2], shape[shape.len() - 1]];
    // Heads are the last of the outer axes; the others are the batch.
    let (heads_count, batch) = match outer.split_last() {
        Some((&last, rest)) if !rest.is_empty() => (last, rest.iter().product()),
        Some((&only, _)) => (1, only),
        None => (1, 1),
    };
    let var = import.builder.reshape(&var, &[batch, heads_count, rows, cols])?;
    Ok((var, heads, transposed))
}
