//! Embedding: rows of a table.

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Operand, Shapes};
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

/// `embedding`: `ids, table → y`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Embedding {
    /// How many ids there are; each gives a row of `y`.
    pub rows: usize,
    /// Rows of the table.
    pub vocab: usize,
    /// Columns of the table.
    pub cols: usize,
}

/// `embedding_dw`: `ids, dy [, base] → dtable`, which starts from `base` or zero and adds the rows
/// of `dy` in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EmbeddingDw {
    /// The sizes of the forward op.
    pub of: Embedding,
    /// Whether a base is read.
    pub base: bool,
}

impl Builder {
    /// For each of `ids`, its row of `table: [vocab, cols]`.
    ///
    /// # Errors
    /// If `ids` are not integers or `table` is no matrix.
    pub fn embedding(&mut self, name: &str, ids: &Var, table: &Var) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        self.expect_type(&name, "ids", ids, DType::I64)?;
        let [vocab, cols] = self.expect_axes(&name, "table", table, ["vocab", "columns"])?;
        let rows = ids.len();
        let op = Embedding { rows, vocab, cols };
        let mut shape = ids.shape().to_vec();
        shape.push(cols);
        self.forward_one(name, op, &[ids, table], shape)
    }
}

impl Operation for Embedding {
    const FACTS: Facts<Embedding> = Facts {
        name: "embedding",
        shapes: |op| {
            let (ids, table) = (Operand::I64(op.rows), Operand::F32(op.vocab * op.cols));
            Shapes::new([ids, table], [Operand::F32(op.rows * op.cols)])
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::Rule(Embedding::gradient),
    };
}

impl Operation for EmbeddingDw {
    const FACTS: Facts<EmbeddingDw> = Facts {
        name: "embedding_dw",
        shapes: |EmbeddingDw { of, base }| {
            let (ids, dy) = (Operand::I64(of.rows), Operand::F32(of.rows * of.cols));
            let table = of.vocab * of.cols;
            Shapes::new([ids, dy], [Operand::F32(table)]).and_read(*base, table)
        },
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}

impl Embedding {
    /// What has arrived for the table is the base to which the rows are added: a tied decoder's
    /// dense gradient is not copied, and there is never a second table-sized gradient.
    fn gradient(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let mut reads = vec![rule.read(0), rule.dy()];
        let base = rule.take(1);
        reads.extend(base);
        let (of, base) = (*self, base.is_some());
        rule.emit_for(1, "dw", EmbeddingDw { of, base }, reads)
    }
}
