//! Products of two matrices, and linear layers.

use super::Op;
use crate::autodiff::Rule;
use crate::builder::wrong_shape;
use crate::{Builder, ProgramError, Var};

/// `matmul`: `a, b [, bias] → c`: `c[m, n] = op(a) · op(b) (+ bias[n])`, row major, where `op`
/// transposes: `a` is stored `[k, m]` if `transpose_a`, `b` is stored `[n, k]` if `transpose_b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matmul {
    /// Rows of `c`.
    pub m: usize,
    /// Columns of `c`.
    pub n: usize,
    /// The summed dimension.
    pub k: usize,
    /// `a` is stored transposed.
    pub transpose_a: bool,
    /// `b` is stored transposed.
    pub transpose_b: bool,
    /// Whether a bias is read.
    pub bias: bool,
}

/// Which factors of a product are stored transposed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transpose {
    /// The left one: `[k, m]`.
    pub a: bool,
    /// The right one: `[n, k]`.
    pub b: bool,
}

impl Builder {
    /// A linear layer: the last axis of `x` times `weight: [out, in]`, plus `bias: [out]`.
    ///
    /// # Errors
    /// If the shapes do not agree.
    pub fn linear(
        &mut self,
        name: &str,
        x: &Var,
        weight: &Var,
        bias: Option<&Var>,
    ) -> Result<Var, ProgramError> {
        let full = self.scoped(name);
        let [out, features] = self.expect_axes(&full, "weight", weight, ["out", "in"])?;
        if x.cols() != features {
            let expected = format!("[…, {features}], as its weight says");
            return Err(wrong_shape(&full, "x", expected, x));
        }
        let rows = self.reshape(x, &[x.rows(), x.cols()])?;
        let transpose = Transpose { a: false, b: true };
        let y = self.matmul(name, &rows, weight, bias, transpose)?;
        self.reshape(&y, &x.with_cols(out))
    }

    /// The product of two matrices, plus `bias` on each row.
    ///
    /// # Errors
    /// If the shapes do not agree.
    pub fn matmul(
        &mut self,
        name: &str,
        a: &Var,
        b: &Var,
        bias: Option<&Var>,
        transpose: Transpose,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let stored = |[p, q]: [usize; 2], transposed| if transposed { [q, p] } else { [p, q] };
        let a_axes = self.expect_axes(&name, "a", a, ["m", "k"])?;
        let b_axes = self.expect_axes(&name, "b", b, ["k", "n"])?;
        let [m, k] = stored(a_axes, transpose.a);
        let [_, n] = stored(b_axes, transpose.b);
        self.expect_shape(&name, "b", b, &stored([k, n], transpose.b))?;
        let mut reads = vec![a, b];
        if let Some(bias) = bias {
            self.expect_shape(&name, "bias", bias, &[n])?;
            reads.push(bias);
        }
        let op = Op::Matmul(Matmul {
            m,
            n,
            k,
            transpose_a: transpose.a,
            transpose_b: transpose.b,
            bias: bias.is_some(),
        });
        self.forward_one(name, op, &reads, vec![m, n])
    }
}

impl Matmul {
    pub(crate) fn gradient(self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let (a, b, dc) = (rule.read(0), rule.read(1), rule.dy());
        if rule.wants(1) {
            rule.emit_for(1, "dw", Op::Matmul(self.db()), self.db_reads(a, dc))?;
        }
        if self.bias && rule.wants(2) {
            let (rows, cols) = (self.m, self.n);
            rule.emit_for(2, "db", Op::SumRows { rows, cols }, vec![dc])?;
        }
        if rule.wants(0) {
            rule.emit_for(0, "dx", Op::Matmul(self.da()), self.da_reads(b, dc))?;
        }
        Ok(())
    }

    /// The product that gives the gradient of `a` as it is stored: `dc · op(b)ᵀ`, or its transpose
    /// `op(b) · dcᵀ`.
    fn da(self) -> Matmul {
        let Matmul { m, n, k, .. } = self;
        if self.transpose_a {
            product([k, m, n], self.transpose_b, true)
        } else {
            product([m, k, n], false, !self.transpose_b)
        }
    }

    fn da_reads<T>(self, b: T, dc: T) -> Vec<T> {
        if self.transpose_a {
            vec![b, dc]
        } else {
            vec![dc, b]
        }
    }

    /// The product that gives the gradient of `b` as it is stored: `op(a)ᵀ · dc`, or its transpose
    /// `dcᵀ · op(a)`.
    fn db(self) -> Matmul {
        let Matmul { m, n, k, .. } = self;
        if self.transpose_b {
            product([n, k, m], true, self.transpose_a)
        } else {
            product([k, n, m], !self.transpose_a, false)
        }
    }

    fn db_reads<T>(self, a: T, dc: T) -> Vec<T> {
        if self.transpose_b {
            vec![dc, a]
        } else {
            vec![a, dc]
        }
    }
}

/// A product of sizes `m, n, k` without a bias.
fn product([m, n, k]: [usize; 3], transpose_a: bool, transpose_b: bool) -> Matmul {
    Matmul {
        m,
        n,
        k,
        transpose_a,
        transpose_b,
        bias: false,
    }
}
