//! Softmax.

use super::Shapes;
use super::facts::{Derivative, Effects, Facts, Operation};
use crate::builder::wrong_shape;
use crate::{Builder, DType, ProgramError, Var};

/// Which columns a softmax looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mask {
    /// All of them.
    Full,
    /// Row `r` sees columns up to `r mod cols`; the rest is zero.
    Causal,
}

/// `softmax`: `x → y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Softmax {
    /// How many rows there are.
    pub rows: usize,
    /// The extent of the axis that sums to one.
    pub cols: usize,
    /// Which columns are seen.
    pub mask: Mask,
}

/// `softmax_dx`: `y, dy → dx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SoftmaxDx(pub Softmax);

impl Builder {
    /// The softmax of `x` along its last axis.
    ///
    /// # Errors
    /// If the mask is causal and the last two axes are not a square.
    pub fn softmax(&mut self, name: &str, x: &Var, mask: Mask) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        self.expect_type(&name, "x", x, DType::F32)?;
        let (rows, cols) = (x.rows(), x.cols());
        if mask == Mask::Causal && x.shape().iter().rev().nth(1) != Some(&cols) {
            let expected = format!("[…, {cols}, {cols}] for a causal mask");
            return Err(wrong_shape(&name, "x", expected, x));
        }
        let op = Softmax { rows, cols, mask };
        self.forward_one(name, op, &[x], x.shape().to_vec())
    }
}

impl Operation for Softmax {
    const FACTS: Facts<Softmax> = Facts {
        name: "softmax",
        shapes: |op| Shapes::f32([op.rows * op.cols], [op.rows * op.cols]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(|op, rule| {
            rule.emit_for(0, "dx", SoftmaxDx(*op), vec![rule.write(0), rule.dy()])
        }),
    };
}

impl Operation for SoftmaxDx {
    const FACTS: Facts<SoftmaxDx> = Facts {
        name: "softmax_dx",
        shapes: |SoftmaxDx(op)| Shapes::f32([op.rows * op.cols; 2], [op.rows * op.cols]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}
