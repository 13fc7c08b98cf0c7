//! Tensors that are there from the start: parameters, buffers, data, constants.

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Operand, Shapes};
use crate::DType;

/// `source`: `→ y`. Never runs: its result is there before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// What its elements are.
    pub dtype: DType,
    /// How many elements it has.
    pub len: usize,
}

impl Operation for Source {
    const FACTS: Facts<Source> = Facts {
        name: "source",
        shapes: |op| Shapes::new([], [Operand::new(op.dtype, op.len)]),
        effect: Effects::Pure,
        flops: |_| 0,
        derivative: Derivative::None,
    };
}
