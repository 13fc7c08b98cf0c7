//! Constants, and what is computed from constants alone: shapes, positions, masks, rotations.
//!
//! In: an operator and constants. Out: its results as constants, or that it is not one of these.
//! All numbers are held in `f64`, in which those of every type that is read are exact up to 53
//! bits; floats are rounded to `f32` after every operation, as the exporter's own would be.
//!
//! Limits: a constant has at most [`MOST`] elements, so that a damaged shape asks for no memory.

use crate::OnnxError;
use crate::proto::{Attribute, Elements, NodeProto};
use crate::wire::damaged;

pub(crate) mod arithmetic;
pub(crate) mod shapes;

/// The most elements of a constant.
const MOST: usize = 1 << 25;

/// What the elements of a constant are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Bool,
    Int,
    Float,
}

/// A tensor whose elements are known.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Constant {
    pub(crate) shape: Vec<usize>,
    pub(crate) kind: Kind,
    pub(crate) values: Vec<f64>,
}

/// Fails if a constant of this shape would be too large.
pub(crate) fn check_len(name: &str, shape: &[usize]) -> Result<usize, OnnxError> {
    let len = shape.iter().try_fold(1usize, |len, &extent| len.checked_mul(extent));
    len.filter(|&len| len <= MOST).ok_or_else(|| {
        damaged(format!("`{name}` is a constant of shape {shape:?}, of more than {MOST} elements"))
    })
}

impl Constant {
    /// Whole numbers along one axis.
    pub(crate) fn ints(values: impl IntoIterator<Item = i64>) -> Constant {
        let values: Vec<f64> = values.into_iter().map(|value| value as f64).collect();
        Constant { shape: vec![values.len()], kind: Kind::Int, values }
    }

    /// A single number.
    pub(crate) fn scalar(kind: Kind, value: f64) -> Constant {
        Constant { shape: vec![], kind, values: vec![value] }
    }

    /// The elements of a tensor of the file; as many bytes as the shape says.
    pub(crate) fn from_bytes(elements: Elements, shape: Vec<usize>, bytes: &[u8]) -> Constant {
        fn words<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
            bytes.as_chunks::<N>().0.iter().map(|&word| read(word)).collect()
        }
        let (kind, values) = match elements {
            Elements::F32 => (Kind::Float, words(bytes, |w| f32::from_le_bytes(w).into())),
            Elements::F64 => (Kind::Float, words(bytes, f64::from_le_bytes)),
            Elements::I64 => (Kind::Int, words(bytes, |w| i64::from_le_bytes(w) as f64)),
            Elements::I32 => (Kind::Int, words(bytes, |w| i32::from_le_bytes(w).into())),
            Elements::Bool | Elements::Other(_) => {
                (Kind::Bool, bytes.iter().map(|&byte| f64::from(byte != 0)).collect())
            }
        };
        Constant { shape, kind, values }
    }

    /// The only element, if there is just one.
    pub(crate) fn single(&self) -> Option<f64> {
        match self.values[..] {
            [value] => Some(value),
            _ => None,
        }
    }

    /// The elements as whole numbers.
    pub(crate) fn to_ints(&self) -> Vec<i64> {
        self.values.iter().map(|&value| value as i64).collect()
    }

    /// The elements as floats.
    pub(crate) fn to_floats(&self) -> Vec<f32> {
        self.values.iter().map(|&value| value as f32).collect()
    }

    /// The same numbers, rounded as its kind holds them.
    pub(crate) fn rounded(mut self) -> Constant {
        for value in &mut self.values {
            *value = match self.kind {
                Kind::Float => f64::from(*value as f32),
                Kind::Int => value.trunc(),
                Kind::Bool => f64::from(*value != 0.0),
            };
        }
        self
    }

    /// Without repetition: extent one along every axis on which all elements are alike.
    pub(crate) fn shrunk(&self) -> Constant {
        let mut constant = self.clone();
        for axis in 0..constant.shape.len() {
            let extent = constant.shape[axis];
            let inner: usize = constant.shape[axis + 1..].iter().product();
            if extent < 2 || inner == 0 {
                continue;
            }
            let parts = || constant.values.chunks(extent * inner);
            let alike = parts().all(|part| part.chunks(inner).all(|row| row == &part[..inner]));
            if alike {
                let first = parts().flat_map(|part| part[..inner].to_vec()).collect();
                constant.shape[axis] = 1;
                constant.values = first;
            }
        }
        constant
    }
}

