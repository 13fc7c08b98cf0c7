//! Moving elements: permuting axes, splitting and joining columns.

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Operand, Shapes};
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

/// `permute`: `x → y`: `y`'s axis `i` is `x`'s axis `order[i]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Permute {
    /// The shape of `x`.
    pub shape: [usize; 4],
    /// Which axis of `x` comes where.
    pub order: [usize; 4],
}

/// `split`: `x: [rows, parts · cols] → parts × [rows, cols]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    /// Rows of `x` and of each part.
    pub rows: usize,
    /// Number of parts.
    pub parts: usize,
    /// Columns of each part.
    pub cols: usize,
}

/// `concat`: `parts × [rows, cols] → y: [rows, parts · cols]`, the inverse of [`Split`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concat(pub Split);

impl Split {
    /// The most parts; a kernel holds a slice of each.
    pub const MAX_PARTS: usize = 16;
}

impl Builder {
    /// `x` with its four axes in another order.
    ///
    /// # Errors
    /// If `x` has not four axes, or `order` does not name each once.
    pub fn permute(&mut self, name: &str, x: &Var, order: [usize; 4]) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let shape = self.expect_axes(&name, "x", x, ["a", "b", "c", "d"])?;
        if (0..4).any(|axis| !order.contains(&axis)) {
            return Err(ProgramError::Argument {
                node: name,
                what: "order",
                expected: "each of 0, 1, 2, 3 once".into(),
                found: format!("{order:?}"),
            });
        }
        let op = Permute { shape, order };
        let to = order.map(|axis| shape[axis]).to_vec();
        self.forward_one(name, op, &[x], to)
    }

    /// The columns of `x` in `parts` equal pieces, side by side.
    ///
    /// # Errors
    /// If the last axis is not a multiple of `parts`.
    pub fn split(&mut self, name: &str, x: &Var, parts: usize) -> Result<Vec<Var>, ProgramError> {
        let name = self.scoped(name);
        self.expect_type(&name, "x", x, DType::F32)?;
        if parts == 0 || parts > Split::MAX_PARTS || !x.cols().is_multiple_of(parts) {
            return Err(ProgramError::Argument {
                node: name,
                what: "number of parts",
                expected: format!(
                    "a divisor of the {} columns, at most {}",
                    x.cols(),
                    Split::MAX_PARTS
                ),
                found: parts.to_string(),
            });
        }
        let (rows, cols) = (x.rows(), x.cols() / parts);
        let op = Split { rows, parts, cols };
        let part = (x.with_cols(cols), DType::F32);
        self.forward(name, op, &[x], vec![part; parts])
    }

    /// The columns of tensors of one shape, side by side.
    ///
    /// # Errors
    /// If there is none, or their shapes differ.
    pub fn concat(&mut self, name: &str, xs: &[&Var]) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let Some(first) = xs.first().filter(|_| xs.len() <= Split::MAX_PARTS) else {
            return Err(ProgramError::Argument {
                node: name,
                what: "number of parts",
                expected: format!("1 to {}", Split::MAX_PARTS),
                found: xs.len().to_string(),
            });
        };
        for x in xs {
            self.expect_shape(&name, "x", x, first.shape())?;
        }
        let (rows, parts, cols) = (first.rows(), xs.len(), first.cols());
        let op = Concat(Split { rows, parts, cols });
        self.forward_one(name, op, xs, first.with_cols(parts * cols))
    }
}

impl Operation for Permute {
    const FACTS: Facts<Permute> = Facts {
        name: "permute",
        shapes: |op| {
            let len = op.shape.iter().product();
            Shapes::f32([len], [len])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(|op, rule| {
            rule.emit_for(0, "dx", op.inverse(), vec![rule.dy()])
        }),
    };
}

impl Operation for Split {
    const FACTS: Facts<Split> = Facts {
        name: "split",
        shapes: |op| Shapes { reads: vec![op.whole()], writes: vec![op.part(); op.parts] },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(Split::gradient),
    };
}

impl Operation for Concat {
    const FACTS: Facts<Concat> = Facts {
        name: "concat",
        shapes: |Concat(op)| Shapes { reads: vec![op.part(); op.parts], writes: vec![op.whole()] },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(Concat::gradient),
    };
}

impl Permute {
    /// The permutation that undoes this one.
    fn inverse(&self) -> Permute {
        let mut order = [0; 4];
        for (to, &from) in self.order.iter().enumerate() {
            order[from] = to;
        }
        let shape = self.order.map(|axis| self.shape[axis]);
        Permute { shape, order }
    }
}

impl Split {
    fn whole(&self) -> Operand {
        Operand::F32(self.rows * self.parts * self.cols)
    }

    fn part(&self) -> Operand {
        Operand::F32(self.rows * self.cols)
    }

    /// A part that nothing reads has a gradient of zeros.
    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let mut reads = Vec::with_capacity(self.parts);
        for part in 0..self.parts {
            reads.push(match rule.gradients(part).first() {
                Some(&gradient) => gradient,
                None => rule.zeros(rule.write(part))?,
            });
        }
        rule.emit_for(0, "dx", Concat(*self), reads)
    }
}

impl Concat {
    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let like: Vec<_> = (0..self.0.parts).map(|k| rule.read(k)).collect();
        let written = rule.emit("dx", self.0, vec![rule.dy()], &like)?;
        for (part, gradient) in written.into_iter().enumerate() {
            rule.give(part, gradient)?;
        }
        Ok(())
    }
}
