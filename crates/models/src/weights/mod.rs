//! A model's parameters and buffers in safetensors files, under PyTorch's names and layouts.
//!
//! In: a file, or values of the model's tensors. Out: the other. Tensor by tensor: neither reading
//! nor writing ever holds more than one of them.
//!
//! The one layout that differs is that of convolution weights: `[out, in, kh, kw]` in the file,
//! `[kh, kw, in, out]` in the program. Where a parameter is used twice, a file may carry it under
//! either name or both; it is written once, under its first name, as Hugging Face does.
//!
//! Limits: elements must be stored as the program has them (`F32`, `I64`); state of optimizers is
//! not part of the file.

mod error;
mod file;

use std::borrow::Cow;
use std::cell::RefCell;
use std::path::Path;

use rekindle_graph::{Role, StorageId, replace_file};
use rekindle_program::op::Op;
use rekindle_program::{DType, Tensor};
use safetensors::{Dtype, SafeTensorError, View};

pub use error::WeightsError;
use file::WeightFile;

use crate::{Model, Values};

/// A tensor of the model as a file stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name in the file.
    pub name: String,
    /// Its shape in the file.
    pub shape: Vec<usize>,
    /// The tensor.
    pub tensor: StorageId,
    /// Whether it is a convolution weight, whose layout differs.
    convolution: bool,
}

/// Everything that a weight file holds: parameters and buffers, by tensor.
pub fn stored(model: &Model) -> Vec<Stored> {
    let mut convolution = vec![false; model.program.tensors.len()];
    for node in &model.program.nodes {
        if let Op::Conv(_) = node.op {
            convolution[node.reads[1].index()] = true;
        }
    }
    let tensors = model.program.tensors.iter().zip(convolution).enumerate();
    tensors
        .filter(|(_, (tensor, _))| tensor.role == Role::Parameter)
        .map(|(id, (tensor, convolution))| Stored {
            name: tensor.name.clone(),
            shape: stored_shape(tensor, convolution),
            tensor: StorageId::new(id),
            convolution,
        })
        .collect()
}

fn stored_shape(tensor: &Tensor, convolution: bool) -> Vec<usize> {
    match tensor.shape[..] {
        [kh, kw, input, output] if convolution => vec![output, input, kh, kw],
        _ => tensor.shape.clone(),
    }
}

/// Reads every parameter and buffer of `model`, and hands each to `write`, by tensor.
///
/// # Errors
/// If the file cannot be read, or does not hold exactly the model's tensors. Names, shapes and
/// types are checked before the first value is handed out.
pub fn load(
    path: &Path,
    model: &Model,
    mut write: impl FnMut(StorageId, Values),
) -> Result<(), WeightsError> {
    let mut file = WeightFile::open(path)?;
    let found = file.match_names(model)?;
    for (stored, names) in &found {
        let bytes = file.read(&names[0])?;
        if let Some(tied) = names.get(1)
            && file.read(tied)? != bytes
        {
            return Err(WeightsError::TiedDiffer {
                path: path.to_owned(),
                name: names[0].clone(),
                tied: tied.clone(),
            });
        }
        write(stored.tensor, stored.values(&bytes, model));
    }
    Ok(())
}

/// Writes every parameter and buffer of `model`, as `read` gives them. The file appears whole or
/// not at all.
///
/// # Errors
/// If the file cannot be written, or `read` gives a tensor of another size or type.
pub fn save(
    path: &Path,
    model: &Model,
    read: impl Fn(StorageId) -> Values,
) -> Result<(), WeightsError> {
    let wrong = RefCell::new(None);
    let entries = stored(model).into_iter().map(|stored| {
        let entry = Entry {
            dtype: model.program.tensor(stored.tensor).dtype,
            stored,
            read: &read,
            wrong: &wrong,
        };
        (entry.stored.name.clone(), entry)
    });
    replace_file(path, |partial| {
        safetensors::serialize_to_file(entries, None, partial).map_err(Failed::Write)?;
        wrong
            .take()
            .map_or(Ok(()), |error| Err(Failed::Values(error)))
    })
    .map_err(|failed| match failed {
        Failed::Values(error) => error,
        Failed::Write(source) => WeightsError::Write {
            path: path.to_owned(),
            source,
        },
    })
}

/// Why a file of weights was not written.
enum Failed {
    Write(SafeTensorError),
    Values(WeightsError),
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Failed {
        Failed::Write(error.into())
    }
}

impl Stored {
    /// The values in the program's layout.
    fn values(&self, bytes: &[u8], model: &Model) -> Values {
        let values = match model.program.tensor(self.tensor).dtype {
            DType::I64 => Values::i64_from_bytes(bytes),
            DType::F32 | DType::U8 => Values::f32_from_bytes(bytes),
        };
        match (values, &self.shape[..]) {
            (Values::F32(values), &[o, i, h, w]) if self.convolution => {
                Values::F32(permuted(&values, [o, i, h, w], [2, 3, 1, 0]))
            }
            (values, _) => values,
        }
    }

    /// The values in the file's layout.
    fn bytes(&self, values: Values) -> Vec<u8> {
        match (values, &self.shape[..]) {
            (Values::F32(values), &[o, i, h, w]) if self.convolution => {
                Values::F32(permuted(&values, [h, w, i, o], [3, 2, 0, 1])).to_bytes()
            }
            (values, _) => values.to_bytes(),
        }
    }
}

/// `values` of this shape with its axes in another order: axis `k` of the result is `order[k]`.
fn permuted(values: &[f32], shape: [usize; 4], order: [usize; 4]) -> Vec<f32> {
    let mut stride = [1; 4];
    for axis in (0..3).rev() {
        stride[axis] = stride[axis + 1] * shape[axis + 1];
    }
    let [a, b, c, d] = order.map(|axis| (shape[axis], stride[axis]));
    let mut out = Vec::with_capacity(values.len());
    for i in 0..a.0 {
        for j in 0..b.0 {
            for k in 0..c.0 {
                let start = i * a.1 + j * b.1 + k * c.1;
                out.extend((0..d.0).map(|l| values[start + l * d.1]));
            }
        }
    }
    out
}

/// What a tensor of the model is called in a file.
fn file_type(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
    }
}

/// A tensor on its way into a file; its values are asked for when they are written.
struct Entry<'a, F> {
    stored: Stored,
    dtype: DType,
    read: &'a F,
    /// Where the first values of a wrong size or type are reported: the trait has no errors.
    wrong: &'a RefCell<Option<WeightsError>>,
}

impl<F: Fn(StorageId) -> Values> View for Entry<'_, F> {
    fn dtype(&self) -> Dtype {
        file_type(self.dtype)
    }

    fn shape(&self) -> &[usize] {
        &self.stored.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let values = (self.read)(self.stored.tensor);
        let found = values.len() * values.dtype().size();
        let expected = self.data_len();
        if values.dtype() != self.dtype || found != expected {
            let name = self.stored.name.clone();
            let wrong = WeightsError::Values {
                name,
                expected,
                found,
            };
            self.wrong.borrow_mut().get_or_insert(wrong);
            return Cow::Borrowed(&[]);
        }
        Cow::Owned(self.stored.bytes(values))
    }

    fn data_len(&self) -> usize {
        self.stored.shape.iter().product::<usize>() * self.dtype.size()
    }
}
