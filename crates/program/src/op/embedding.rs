//! Embedding: rows of a table.

use super::Op;
use crate::autodiff::Rule;
use crate::{Builder, DType, ProgramError, Var};

/// `embedding`: `ids, table → y`; `embedding_dw`: `ids, dy [, base] → dtable`, which starts from
/// `base` or zero and adds the rows of `dy` in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Embedding {
    /// Ids.
    pub rows: usize,
    /// Rows of the table.
    pub vocab: usize,
    /// Columns of the table.
    pub cols: usize,
    /// Whether a base is read (backward only).
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
        let op = Op::Embedding(Embedding {
            rows: ids.len(),
            vocab,
            cols,
            base: false,
        });
        let mut shape = ids.shape().to_vec();
        shape.push(cols);
        self.forward_one(name, op, &[ids, table], shape)
    }
}

impl Embedding {
    /// What has arrived for the table is the base to which the rows are added: a tied decoder's
    /// dense gradient is not copied, and there is never a second table-sized gradient.
    pub(crate) fn gradient(self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
        let mut reads = vec![rule.read(0), rule.dy()];
        let base = rule.take(1);
        reads.extend(base);
        let op = Op::EmbeddingDw(Embedding {
            base: base.is_some(),
            ..self
        });
        rule.emit_for(1, "dw", op, reads)
    }
}
