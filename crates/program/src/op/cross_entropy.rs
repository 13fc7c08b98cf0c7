//! The cross-entropy of a softmax.

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Operand, Shapes};
use crate::builder::wrong_shape;
use crate::{Builder, DType, ProgramError, Var};

/// `cross_entropy`: `logits, labels → loss, lse` (`loss: [1]`, the mean over rows whose label is
/// not [`CrossEntropy::IGNORE`]; `lse: [rows]`, the log of the sum of exponentials).
///
/// With smoothing `s`, a row's loss is `1 - s` of its own and `s` of the mean over all classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropy {
    /// How many rows there are.
    pub rows: usize,
    /// How many classes a row is told apart into.
    pub classes: usize,
    /// The share of a label that is spread evenly over all classes.
    pub smoothing: f32,
}

/// `cross_entropy_dx`: `logits, labels, lse, dloss → dlogits`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossEntropyDx(pub CrossEntropy);

impl CrossEntropy {
    /// Rows with this label do not count.
    pub const IGNORE: i64 = -100;
}

impl Builder {
    /// The mean cross-entropy of `logits: [rows…, classes]` and `labels: [rows…]`, over the rows
    /// whose label is not [`CrossEntropy::IGNORE`]. The labels are smoothed as the settings say.
    ///
    /// # Errors
    /// If the shapes do not agree, or the smoothing is not in `[0, 1)`.
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
        let smoothing = self.settings.label_smoothing;
        if !(0.0..1.0).contains(&smoothing) {
            return Err(ProgramError::Argument {
                node: name,
                what: "label smoothing",
                expected: "at least 0 and below 1".into(),
                found: smoothing.to_string(),
            });
        }
        let smoothing = if self.settings.inference { 0.0 } else { smoothing };
        let op = CrossEntropy { rows, classes, smoothing };
        let writes = vec![(vec![1], DType::F32), (vec![rows], DType::F32)];
        let mut vars = self.forward(name, op, &[logits, labels], writes)?;
        Ok(vars.swap_remove(0))
    }
}

impl Operation for CrossEntropy {
    const FACTS: Facts<CrossEntropy> = Facts {
        name: "cross_entropy",
        shapes: |op| {
            let logits = Operand::F32(op.rows * op.classes);
            let writes = [Operand::F32(1), Operand::F32(op.rows)];
            Shapes::new([logits, Operand::I64(op.rows)], writes)
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(|op, rule| {
            let reads = vec![rule.read(0), rule.read(1), rule.write(1), rule.dy()];
            rule.emit_for(0, "dx", CrossEntropyDx(*op), reads)
        }),
    };
}

impl Operation for CrossEntropyDx {
    const FACTS: Facts<CrossEntropyDx> = Facts {
        name: "cross_entropy_dx",
        shapes: |CrossEntropyDx(op)| {
            let (logits, labels) = (Operand::F32(op.rows * op.classes), Operand::I64(op.rows));
            let (lse, dloss) = (Operand::F32(op.rows), Operand::F32(1));
            Shapes::new([logits, labels, lse, dloss], [logits])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}
