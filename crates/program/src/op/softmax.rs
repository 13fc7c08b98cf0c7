//! Softmax, and the cross-entropy of its logarithm.

use super::Op;
use crate::autodiff::Rule;
use crate::builder::wrong_shape;
use crate::{Builder, DType, ProgramError, Var};

/// Which columns a softmax looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mask {
    /// All.
    Full,
    /// Row `r` sees columns up to `r mod cols`; the rest is zero.
    Causal,
}

/// `softmax`: `x → y`; `softmax_dx`: `y, dy → dx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Softmax {
    /// Rows.
    pub rows: usize,
    /// The axis that sums to one.
    pub cols: usize,
    /// Which columns are seen.
    pub mask: Mask,
}

/// `cross_entropy`: `logits, labels → loss, lse` (`loss: [1]`, the mean over rows whose label is
/// not [`CrossEntropy::IGNORE`]; `lse: [rows]`, the log of the sum of exponentials);
/// `cross_entropy_dx`: `logits, labels, lse, dloss → dlogits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CrossEntropy {
    /// Rows.
    pub rows: usize,
    /// Classes.
    pub classes: usize,
}

impl CrossEntropy {
    /// Rows with this label do not count.
    pub const IGNORE: i64 = -100;
}

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
        let op = Op::Softmax(Softmax { rows, cols, mask });
        self.forward_one(name, op, &[x], x.shape().to_vec())
    }

    /// The mean cross-entropy of `logits: [rows…, classes]` and `labels: [rows…]`, over the rows
    /// whose label is not [`CrossEntropy::IGNORE`].
    ///
    /// # Errors
    /// If the shapes do not agree.
    pub fn cross_entropy(
        &mut self,
        name: &str,
        logits: &Var,
        labels: &Var,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        self.expect_type(&name, "logits", logits, DType::F32)?;
        self.expect_type(&name, "labels", labels, DType::I64)?;
        let (rows, classes) = (logits.rows(), logits.cols());
        if labels.len() != rows {
            let expected = format!("of {rows} elements, one for each row of logits");
            return Err(wrong_shape(&name, "labels", expected, labels));
        }
        let op = Op::CrossEntropy(CrossEntropy { rows, classes });
        let writes = vec![(vec![1], DType::F32), (vec![rows], DType::F32)];
        let mut vars = self.forward(name, op, &[logits, labels], writes)?;
        Ok(vars.swap_remove(0))
    }
}

impl Softmax {
    pub(crate) fn gradient(self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let reads = vec![rule.write(0), rule.dy()];
        rule.emit_for(0, "dx", Op::SoftmaxDx(self), reads)
    }
}

impl CrossEntropy {
    pub(crate) fn gradient(self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let reads = vec![rule.read(0), rule.read(1), rule.write(1), rule.dy()];
        rule.emit_for(0, "dx", Op::CrossEntropyDx(self), reads)
    }
}
