//! Whole numbers as numbers to compute with.

use super::facts::{Derivative, Effects, Facts, Operation};
use super::{Operand, Shapes};
use crate::{Builder, DType, ProgramError, Var};

/// `cast`: `x (i64) → y (f32)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cast {
    /// How many elements there are.
    pub len: usize,
}

impl Builder {
    /// The whole numbers `x`, such as a mask of zeros and ones, as `f32`.
    ///
    /// # Errors
    /// If `x` holds no whole numbers.
    pub fn cast(&mut self, name: &str, x: &Var) -> Result<Var, ProgramError> {
        let name = self.scoped(name);
        self.expect_type(&name, "x", x, DType::I64)?;
        self.forward_one(name, Cast { len: x.len() }, &[x], x.shape().to_vec())
    }
}

impl Operation for Cast {
    const FACTS: Facts<Cast> = Facts {
        name: "cast",
        shapes: |op| Shapes::new([Operand::I64(op.len)], [Operand::F32(op.len)]),
        effect: Effects::Pure,
        flops: |_| 0,
        // Whole numbers have no gradient.
        derivative: Derivative::None,
    };
}
