//! Functions of one number, applied to each element.

use super::Shapes;
use super::facts::{Derivative, Effects, Facts, Operation};
use crate::{Builder, ProgramError, Var};

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Map {
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// `x · sigmoid(x)`.
    Silu,
    /// `clip(slope · x + shift, 0, 1)`.
    HardSigmoid {
        /// The slope in the middle.
        slope: f32,
        /// The value at zero.
        shift: f32,
    },
    /// `x · clip(x / 6 + 1 / 2, 0, 1)`.
    HardSwish,
    /// `x`, or `slope · x` where it is negative.
    LeakyRelu {
        /// The slope of the negative side.
        slope: f32,
    },
    /// `x`, or `alpha · (e^x - 1)` where it is negative.
    Elu {
        /// How far down the negative side goes.
        alpha: f32,
    },
    /// `min(max(x, low), high)`; its gradient at the ends is zero, as that of PyTorch's ReLU6.
    Clip {
        /// The least value.
        low: f32,
        /// The largest value.
        high: f32,
    },
    /// `ln(1 + e^x)`.
    Softplus,
    /// The exponential function.
    Exp,
    /// The natural logarithm.
    Log,
    /// The square root.
    Sqrt,
    /// `1 / x`.
    Reciprocal,
    /// The absolute value; its gradient at zero is zero.
    Abs,
    /// The error function.
    Erf,
    /// The sine.
    Sin,
    /// The cosine.
    Cos,
    /// `x^exponent`.
    Power {
        /// The exponent.
        exponent: f32,
    },
    /// `x + by`.
    Shift {
        /// What is added.
        by: f32,
    },
}

/// `unary`: `x → y`, each element by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unary {
    /// How many elements there are.
    pub len: usize,
    /// What is made of each.
    pub map: Map,
}

/// `unary_dx`: `x, dy → dx`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnaryDx(pub Unary);

impl Builder {
    /// `map` of each element of `x`.
    ///
    /// # Errors
    /// If `x` is not `f32`.
    pub fn unary(&mut self, name: &str, x: &Var, map: Map) -> Result<Var, ProgramError> {
        self.map(name, Unary { len: x.len(), map }, x)
    }
}

impl Operation for Unary {
    const FACTS: Facts<Unary> = Facts {
        name: "unary",
        shapes: |op| Shapes::f32([op.len], [op.len]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(|op, rule| match op.map {
            // The gradient is that of the result; no node.
            Map::Shift { .. } => rule.give(0, rule.dy()),
            _ => rule.emit_for(0, "dx", UnaryDx(*op), vec![rule.read(0), rule.dy()]),
        }),
    };
}

impl Operation for UnaryDx {
    const FACTS: Facts<UnaryDx> = Facts {
        name: "unary_dx",
        shapes: |op| Shapes::f32([op.0.len, op.0.len], [op.0.len]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}
