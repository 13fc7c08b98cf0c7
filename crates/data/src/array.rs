//! Arrays in files: `.npy`, and tensors of safetensors files.
//!
//! In: a file. Out: its shape, and any row of it as numbers. Rows are read when they are asked for.
//!
//! Limits: little-endian numbers in row-major order, whole or floating, of the types that
//! [`Number`] lists.

use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use crate::DataError;
use crate::file::DataFile;

/// What the elements of an array are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    F32,
    F64,
    U8,
    U16,
    U32,
    I32,
    I64,
}

impl Number {
    pub(crate) fn size(self) -> usize {
        match self {
            Number::U8 => 1,
            Number::U16 => 2,
            Number::F32 | Number::U32 | Number::I32 => 4,
            Number::F64 | Number::I64 => 8,
        }
    }

    /// By numpy's name for it.
    fn of_numpy(name: &str) -> Option<Number> {
        Some(match name {
            "<f4" => Number::F32,
            "<f8" => Number::F64,
            "|u1" => Number::U8,
            "<u2" => Number::U16,
            "<u4" => Number::U32,
            "<i4" => Number::I32,
            "<i8" => Number::I64,
            _ => return None,
        })
    }

    fn of_safetensors(dtype: Dtype) -> Option<Number> {
        Some(match dtype {
            Dtype::F32 => Number::F32,
            Dtype::F64 => Number::F64,
            Dtype::U8 => Number::U8,
            Dtype::U16 => Number::U16,
            Dtype::U32 => Number::U32,
            Dtype::I32 => Number::I32,
            Dtype::I64 => Number::I64,
            _ => return None,
        })
    }

    /// One element.
    fn get(self, bytes: &[u8]) -> f64 {
        fn of<const N: usize>(bytes: &[u8]) -> [u8; N] {
            bytes.try_into().expect("as many bytes as the type has")
        }
        match self {
            Number::F32 => f64::from(f32::from_le_bytes(of(bytes))),
            Number::F64 => f64::from_le_bytes(of(bytes)),
            Number::U8 => f64::from(bytes[0]),
            Number::U16 => f64::from(u16::from_le_bytes(of(bytes))),
            Number::U32 => f64::from(u32::from_le_bytes(of(bytes))),
            Number::I32 => f64::from(i32::from_le_bytes(of(bytes))),
            Number::I64 => i64::from_le_bytes(of(bytes)) as f64,
        }
    }

    /// One whole number; nothing if it is none.
    fn get_whole(self, bytes: &[u8]) -> Option<i64> {
        match self {
            Number::I64 => Some(i64::from_le_bytes(bytes.try_into().ok()?)),
            Number::F32 | Number::F64 => {
                let value = self.get(bytes);
                (value.fract() == 0.0 && value.abs() < 9e15).then_some(value as i64)
            }
            _ => Some(self.get(bytes) as i64),
        }
    }
}

/// An array in a file.
pub(crate) struct Array {
    file: DataFile,
    /// Where its elements begin.
    start: u64,
    pub(crate) number: Number,
    pub(crate) shape: Vec<usize>,
}

/// Headers beyond this are damage.
const LARGEST_HEADER: u64 = 100_000_000;

impl Array {
    /// Opens a `.npy` file.
    pub(crate) fn npy(path: &Path) -> Result<Array, DataError> {
        let damaged = |why: String| DataError::Array { path: path.to_owned(), why };
        let file = DataFile::open(path)?;
        let mut head = [0; 12];
        let known = file.len.min(12) as usize;
        file.read_at(0, &mut head[..known])?;
        if known < 12 || !head.starts_with(b"\x93NUMPY") {
            return Err(damaged("it does not begin as a .npy file does".into()));
        }
        let (from, length) = match head[6] {
            1 => (10, u64::from(u16::from_le_bytes([head[8], head[9]]))),
            2 | 3 => (12, u64::from(u32::from_le_bytes([head[8], head[9], head[10], head[11]]))),
            version => return Err(damaged(format!("its version {version} is not known"))),
        };
        if length > LARGEST_HEADER || from + length > file.len {
            return Err(damaged(format!("a header of {length} bytes in {} bytes", file.len)));
        }
        let mut text = vec![0; length as usize];
        file.read_at(from, &mut text)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let (number, shape) = npy_header(&text).map_err(damaged)?;
        Array { file, start: from + length, number, shape }.complete()
    }

    /// Opens a tensor of a safetensors file: the first of `names` that is there.
    pub(crate) fn safetensors(path: &Path, names: &[&str]) -> Result<Option<Array>, DataError> {
        let damaged = |why: String| DataError::Array { path: path.to_owned(), why };
        let file = DataFile::open(path)?;
        let mut length = [0; 8];
        if file.len < 8 {
            return Err(damaged(format!("it has {} bytes, less than a header", file.len)));
        }
        file.read_at(0, &mut length)?;
        let length = u64::from_le_bytes(length);
        if length > LARGEST_HEADER || length > file.len - 8 {
            return Err(damaged(format!("a header of {length} bytes in {} bytes", file.len)));
        }
        let mut text = vec![0; length as usize];
        file.read_at(8, &mut text)?;
        let header: Metadata =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        let Some(info) = names.iter().find_map(|name| header.info(name)) else {
            return Ok(None);
        };
        let Some(number) = Number::of_safetensors(info.dtype) else {
            return Err(damaged(format!("its elements are {:?}, which are not read", info.dtype)));
        };
        let start = 8 + length + info.data_offsets.0 as u64;
        Array { file, start, number, shape: info.shape.clone() }.complete().map(Some)
    }

