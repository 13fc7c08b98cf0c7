//! Layer normalisation.

use super::Shapes;
use super::facts::{Derivative, Effects, Facts, Operation};
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

/// `layer_norm`: `x, gamma, beta → y, stats` (`[rows, 2]`: mean, reciprocal deviation).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// How many rows are normalised, each by itself.
    pub rows: usize,
    /// The extent of the normalised axis.
    pub cols: usize,
    /// What is added to the variance, so that its root is never zero.
    pub eps: f32,
}

/// `layer_norm_dx`: `x, stats, gamma, dy → dx, dgamma, dbeta`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNormDx(pub LayerNorm);

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
        let op = LayerNorm { rows, cols, eps };
        let y = (x.shape().to_vec(), DType::F32);
        let stats = (vec![rows, 2], DType::F32);
        let mut vars = self.forward(name, op, &[x, gamma, beta], vec![y, stats])?;
        Ok(vars.swap_remove(0))
    }
}

impl Operation for LayerNorm {
    const FACTS: Facts<LayerNorm> = Facts {
        name: "layer_norm",
        shapes: |&LayerNorm { rows, cols, .. }| {
            Shapes::f32([rows * cols, cols, cols], [rows * cols, 2 * rows])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(LayerNorm::gradient),
    };
}

impl Operation for LayerNormDx {
    const FACTS: Facts<LayerNormDx> = Facts {
        name: "layer_norm_dx",
        shapes: |&LayerNormDx(LayerNorm { rows, cols, .. })| {
            let len = rows * cols;
            Shapes::f32([len, 2 * rows, cols, len], [len, cols, cols])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}

impl LayerNorm {
    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let [x, gamma, beta] = [0, 1, 2].map(|k| rule.read(k));
        let reads = vec![x, rule.write(1), gamma, rule.dy()];
        let written = rule.emit("dx", LayerNormDx(*self), reads, &[x, gamma, beta])?;
        rule.give(1, written[1])?;
        rule.give(2, written[2])?;
        rule.give(0, written[0])
    }
}
