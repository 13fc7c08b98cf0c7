//! Multi-head attention between projected queries, keys and values.

use rekindle_program::op::{HeadOperand, Heads, Mask};
use rekindle_program::{Builder, ProgramError, Var};

/// How the heads attend.
#[derive(Clone, Copy)]
pub(crate) struct Attention {
    /// How many heads share the columns.
    pub(crate) heads: usize,
    /// Which tokens a token sees.
    pub(crate) mask: Mask,
    /// The dropout of the probabilities.
    pub(crate) dropout: f32,
}

impl Attention {
    /// `softmax(q · kᵀ / √d) · v` for each head; all operands and the result are
    /// `[batch, sequence, heads · d]`, as a linear layer writes them.
    pub(crate) fn attend(
        self,
        b: &mut Builder,
        query: &Var,
        key: &Var,
        value: &Var,
    ) -> Result<Var, ProgramError> {
        let &[batch, sequence, columns] = query.shape() else {
            unreachable!("a linear layer on [batch, sequence, columns]")
        };
        // Without a divisor the reshape below fails with both shapes.
        let depth = columns.checked_div(self.heads).unwrap_or(0);
        let by_head = |b: &Builder, x| b.reshape(x, &[batch, sequence, self.heads, depth]);
        let (query, key, value) = (by_head(b, query)?, by_head(b, key)?, by_head(b, value)?);
        let operand = |var, transposed| HeadOperand { var, heads: Heads::Interleaved, transposed };
        let scale = 1.0 / (depth as f32).sqrt();
        let (query, key) = (operand(&query, false), operand(&key, true));
        let scores = b.head_matmul("scores", query, key, Heads::Outer, scale)?;
        let probabilities = b.softmax("softmax", &scores, self.mask)?;
        let dropped = b.dropout("dropout", &probabilities, self.dropout)?;
        let weights = HeadOperand { var: &dropped, heads: Heads::Outer, transposed: false };
        let value = operand(&value, false);
        let context = b.head_matmul("context", weights, value, Heads::Interleaved, 1.0)?;
        b.reshape(&context, &[batch, sequence, columns])
    }
}
