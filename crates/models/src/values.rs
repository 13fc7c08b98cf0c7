//! Values of tensors, on their way between files, data and whoever runs the program.

use rekindle_program::DType;

/// The elements of one tensor, in the program's layout.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Of an `f32` tensor.
    F32(Vec<f32>),
    /// Of an `i64` tensor.
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

    /// As little-endian bytes.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Values::F32(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Values::I64(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }

    /// `f32` elements from little-endian bytes.
    pub(crate) fn f32_from_bytes(bytes: &[u8]) -> Values {
        let (words, _) = bytes.as_chunks();
        Values::F32(words.iter().map(|&word| f32::from_le_bytes(word)).collect())
    }

    /// `i64` elements from little-endian bytes.
    pub(crate) fn i64_from_bytes(bytes: &[u8]) -> Values {
        let (words, _) = bytes.as_chunks();
        Values::I64(words.iter().map(|&word| i64::from_le_bytes(word)).collect())
    }
}
