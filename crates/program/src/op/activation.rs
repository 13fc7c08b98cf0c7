//! Activation functions: ReLU and GELU.

use super::Shapes;
use super::facts::{Derivative, Effects, Facts, Operation};
use crate::{Builder, ProgramError, Var};

/// `relu`: `x → y = max(x, 0)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Relu {
    /// How many elements there are.
    pub len: usize,
}

/// `relu_dx`: `y, dy → dx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReluDx(pub Relu);

/// Which function is meant by GELU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GeluKind {
    /// The exact one, by the error function.
    Erf,
    /// The approximation by the hyperbolic tangent (GPT-2).
    Tanh,
}

/// `gelu`: `x → y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gelu {
    /// How many elements there are.
    pub len: usize,
    /// Exact or approximated.
    pub kind: GeluKind,
}

/// `gelu_dx`: `x, dy → dx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GeluDx(pub Gelu);

impl Builder {
    /// `max(x, 0)`.
    ///
    /// # Errors
    /// If `x` is not `f32`.
    pub fn relu(&mut self, name: &str, x: &Var) -> Result<Var, ProgramError> {
        self.map(name, Relu { len: x.len() }, x)
    }

    /// GELU, exact or approximated.
    ///
    /// # Errors
    /// If `x` is not `f32`.
    pub fn gelu(&mut self, name: &str, x: &Var, kind: GeluKind) -> Result<Var, ProgramError> {
        let len = x.len();
        self.map(name, Gelu { len, kind }, x)
    }
}

impl Operation for Relu {
    const FACTS: Facts<Relu> = Facts {
        name: "relu",
        shapes: |op| Shapes::f32([op.len], [op.len]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(|op, rule| {
            rule.emit_for(0, "dx", ReluDx(*op), vec![rule.write(0), rule.dy()])
        }),
    };
}

impl Operation for ReluDx {
    const FACTS: Facts<ReluDx> = Facts {
        name: "relu_dx",
        shapes: |op| Shapes::f32([op.0.len, op.0.len], [op.0.len]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}

impl Operation for Gelu {
    const FACTS: Facts<Gelu> = Facts {
        name: "gelu",
        shapes: |op| Shapes::f32([op.len], [op.len]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(|op, rule| {
            rule.emit_for(0, "dx", GeluDx(*op), vec![rule.read(0), rule.dy()])
        }),
    };
}

impl Operation for GeluDx {
    const FACTS: Facts<GeluDx> = Facts {
        name: "gelu_dx",
        shapes: |op| Shapes::f32([op.0.len, op.0.len], [op.0.len]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}
