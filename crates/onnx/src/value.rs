//! What an operator reads and gives: a tensor seen through an order of its axes, a constant, or
//! something that is not made yet.

use std::rc::Rc;

use rekindle_program::Var;

use crate::fold::Constant;

/// A tensor of the program whose memory has the axes of the ONNX value in some order.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The tensor, in the shape that it has in memory.
    pub(crate) var: Var,
    /// Axis `i` in memory is axis `order[i]` of the value.
    pub(crate) order: Vec<usize>,
    /// Scores whose later columns a softmax does not see.
    pub(crate) causal: bool,
}

/// A value of the graph.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Computed by the program.
    Tensor(Seen),
    /// Known.
    Constant(Rc<Constant>),
    /// An initializer that is trained, of this name and shape.
    Parameter(String, Vec<usize>),
    /// Uniform random numbers of this shape.
    Uniform(Vec<usize>),
    /// One with this chance and zero otherwise, of this shape.
    Coin(Vec<usize>, f64),
    /// A sequence.
    List(Vec<Value>),
}

impl Seen {
    /// A tensor in the order of its own axes.
    pub(crate) fn plain(var: Var) -> Seen {
        let order = (0..var.shape().len()).collect();
        Seen { var, order, causal: false }
    }

    /// The same order with another tensor.
    pub(crate) fn with(&self, var: Var) -> Seen {
        Seen { var, order: self.order.clone(), causal: false }
    }

    /// The shape of the value.
    pub(crate) fn shape(&self) -> Vec<usize> {
        let mut shape = vec![0; self.order.len()];
        for (&axis, &extent) in self.order.iter().zip(self.var.shape()) {
            shape[axis] = extent;
        }
        shape
    }

    /// Where axis `axis` of the value is in memory.
    pub(crate) fn place(&self, axis: usize) -> usize {
        self.order.iter().position(|&own| own == axis).unwrap_or(axis)
    }

    /// The value with its axes in another order: axis `i` is the present one's axis `order[i]`.
    pub(crate) fn transposed(&self, order: &[usize]) -> Seen {
        let place = |axis: usize| order.iter().position(|&from| from == axis).unwrap_or(axis);
        let order = self.order.iter().map(|&axis| place(axis)).collect();
        Seen { var: self.var.clone(), order, causal: false }
    }
}

impl Value {
    /// Its shape.
    pub(crate) fn shape(&self) -> Vec<usize> {
        match self {
            Value::Tensor(seen) => seen.shape(),
            Value::Constant(constant) => constant.shape.clone(),
            Value::Parameter(_, shape) | Value::Uniform(shape) | Value::Coin(shape, _) => {
                shape.clone()
            }
            Value::List(_) => vec![],
        }
    }
}

impl From<Constant> for Value {
    fn from(constant: Constant) -> Value {
        Value::Constant(Rc::new(constant))
    }
}
