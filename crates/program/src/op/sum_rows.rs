//! The sum over rows: the gradient of a bias.

use super::Shapes;
use super::facts::{Derivative, Effects, Facts, Operation};

/// `sum_rows`: `x: [rows, cols] → y: [cols]`, the sum over the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumRows {
    /// How many rows are added up.
    pub rows: usize,
    /// How many columns there are.
    pub cols: usize,
}

impl Operation for SumRows {
    const FACTS: Facts<SumRows> = Facts {
        name: "sum_rows",
        shapes: |op| Shapes::f32([op.rows * op.cols], [op.cols]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}
