//! Products of matrices for each head of an attention.

use super::Shapes;
use super::facts::{Derivative, Effects, Facts, Operation};
use super::matmul::{GradientProduct, gradient_products};
use crate::autodiff::Rule;
use crate::{Builder, ProgramError, Var};

/// How the matrices of the heads lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Heads {
    /// `[batch, heads, rows, columns]`.
    Outer,
    /// `[batch, rows, heads, columns]`, as a linear layer writes them.
    Interleaved,
}

/// `head_matmul`: `a, b → c`: for each batch and head, `c = alpha · op(a) · op(b)`, with the stored
/// matrices laid out as each operand's [`Heads`] says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadMatmul {
    /// Batches.
    pub batch: usize,
    /// Heads per batch.
    pub heads: usize,
    /// Rows of each `c`.
    pub m: usize,
    /// Columns of each `c`.
    pub n: usize,
    /// The summed dimension.
    pub k: usize,
    /// Layout of `a`.
    pub a: Heads,
    /// Layout of `b`.
    pub b: Heads,
    /// Layout of `c`.
    pub c: Heads,
    /// `a` is stored transposed.
    pub transpose_a: bool,
    /// `b` is stored transposed.
    pub transpose_b: bool,
    /// The factor.
    pub alpha: f32,
}

impl Heads {
    /// The names of the axes in memory.
    fn axes(self) -> [&'static str; 4] {
        match self {
            Heads::Outer => ["batch", "heads", "rows", "columns"],
            Heads::Interleaved => ["batch", "rows", "heads", "columns"],
        }
    }

    /// Between `[batch, heads, rows, columns]` and the order in memory; its own inverse.
    fn order(self, [a, b, c, d]: [usize; 4]) -> [usize; 4] {
        match self {
            Heads::Outer => [a, b, c, d],
            Heads::Interleaved => [a, c, b, d],
        }
    }
}

/// One factor of a product for each head.
#[derive(Clone, Copy, Debug)]
pub struct HeadOperand<'a> {
    /// The matrices, in the shape that `heads` says.
    pub var: &'a Var,
    /// How they lie in memory.
    pub heads: Heads,
    /// Whether each is stored transposed.
    pub transposed: bool,
}

impl Builder {
    /// For each batch and head, `alpha · op(a) · op(b)`, laid out as `heads` says.
    ///
    /// # Errors
    /// If the shapes do not agree.
    pub fn head_matmul(
        &mut self,
        name: &str,
        a: HeadOperand<'_>,
        b: HeadOperand<'_>,
        heads: Heads,
        alpha: f32,
    ) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        let stored = |p: usize, q: usize, transposed| if transposed { (q, p) } else { (p, q) };
        let a_axes = self.expect_axes(&name, "a", a.var, a.heads.axes())?;
        let b_axes = self.expect_axes(&name, "b", b.var, b.heads.axes())?;
        let [batch, count, rows, cols] = a.heads.order(a_axes);
        let (m, k) = stored(rows, cols, a.transposed);
        let [_, _, rows, cols] = b.heads.order(b_axes);
        let (_, n) = stored(rows, cols, b.transposed);
        let (rows, cols) = stored(k, n, b.transposed);
        let expected = b.heads.order([batch, count, rows, cols]);
        self.expect_shape(&name, "b", b.var, &expected)?;
        let op = HeadMatmul {
            batch,
            heads: count,
            m,
            n,
            k,
            a: a.heads,
            b: b.heads,
            c: heads,
            transpose_a: a.transposed,
            transpose_b: b.transposed,
            alpha,
        };
        let shape = heads.order([batch, count, m, n]).to_vec();
        self.forward_one(name, op, &[a.var, b.var], shape)
    }
}

impl Operation for HeadMatmul {
    const FACTS: Facts<HeadMatmul> = Facts {
        name: "head_matmul",
        shapes: |op| {
            let (all, [m, n, k]) = (op.batch * op.heads, [op.m, op.n, op.k]);
            Shapes::f32([all * m * k, all * k * n], [all * m * n])
        },
        effect: Effects::Pure,
        flops: |op| 2 * (op.batch * op.heads) as u64 * (op.m * op.n) as u64 * op.k as u64,
        derivative: Derivative::Rule(HeadMatmul::gradient),
    };
}

impl HeadMatmul {
    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let transposed = [self.transpose_a, self.transpose_b];
        let [da, db] = gradient_products([self.m, self.n, self.k], transposed);
        if rule.wants(1) {
            rule.emit_for(1, "db", self.product(db, self.b), db.reads(rule))?;
        }
        if rule.wants(0) {
            rule.emit_for(0, "da", self.product(da, self.a), da.reads(rule))?;
        }
        Ok(())
    }

    /// This gradient for each head, laid out as `c` says.
    fn product(&self, gradient: GradientProduct, c: Heads) -> HeadMatmul {
        let [m, n, k] = gradient.sizes;
        let [a, b] = gradient.factors.map(|f| [self.a, self.b, self.c][f]);
        let [transpose_a, transpose_b] = gradient.transposed;
        HeadMatmul { m, n, k, a, b, c, transpose_a, transpose_b, ..*self }
    }
}