/// The results of `node` on these operands, if it is one that folds.
pub(crate) fn fold(
    node: &NodeProto,
    operands: &[Option<&Constant>],
) -> Result<Option<Vec<Constant>>, OnnxError> {
    let call = Call { node, operands };
    if let Some(result) = arithmetic::fold(&call)? {
        return Ok(Some(vec![result.rounded()]));
    }
    shapes::fold(&call)
}

/// An operator with constant operands.
pub(crate) struct Call<'a> {
    pub(crate) node: &'a NodeProto,
    pub(crate) operands: &'a [Option<&'a Constant>],
}

impl Call<'_> {
    /// Operand `index`, which must be there.
    pub(crate) fn operand(&self, index: usize) -> Result<&Constant, OnnxError> {
        let operand = self.operands.get(index).copied().flatten();
        operand.ok_or_else(|| self.wrong(format!("it lacks operand {index}")))
    }

    /// Operand `index` or the attribute of this name, as whole numbers.
    pub(crate) fn ints(&self, index: usize, name: &str) -> Option<Vec<i64>> {
        let operand = self.operands.get(index).copied().flatten();
        match (operand, self.node.attributes.get(name)) {
            (Some(operand), _) => Some(operand.to_ints()),
            (None, Some(Attribute::Ints(ints))) => Some(ints.clone()),
            (None, Some(Attribute::Int(int))) => Some(vec![*int]),
            _ => None,
        }
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> i64 {
        self.node.int(name, default)
    }

    pub(crate) fn wrong(&self, why: String) -> OnnxError {
        self.node.wrong(why)
    }

    /// An axis of a tensor of `rank` axes; negative ones count from the end.
    pub(crate) fn axis(&self, axis: i64, rank: usize) -> Result<usize, OnnxError> {
        self.node.axis(axis, rank)
    }
}

impl NodeProto {
    /// The error for this node.
    pub(crate) fn wrong(&self, why: impl Into<String>) -> OnnxError {
        OnnxError::Node { node: self.label(), op: self.op.clone(), why: why.into() }
    }

    /// What a person finds it by.
    pub(crate) fn label(&self) -> String {
        match self.name.is_empty() {
            true => self.outputs.first().cloned().unwrap_or_default(),
            false => self.name.clone(),
        }
    }

    /// A whole number among the attributes.
    pub(crate) fn int(&self, name: &str, default: i64) -> i64 {
        match self.attributes.get(name) {
            Some(Attribute::Int(int)) => *int,
            _ => default,
        }
    }

    /// A float among the attributes.
    pub(crate) fn float(&self, name: &str, default: f32) -> f32 {
        match self.attributes.get(name) {
            Some(Attribute::Float(float)) => *float,
            _ => default,
        }
    }

    /// A text among the attributes.
    pub(crate) fn text<'a>(&'a self, name: &str, default: &'a str) -> &'a str {
        match self.attributes.get(name) {
            Some(Attribute::Text(text)) => text,
            _ => default,
        }
    }

    /// Whole numbers among the attributes.
    pub(crate) fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attributes.get(name) {
            Some(Attribute::Ints(ints)) => Some(ints),
            _ => None,
        }
    }

    /// An axis of a tensor of `rank` axes; negative ones count from the end.
    pub(crate) fn axis(&self, axis: i64, rank: usize) -> Result<usize, OnnxError> {
        let from_start = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
        let axis = usize::try_from(from_start).ok().filter(|&found| found < rank);
        axis.ok_or_else(|| self.wrong(format!("axis {from_start} of {rank} axes")))
    }
}
