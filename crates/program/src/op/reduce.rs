//! Sums, means and maxima along axes.
//!
//! A kernel reduces the middle of three axes. Axes that lie together are joined; where the reduced
//! ones do not lie together, they are reduced in steps, the last ones first.

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Binary, Pair, Scale, Shapes, View};
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

/// What is made of the elements along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The largest; equal ones share the gradient.
    Max,
}

/// `reduce`: `x: [outer, extent, inner] [, z] → y: [outer, inner]`: `factor` times the sum of `x`
/// or, with a second operand, of `x · z`; or the maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduce {
    /// What lies before the reduced axes.
    pub outer: usize,
    /// The reduced axes.
    pub extent: usize,
    /// What lies behind them.
    pub inner: usize,
    /// What is computed.
    pub reduction: Reduction,
    /// Whether a second factor is read.
    pub product: bool,
    /// What a sum is multiplied with: one, or the reciprocal of a mean's count.
    pub factor: f32,
}

impl Builder {
    /// The sum along `axes`, which keep extent one, times `factor`.
    ///
    /// # Errors
    /// If there is no such axis.
    pub fn sum(
        &mut self,
        name: &str,
        x: &Var,
        axes: &[usize],
        factor: f32,
    ) -> Result<Var, ProgramError> {
        self.reduce(name, x, axes, Reduction::Sum, factor)
    }

    /// The mean along `axes`, which keep extent one.
    ///
    /// # Errors
    /// If there is no such axis.
    pub fn mean(&mut self, name: &str, x: &Var, axes: &[usize]) -> Result<Var, ProgramError> {
        let extents = axes.iter().filter_map(|&axis| x.shape().get(axis));
        let count: usize = extents.product();
        self.reduce(name, x, axes, Reduction::Sum, 1.0 / count as f32)
    }

    /// The maximum along `axes`, which keep extent one.
    ///
    /// # Errors
    /// If there is no such axis.
    pub fn max(&mut self, name: &str, x: &Var, axes: &[usize]) -> Result<Var, ProgramError> {
        self.reduce(name, x, axes, Reduction::Max, 1.0)
    }

    fn reduce(
        &mut self,
        name: &str,
        x: &Var,
        axes: &[usize],
        reduction: Reduction,
        factor: f32,
    ) -> Result<Var, ProgramError> {
        let full = self.scoped(name);
        self.expect_type(&full, "x", x, DType::F32)?;
        if let Some(axis) = axes.iter().find(|axis| **axis >= x.shape().len()) {
            return Err(ProgramError::Argument {
                node: full,
                what: "axis",
                expected: format!("below {}", x.shape().len()),
                found: axis.to_string(),
            });
        }
        let shape = x.shape().to_vec();
        let reduced: Vec<bool> = (0..shape.len()).map(|axis| axes.contains(&axis)).collect();
        let steps = Reduce::steps(&shape, &reduced);
        let count = steps.len();
        let mut y = x.clone();
        for (step, op) in steps.into_iter().enumerate() {
            let last = step + 1 == count;
            let op = Reduce { reduction, factor: if last { factor } else { 1.0 }, ..op };
            let name = if last { full.clone() } else { format!("{full}.{step}") };
            y = self.forward_one(name, op, &[&y], vec![op.outer, op.inner])?;
        }
        let kept = shape.iter().zip(&reduced).map(|(&n, &reduced)| if reduced { 1 } else { n });
        let y = self.reshape(&y, &kept.collect::<Vec<_>>())?;
        match count == 0 && factor != 1.0 {
            true => self.scale(name, &y, factor),
            false => Ok(y),
        }
    }
}

impl Operation for Reduce {
    const FACTS: Facts<Reduce> = Facts {
        name: "reduce",
        shapes: |op| {
            let len = op.outer * op.extent * op.inner;
            Shapes::f32([len], [op.outer * op.inner]).and_read(op.product, len)
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(Reduce::gradient),
    };
}

impl Reduce {
    /// The sums, in their order, that reduce a tensor of this shape along the marked axes.
    pub(super) fn steps(shape: &[usize], reduced: &[bool]) -> Vec<Reduce> {
        let mut runs: Vec<(usize, bool)> = Vec::new();
        for (&extent, &reduced) in shape.iter().zip(reduced).filter(|(extent, _)| **extent > 1) {
            match runs.last_mut() {
                Some((last, before)) if *before == reduced => *last *= extent,
                _ => runs.push((extent, reduced)),
            }
        }
        let mut steps = Vec::new();
        while let Some(at) = runs.iter().rposition(|(_, reduced)| *reduced) {
            let product = |runs: &[(usize, bool)]| runs.iter().map(|(extent, _)| extent).product();
            steps.push(Reduce {
                outer: product(&runs[..at]),
                extent: runs[at].0,
                inner: product(&runs[at + 1..]),
                reduction: Reduction::Sum,
                product: false,
                factor: 1.0,
            });
            runs.remove(at);
        }
        steps
    }

    /// Products are summed in the backward pass alone, which is not differentiated.
    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        if self.reduction == Reduction::Max {
            return self.max_gradient(rule);
        }
        let Reduce { outer, extent, inner, factor, .. } = *self;
        let mut dy = rule.dy();
        if factor != 1.0 {
            let op = Scale { len: outer * inner, factor };
            dy = rule.emit("dy", op, vec![dy], &[rule.write(0)])?[0];
        }
        rule.emit_for(0, "dx", View::repeat(outer, extent, inner), vec![dy])
    }

    /// Each of the largest elements gets an equal share, as in PyTorch's `amax`.
    fn max_gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let (x, y, dy) = (rule.read(0), rule.write(0), rule.dy());
        let largest = rule.emit("largest", self.repeated(Pair::Equal), vec![x, y], &[x])?[0];
        let count = Reduce { reduction: Reduction::Sum, ..*self };
        let count = rule.emit("count", count, vec![largest], &[y])?[0];
        let share = Binary::whole(self.outer * self.inner, Pair::Div);
        let share = rule.emit("share", share, vec![dy, count], &[y])?[0];
        rule.emit_for(0, "dx", self.repeated(Pair::Mul), vec![largest, share])
    }

    /// A function of what is reduced and of the result, repeated.
    fn repeated(&self, pair: Pair) -> Binary {
        let mut op = Binary::whole(1, pair);
        let first = Binary::AXES - 3;
        op.shape[first..].copy_from_slice(&[self.outer, self.extent, self.inner]);
        op.repeats_b[first + 1] = true;
        op
    }
}
