//! Operators that make one number of several: along axes, or of several tensors.

use rekindle_program::op::{Map, Pair, Transpose};

use super::{Handler, Import};
use crate::OnnxError;
use crate::proto::NodeProto;
use crate::value::{Seen, Value};

pub(super) const OPERATORS: &[(&str, Handler)] = &[
    ("ReduceMean", |i, n| reduce(i, n, Fold::Mean)),
    ("ReduceSum", |i, n| reduce(i, n, Fold::Sum)),
    ("ReduceMax", |i, n| reduce(i, n, Fold::Max)),
    ("ReduceMin", |i, n| reduce(i, n, Fold::Min)),
    ("ReduceL1", |i, n| reduce(i, n, Fold::L1)),
    ("ReduceL2", |i, n| reduce(i, n, Fold::L2)),
    ("ReduceSumSquare", |i, n| reduce(i, n, Fold::SumSquare)),
    ("ReduceLogSum", |i, n| reduce(i, n, Fold::LogSum)),
    ("ReduceLogSumExp", |i, n| reduce(i, n, Fold::LogSumExp)),
    ("CumSum", running_sum),
    ("Sum", |i, n| all(i, n, 1.0)),
    ("Mean", |i, n| all(i, n, 1.0 / n.inputs.len().max(1) as f32)),
];

type Results = Result<Vec<Value>, OnnxError>;

#[derive(Clone, Copy)]
enum Fold {
    Mean,
    Sum,
    Max,
    Min,
    L1,
    L2,
    SumSquare,
    LogSum,
    LogSumExp,
}

fn reduce(import: &mut Import<'_>, node: &NodeProto, fold: Fold) -> Results {
    let x = import.tensor(node, 0)?;
    let rank = x.order.len();
    let given = match import.constant(node, 1)? {
        Some(axes) => axes.to_ints(),
        None => node.ints("axes").unwrap_or(&[]).to_vec(),
    };
    let axes = given.iter().map(|&axis| node.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?;
    let axes = match axes.is_empty() {
        true if node.int("noop_with_empty_axes", 0) != 0 => vec![],
        true => (0..rank).collect(),
        false => axes,
    };
    let places: Vec<usize> = axes.iter().map(|&axis| x.place(axis)).collect();
    let y = folded(import, node, &x, &places, fold)?;
    match node.int("keepdims", 1) {
        0 => Ok(vec![Value::Tensor(import.without_axes(&y, &axes)?)]),
        _ => Ok(vec![Value::Tensor(y)]),
    }
}

/// What is made of the elements along the axes in memory at these places.
fn folded(
    import: &mut Import<'_>,
    node: &NodeProto,
    x: &Seen,
    places: &[usize],
    fold: Fold,
) -> Result<Seen, OnnxError> {
    let square = Map::Power { exponent: 2.0 };
    let summed = |import: &mut Import<'_>, part: &str, x: &Seen| -> Result<Seen, OnnxError> {
        let name = import.name(node, part);
        Ok(x.with(import.builder.sum(&name, &x.var, places, 1.0)?))
    };
    let largest = |import: &mut Import<'_>, part: &str, x: &Seen| -> Result<Seen, OnnxError> {
        let name = import.name(node, part);
        Ok(x.with(import.builder.max(&name, &x.var, places)?))
    };
    match fold {
        Fold::Mean => {
            let name = import.name(node, "");
            Ok(x.with(import.builder.mean(&name, &x.var, places)?))
        }
        Fold::Sum => summed(import, "", x),
        Fold::Max => largest(import, "", x),
        Fold::Min => {
            let negative = import.times(node, "negative", x, -1.0)?;
            let most = largest(import, "most", &negative)?;
            import.times(node, "", &most, -1.0)
        }
        Fold::L1 => {
            let sizes = import.mapped(node, "sizes", x, Map::Abs)?;
            summed(import, "", &sizes)
        }
        Fold::L2 => {
            let squares = import.mapped(node, "squares", x, square)?;
            let sum = summed(import, "sum", &squares)?;
            import.mapped(node, "", &sum, Map::Sqrt)
        }
        Fold::SumSquare => {
            let squares = import.mapped(node, "squares", x, square)?;
            summed(import, "", &squares)
        }
        Fold::LogSum => {
            let sum = summed(import, "sum", x)?;
            import.mapped(node, "", &sum, Map::Log)
        }
        Fold::LogSumExp => {
            let most = largest(import, "most", x)?;
            let shifted = import.paired(node, "shifted", Pair::Sub, [x, &most])?;
            let exp = import.mapped(node, "exp", &shifted, Map::Exp)?;
            let sum = summed(import, "sum", &exp)?;
            let log = import.mapped(node, "log", &sum, Map::Log)?;
            import.paired(node, "", Pair::Add, [&log, &most])
        }
    }
}

/// The sum of all operands, times a factor.
fn all(import: &mut Import<'_>, node: &NodeProto, factor: f32) -> Results {
    let mut sum = import.tensor(node, 0)?;
    for index in 1..node.inputs.len() {
        let next = import.tensor(node, index)?;
        sum = import.paired(node, "sum", Pair::Add, [&sum, &next])?;
    }
    Ok(vec![Value::Tensor(import.times(node, "", &sum, factor)?)])
}

/// Sums up to each element: the product with a triangle of ones.
fn running_sum(import: &mut Import<'_>, node: &NodeProto) -> Results {
    let x = import.tensor(node, 0)?;
    let given = import.constant(node, 1)?.and_then(|axis| axis.single()).unwrap_or(0.0);
    let axis = node.axis(given as i64, x.order.len())?;
    let extent = x.shape()[axis];
    let (exclusive, reverse) = (node.int("exclusive", 0) != 0, node.int("reverse", 0) != 0);
    let counts = |at: usize| {
        let (from, to) = (at / extent, at % extent);
        let (from, to) = if reverse { (to, from) } else { (from, to) };
        f32::from(from < to || (from == to && !exclusive))
    };
    let name = import.name(node, "triangle");
    let ones = (0..extent * extent).map(counts).collect();
    let ones = import.builder.constant(&name, &[extent, extent], ones)?;
    let last = import.with_last(&x, axis)?;
    let rows = import.builder.reshape(&last, &[last.len() / extent.max(1), extent])?;
    let name = import.name(node, "");
    let transpose = Transpose { a: false, b: false };
    let y = import.builder.matmul(&name, &rows, &ones, None, transpose)?;
    let var = import.builder.reshape(&y, last.shape())?;
    let order = (0..x.order.len()).filter(|&own| own != axis).chain([axis]).collect();
    Ok(vec![Value::Tensor(Seen { var, order, causal: false })])
}
