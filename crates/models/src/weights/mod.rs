//! A model's parameters and buffers in safetensors files, under PyTorch's names and layouts.
//!
//! In: a file, or the bytes of the model's tensors. Out: the other. Values pass between a file and
//! wherever the caller has them piece by piece, without a copy in between.
//!
//! The one layout that differs is that of convolution weights: `[out, in, kh, kw]` in the file,
//! `[kh, kw, in, out]` in the program; of these one at a time is copied. Where a parameter is used
//! twice, a file may carry it under either name or both; it is written once, under its first name,
//! as Hugging Face does.
//!
//! Limits: elements must be stored as the program has them (`F32`, `I64`); state of optimizers is
//! not part of the file.

mod error;
mod file;

use std::io;
use std::path::Path;

use rekindle_graph::{Phase, Role, StorageId};
use rekindle_program::op::Op;
use rekindle_program::{DType, Program, Tensor};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;

pub use error::WeightsError;
pub use file::{Fill, Take, TensorFile, write_tensors};

use crate::Model;

/// A tensor of the model as a file stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name in the file.
    pub name: String,
    /// Its shape in the file.
    pub shape: Vec<usize>,
    /// The tensor.
    pub tensor: StorageId,
    dtype: DType,
    /// Whether it is a convolution weight, whose layout differs.
    convolution: bool,
}

/// Everything that a weight file holds: parameters and buffers, by tensor.
pub fn stored(model: &Model) -> Vec<Stored> {
    let mut convolution = vec![false; model.program.tensors.len()];
    for node in &model.program.nodes {
        // The gradient of an image is also the forward pass of a transposed convolution.
        if let (Op::Conv(_), _) | (Op::ConvDx(_), Phase::Forward) = (node.op, node.phase) {
            convolution[node.reads[1].index()] = true;
        }
    }
    let ids = (0..convolution.len()).map(StorageId::new);
    ids.filter(|&id| model.program.tensor(id).role == Role::Parameter)
        .map(|id| Stored {
            shape: stored_shape(model.program.tensor(id), convolution[id.index()]),
            convolution: convolution[id.index()],
            ..Stored::as_it_is(&model.program, id)
        })
        .collect()
}

fn stored_shape(tensor: &Tensor, convolution: bool) -> Vec<usize> {
    match tensor.shape[..] {
        [kh, kw, input, output] if convolution => vec![output, input, kh, kw],
        _ => tensor.shape.clone(),
    }
}

/// Reads every parameter and buffer of `model`. `pieces` has each tensor overwritten piece by
/// piece, in their order.
///
/// # Errors
/// If the file cannot be read, or does not hold exactly the model's tensors, or what `pieces` says.
pub fn load(
    path: &Path,
    model: &Model,
    mut pieces: impl FnMut(StorageId, &mut Fill<'_>) -> io::Result<()>,
) -> Result<(), WeightsError> {
    let mut file = TensorFile::open(path)?;
    for (stored, names) in match_names(path, &file, model)? {
        file.read(&names[0], &stored, |fill| pieces(stored.tensor, fill))?;
        // No convolution has two names, so both are in the program's layout.
        if let Some(tied) = names.get(1)
            && !file.are_equal(&names[0], tied)?
        {
            return Err(WeightsError::TiedDiffer {
                path: path.to_owned(),
                name: names[0].clone(),
                tied: tied.clone(),
            });
        }
    }
    Ok(())
}

/// Writes every parameter and buffer of `model`, whose bytes `pieces` hands out piece by piece, in
/// their order. The file appears whole or not at all.
///
/// # Errors
/// If the file cannot be written, or a tensor has another size, or what `pieces` says.
pub fn save(
    path: &Path,
    model: &Model,
    pieces: impl Fn(StorageId, &mut Take<'_>) -> io::Result<()>,
) -> Result<(), WeightsError> {
    write_tensors(path, None, stored(model), false, pieces)
}

/// Each tensor of the model with its names in the file, one or two.
fn match_names(
    path: &Path,
    file: &TensorFile,
    model: &Model,
) -> Result<Vec<(Stored, Vec<String>)>, WeightsError> {
    let mut unused = file.tensors();
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for stored in stored(model) {
        let tied = model.tied.iter().filter(|(_, id)| *id == stored.tensor);
        let names = [stored.name.clone()].into_iter();
        let names = names.chain(tied.map(|(name, _)| name.clone()));
        let mut its = Vec::new();
        for name in names {
            if let Some(info) = unused.remove(&name) {
                stored.check(path, &name, info)?;
                its.push(name);
            }
        }
        match its.is_empty() {
            true => missing.push(stored.name),
            false => found.push((stored, its)),
        }
    }
    let path = path.to_owned();
    if let Some(example) = missing.first() {
        return Err(WeightsError::Missing {
            path,
            count: missing.len(),
            example: format!("`{example}`"),
        });
    }
    if let Some(example) = unused.keys().next() {
        return Err(WeightsError::Unexpected {
            path,
            count: unused.len(),
            example: format!("`{example}`"),
        });
    }
    Ok(found)
}

impl Stored {
    /// A tensor under its own name, in the program's own layout.
    pub fn as_it_is(program: &Program, id: StorageId) -> Stored {
        let tensor = program.tensor(id);
        Stored {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            tensor: id,
            dtype: tensor.dtype,
            convolution: false,
        }
    }

    /// What its elements are called in a file.
    pub fn file_type(&self) -> Dtype {
        match self.dtype {
            DType::F32 => Dtype::F32,
            DType::I64 => Dtype::I64,
            DType::U8 => Dtype::U8,
        }
    }

    fn check(&self, path: &Path, name: &str, info: &TensorInfo) -> Result<(), WeightsError> {
        let (path, name) = (path.to_owned(), name.to_owned());
        if info.shape != self.shape {
            return Err(WeightsError::Shape {
                path,
                name,
                expected: self.shape.clone(),
                found: info.shape.clone(),
            });
        }
        if info.dtype != self.file_type() {
            return Err(WeightsError::Type {
                path,
                name,
                expected: self.file_type(),
                found: info.dtype,
            });
        }
        Ok(())
    }

    fn check_size(&self, found: usize) -> Result<(), WeightsError> {
        let expected = self.shape.iter().product::<usize>() * self.dtype.size();
        match found == expected {
            true => Ok(()),
            false => Err(WeightsError::Values { name: self.name.clone(), expected, found }),
        }
    }

    /// Where the program has each element of the file, in bytes, if the layouts differ.
    pub fn order(&self) -> Option<impl Iterator<Item = usize>> {
        let &[outputs, inputs, height, width] = &self.shape[..] else {
            return None;
        };
        let place = move |index: usize| {
            let (x, rest) = (index % width, index / width);
            let (y, rest) = (rest % height, rest / height);
            let (input, output) = (rest % inputs, rest / inputs);
            (((y * width + x) * inputs + input) * outputs + output) * size_of::<f32>()
        };
        let elements = outputs * inputs * height * width;
        self.convolution.then(|| (0..elements).map(place))
    }
}
