//! Layer normalisation.

use super::Op;
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

/// `layer_norm`: `x, gamma, beta → y, stats` (`[rows, 2]`: mean, reciprocal deviation);
/// `layer_norm_dx`: `x, stats, gamma, dy → dx, dgamma, dbeta`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// Rows.
    pub rows: usize,
    /// The normalised axis.
    pub cols: usize,
    /// Added to the variance.
    pub eps: f32,
}

impl Builder {
    /// Normalises each row of `x` along its last axis.
    ///
    /// # Errors
    /// If the shapes do not agree.
    pub fn layer_norm(
        &mut self,
        name: &str,
        x: &Var,
        gamma: &Var,
        beta: &Var,
        eps: f32,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let (rows, cols) = (x.rows(), x.cols());
        self.expect_type(&name, "x", x, DType::F32)?;
        self.expect_shape(&name, "gamma", gamma, &[cols])?;
        self.expect_shape(&name, "beta", beta, &[cols])?;
        let op = Op::LayerNorm(LayerNorm { rows, cols, eps });
        let y = (x.shape().to_vec(), DType::F32);
        let stats = (vec![rows, 2], DType::F32);
        let mut vars = self.forward(name, op, &[x, gamma, beta], vec![y, stats])?;
        Ok(vars.swap_remove(0))
    }
}

impl LayerNorm {
    pub(crate) fn gradient(self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let [x, gamma, beta] = [0, 1, 2].map(|k| rule.read(k));
        let reads = vec![x, rule.write(1), gamma, rule.dy()];
        let written = rule.emit("dx", Op::LayerNormDx(self), reads, &[x, gamma, beta])?;
        rule.give(1, written[1])?;
        rule.give(2, written[2])?;
        rule.give(0, written[0])
    }
}
