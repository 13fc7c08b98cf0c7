//! What can be wrong with a weight file.

use std::path::PathBuf;

use safetensors::Dtype;

/// Why weights could not be read or written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The fields are what the messages say.
pub enum WeightsError {
    /// The file cannot be read.
    #[error("cannot read weights from {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is not what it should be.
    #[error("{path} is not a complete safetensors file: {why}; copy or export it again")]
    Format { path: PathBuf, why: String },
    /// The file lacks tensors of the model.
    #[error(
        "{path} lacks {count} tensors that the model has, such as {example}; \
         is it a file of another model?"
    )]
    Missing { path: PathBuf, count: usize, example: String },
    /// The file has tensors that the model lacks.
    #[error(
        "{path} has {count} tensors that the model lacks, such as {example}; \
         is it a file of another model?"
    )]
    Unexpected { path: PathBuf, count: usize, example: String },
    /// A tensor has another shape.
    #[error(
        "{path}: `{name}` has shape {found:?}, but the model needs {expected:?}; \
         is it a file of a model of another size?"
    )]
    Shape { path: PathBuf, name: String, expected: Vec<usize>, found: Vec<usize> },
    /// A tensor has another element type.
    #[error("{path}: `{name}` holds {found}, but the model needs {expected}; convert the file")]
    Type { path: PathBuf, name: String, expected: Dtype, found: Dtype },
    /// A tensor that the model uses twice differs between its two names.
    #[error(
        "{path}: `{name}` and `{tied}` are one tensor in the model, but differ in the file; \
         keep the one that is meant"
    )]
    TiedDiffer { path: PathBuf, name: String, tied: String },
    /// Values that do not belong to the tensor.
    #[error(
        "`{name}` was given {found} bytes of values to save, but has {expected}; \
         pass its own values"
    )]
    Values { name: String, expected: usize, found: usize },
    /// The file cannot be written.
    #[error("cannot write weights to {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
}
