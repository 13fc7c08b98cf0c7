//! Maps of single elements: ReLU, GELU, dropout, addition, scaling.

use super::Op;
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

/// Which GELU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gelu {
    /// The exact one, by the error function.
    Erf,
    /// The approximation by the hyperbolic tangent (GPT-2).
    Tanh,
}

/// `dropout`: `x → y`: each element is zeroed with probability `p` and scaled by `1 / (1 - p)`
/// otherwise. The mask is a pure function of (seed, step, site, element), so the gradient is the
/// same op on `dy` with the same site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Elements.
    pub len: usize,
    /// Probability of zero.
    pub p: f32,
    /// Which dropout of the program this is.
    pub site: u32,
}

impl Builder {
    /// `max(x, 0)`.
    ///
    /// # Errors
    /// If `x` is not `f32`. So for every map of one operand.
    pub fn relu(&mut self, name: &str, x: &Var) -> Result<Var, ProgramError> {
        self.map(name, Op::Relu { len: x.len() }, x)
    }

    /// GELU, exact or approximated.
    ///
    /// # Errors
    /// As [`Builder::relu`].
    pub fn gelu(&mut self, name: &str, x: &Var, kind: Gelu) -> Result<Var, ProgramError> {
        let len = x.len();
        self.map(name, Op::Gelu { len, kind }, x)
    }

    /// `factor · x`.
    ///
    /// # Errors
    /// As [`Builder::relu`].
    pub fn scale(&mut self, name: &str, x: &Var, factor: f32) -> Result<Var, ProgramError> {
        let len = x.len();
        self.map(name, Op::Scale { len, factor }, x)
    }

    /// Zeroes each element with probability `p`, and scales the others by `1 / (1 - p)`. If `p` is
    /// zero this is `x` itself.
    ///
    /// # Errors
    /// If `p` is not in `[0, 1)`.
    pub fn dropout(&mut self, name: &str, x: &Var, p: f32) -> Result<Var, ProgramError> {
        if !(0.0..1.0).contains(&p) {
            return Err(ProgramError::Argument {
                node: self.scoped(name),
                what: "dropout probability",
                expected: "at least 0 and below 1".into(),
                found: p.to_string(),
            });
        }
        if p == 0.0 {
            return Ok(x.clone());
        }
        let (len, site) = (x.len(), self.sites);
        let y = self.map(name, Op::Dropout(Dropout { len, p, site }), x)?;
        self.sites += 1;
        Ok(y)
    }

    /// `a + b`.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn add(&mut self, name: &str, a: &Var, b: &Var) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        self.expect_type(&name, "a", a, DType::F32)?;
        self.expect_shape(&name, "b", b, a.shape())?;
        let op = Op::Add { len: a.len() };
        self.forward_one(name, op, &[a, b], a.shape().to_vec())
    }

    fn map(&mut self, name: &str, op: Op, x: &Var) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        self.expect_type(&name, "x", x, DType::F32)?;
        self.forward_one(name, op, &[x], x.shape().to_vec())
    }
}

pub(crate) fn relu_gradient(len: usize, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
    let reads = vec![rule.write(0), rule.dy()];
    rule.emit_for(0, "dx", Op::ReluDx { len }, reads)
}

pub(crate) fn gelu_gradient(
    len: usize,
    kind: Gelu,
    rule: &mut Rule<'_>,
) -> Result<(), ProgramError> {
    let reads = vec![rule.read(0), rule.dy()];
    rule.emit_for(0, "dx", Op::GeluDx { len, kind }, reads)
}

pub(crate) fn scale_gradient(
    len: usize,
    factor: f32,
    rule: &mut Rule<'_>,
) -> Result<(), ProgramError> {
    let reads = vec![rule.dy()];
    rule.emit_for(0, "dx", Op::Scale { len, factor }, reads)
}

/// Both terms share the gradient of the sum; no node.
pub(crate) fn add_gradient(rule: &mut Rule<'_>) -> Result<(), ProgramError> {
    let dy = rule.dy();
    rule.give(0, dy)?;
    rule.give(1, dy)
}

impl Dropout {
    /// The same mask on the gradient.
    pub(crate) fn gradient(self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let reads = vec![rule.dy()];
        rule.emit_for(0, "dx", Op::Dropout(self), reads)
    }
}
