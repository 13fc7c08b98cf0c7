//! Addition and scaling, element by element.

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Op, Shapes};
use crate::{Builder, DType, ProgramError, Var};

/// `add`: `a, b → a + b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Add {
    /// How many elements there are.
    pub len: usize,
}

/// `scale`: `x → factor · x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// How many elements there are.
    pub len: usize,
    /// What each is multiplied with.
    pub factor: f32,
}

impl Builder {
    /// `a + b`.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn add(&mut self, name: &str, a: &Var, b: &Var) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        self.expect_type(&name, "a", a, DType::F32)?;
        self.expect_shape(&name, "b", b, a.shape())?;
        let op = Add { len: a.len() };
        self.forward_one(name, op, &[a, b], a.shape().to_vec())
    }

    /// `factor · x`.
    ///
    /// # Errors
    /// If `x` is not `f32`. So for every map of one operand.
    pub fn scale(&mut self, name: &str, x: &Var, factor: f32) -> Result<Var, ProgramError> {
        let len = x.len();
        self.map(name, Scale { len, factor }, x)
    }

    /// An op that maps each element of `x` by itself.
    pub(super) fn map(
        &mut self,
        name: &str,
        op: impl Into<Op>,
        x: &Var,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        self.expect_type(&name, "x", x, DType::F32)?;
        self.forward_one(name, op, &[x], x.shape().to_vec())
    }
}

impl Operation for Add {
    const FACTS: Facts<Add> = Facts {
        name: "add",
        shapes: |op| Shapes::f32([op.len, op.len], [op.len]),
        effect: Effects::Pure,
        flops: |_| 0,
        // Both terms share the gradient of the sum; no node.
        derivative: Derivative::Rule(|_, rule| {
            let dy = rule.dy();
            rule.give(0, dy)?;
            rule.give(1, dy)
        }),
    };
}

impl Operation for Scale {
    const FACTS: Facts<Scale> = Facts {
        name: "scale",
        shapes: |op| Shapes::f32([op.len], [op.len]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(|op, rule| rule.emit_for(0, "dx", *op, vec![rule.dy()])),
    };
}
