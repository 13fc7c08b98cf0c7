//! What happens to gradients before an optimizer takes them: they are summed over several steps,
//! and measured, so that they can be clipped.

use super::Shapes;
use super::facts::{Derivative, Effects, Facts, Operation};

/// `accumulate`: `sum, gradient → total`: the gradient added to the sum, or in the first of several
/// steps the gradient alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Accumulate {
    /// How many elements there are.
    pub len: usize,
}

/// `keep`: `sum*, total`: the total becomes the sum that the next step finds. May run once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keep {
    /// How many elements there are.
    pub len: usize,
}

/// `square_sum`: `x [, before] → total`: the sum of the squares of `x`, and of `before: [1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SquareSum {
    /// How many elements there are.
    pub len: usize,
    /// Whether a sum is read to go on from.
    pub goes_on: bool,
}

impl Operation for Accumulate {
    const FACTS: Facts<Accumulate> = Facts {
        name: "accumulate",
        shapes: |op| Shapes::f32([op.len, op.len], [op.len]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}

impl Operation for Keep {
    const FACTS: Facts<Keep> = Facts {
        name: "keep",
        shapes: |op| Shapes::f32([op.len, op.len], []),
        effect: Effects::Once { updates: |_| &[0] },
        flops: |_| 0,
        derivative: Derivative::None,
    };
}

impl Operation for SquareSum {
    const FACTS: Facts<SquareSum> = Facts {
        name: "square_sum",
        shapes: |op| Shapes::f32([op.len], [1]).and_read(op.goes_on, 1),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}
