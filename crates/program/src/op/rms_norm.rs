//! Normalisation of rows by their root mean square.

use super::Shapes;
use super::facts::{Derivative, Effects, Facts, Operation};
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

/// `rms_norm`: `x, gamma → y, stats` (`[rows]`: the reciprocal root mean square of each).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// How many rows are normalised, each by itself.
    pub rows: usize,
    /// The extent of the normalised axis.
    pub cols: usize,
    /// What is added to the mean square, so that its root is never zero.
    pub eps: f32,
}

/// `rms_norm_dx`: `x, stats, gamma, dy → dx, dgamma`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNormDx(pub RmsNorm);

impl Builder {
    /// Divides each row of `x` by its root mean square, and multiplies it with `gamma`.
    ///
    /// # Errors
    /// If the shapes do not agree.
    pub fn rms_norm(
        &mut self,
        name: &str,
        x: &Var,
        gamma: &Var,
        eps: f32,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let (rows, cols) = (x.rows(), x.cols());
        self.expect_type(&name, "x", x, DType::F32)?;
        self.expect_shape(&name, "gamma", gamma, &[cols])?;
        let op = RmsNorm { rows, cols, eps };
        let writes = vec![(x.shape().to_vec(), DType::F32), (vec![rows], DType::F32)];
        let mut vars = self.forward(name, op, &[x, gamma], writes)?;
        Ok(vars.swap_remove(0))
    }
}

impl Operation for RmsNorm {
    const FACTS: Facts<RmsNorm> = Facts {
        name: "rms_norm",
        shapes: |&RmsNorm { rows, cols, .. }| Shapes::f32([rows * cols, cols], [rows * cols, rows]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(RmsNorm::gradient),
    };
}

impl Operation for RmsNormDx {
    const FACTS: Facts<RmsNormDx> = Facts {
        name: "rms_norm_dx",
        shapes: |&RmsNormDx(RmsNorm { rows, cols, .. })| {
            let len = rows * cols;
            Shapes::f32([len, rows, cols, len], [len, cols])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}

impl RmsNorm {
    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let [x, gamma] = [0, 1].map(|k| rule.read(k));
        let reads = vec![x, rule.write(1), gamma, rule.dy()];
        let written = rule.emit("dx", RmsNormDx(*self), reads, &[x, gamma])?;
        rule.give(1, written[1])?;
        rule.give(0, written[0])
    }
}
