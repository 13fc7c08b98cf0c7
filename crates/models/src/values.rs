//! Values of tensors, on their way between files, data and whoever runs the program.

use rekindle_program::DType;

/// The elements of one tensor, in the program's layout.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// The elements of an `f32` tensor.
    F32(Vec<f32>),
    /// The elements of an `i64` tensor.
    I64(Vec<i64>),
}

impl Values {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::I64(values) => values.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What they are.
    pub fn dtype(&self) -> DType {
        match self {
            Values::F32(_) => DType::F32,
            Values::I64(_) => DType::I64,
        }
    }
}