    /// Refuses a file that is shorter than its header says.
    fn complete(self) -> Result<Array, DataError> {
        let elements = self.shape.iter().try_fold(1u64, |n, &axis| n.checked_mul(axis as u64));
        let bytes = elements.and_then(|n| n.checked_mul(self.number.size() as u64));
        match bytes.and_then(|bytes| bytes.checked_add(self.start)) {
            Some(end) if end <= self.file.len => Ok(self),
            _ => Err(DataError::Array {
                path: self.file.path.clone(),
                why: format!(
                    "it has {} bytes, too few for an array of shape {:?}",
                    self.file.len, self.shape
                ),
            }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.file.path
    }

    /// The extent of the first axis.
    pub(crate) fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Elements in a row.
    pub(crate) fn row_len(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// How many elements there are in all.
    pub(crate) fn len(&self) -> u64 {
        self.shape.iter().map(|&axis| axis as u64).product()
    }

    /// The bytes of elements from number `first` on.
    fn bytes(&self, first: u64, count: usize) -> Result<Vec<u8>, DataError> {
        let size = self.number.size();
        let mut bytes = vec![0; count * size];
        self.file.read_at(self.start + first * size as u64, &mut bytes)?;
        Ok(bytes)
    }

    /// The elements of a row.
    pub(crate) fn row(&self, row: usize, into: &mut [f32]) -> Result<(), DataError> {
        self.numbers((row * self.row_len()) as u64, into)
    }

    /// Numbers from element `first` on.
    pub(crate) fn numbers(&self, first: u64, into: &mut [f32]) -> Result<(), DataError> {
        let bytes = self.bytes(first, into.len())?;
        for (value, bytes) in into.iter_mut().zip(bytes.chunks_exact(self.number.size())) {
            *value = self.number.get(bytes) as f32;
        }
        Ok(())
    }

    /// Whole numbers from element `first` on.
    pub(crate) fn whole(&self, first: u64, into: &mut [i64]) -> Result<(), DataError> {
        let bytes = self.bytes(first, into.len())?;
        let each = into.iter_mut().zip(bytes.chunks_exact(self.number.size()));
        for (value, bytes) in each {
            *value = self.number.get_whole(bytes).ok_or_else(|| DataError::Array {
                path: self.file.path.clone(),
                why: format!("{} stands where a whole number should", self.number.get(bytes)),
            })?;
        }
        Ok(())
    }

    /// A file of nothing but whole numbers.
    pub(crate) fn raw(file: DataFile, number: Number) -> Array {
        let count = file.len / number.size() as u64;
        Array { file, start: 0, number, shape: vec![count as usize] }
    }
}

/// The type and the shape in the header of a `.npy` file: the text of a Python dictionary.
fn npy_header(text: &str) -> Result<(Number, Vec<usize>), String> {
    let after = |key: &str| {
        let at = text.find(key).ok_or_else(|| format!("its header has no {key}"))?;
        let rest = &text[at + key.len()..];
        let rest = rest.trim_start_matches(['\'', '"', ' ']);
        Ok::<&str, String>(rest.strip_prefix(':').unwrap_or(rest).trim_start())
    };
    let descr = after("descr")?;
    let descr = descr.trim_start_matches(['\'', '"']);
    let descr = &descr[..descr.find(['\'', '"']).unwrap_or(0)];
    let number = Number::of_numpy(descr)
        .ok_or_else(|| format!("its elements are `{descr}`, which are not read"))?;
    let shape = after("shape")?;
    let shape = shape.strip_prefix('(').and_then(|s| s.split_once(')'));
    let (shape, _) = shape.ok_or("its header has no shape in brackets")?;
    let axes = shape.split(',').map(str::trim).filter(|axis| !axis.is_empty());
    let axes: Result<Vec<usize>, _> = axes.map(str::parse).collect();
    let axes = axes.map_err(|_| format!("its shape ({shape}) is none"))?;
    if after("fortran_order")?.starts_with("True") && axes.len() > 1 {
        return Err("it is in Fortran's order; save it in C's".into());
    }
    Ok((number, axes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_a_npy_file_is_read() {
        let header = |descr: &str, order: &str, shape: &str| {
            npy_header(&format!(
                "{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"
            ))
        };
        assert_eq!(header("<f4", "False", "(3, 4)"), Ok((Number::F32, vec![3, 4])));
        assert_eq!(header("|u1", "False", "(7,)"), Ok((Number::U8, vec![7])));
        assert_eq!(header("<i8", "True", "(7,)"), Ok((Number::I64, vec![7])));
        assert!(header("<f4", "True", "(3, 4)").is_err());
        assert!(header(">f4", "False", "(3, 4)").is_err());
        assert!(header("<f4", "False", "(3, -4)").is_err());
        assert!(header("<f4", "False", "3, 4").is_err());
        assert!(npy_header("").is_err());
        assert!(npy_header("descr'").is_err());
    }
}
