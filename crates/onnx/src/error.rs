//! What can be wrong with an ONNX file, or with what is asked of it.

use std::path::PathBuf;

use rekindle_program::ProgramError;

/// Why an ONNX file could not be read, built or written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The fields are what the messages say.
pub enum OnnxError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    /// A file cannot be written.
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    /// The bytes are no ONNX file.
    #[error("this is no complete ONNX file: {why}; copy or export it again")]
    Damaged { why: String },
    /// An external file that is not beside the ONNX file.
    #[error(
        "`{name}` is stored in `{file}`, which is not a file beside the ONNX file; \
         keep both in one folder"
    )]
    External { name: String, file: String },
    /// Operators that cannot be trained through.
    #[error(
        "{count} nodes have operators that are not supported: {list}; \
         `rekindle models --ops` lists those that are"
    )]
    Unsupported { count: usize, list: String },
    /// A node that is used in a way that is not supported.
    #[error("`{node}` ({op}): {why}")]
    Node { node: String, op: String, why: String },
    /// A value that nothing computes.
    #[error("`{node}` reads `{name}`, which nothing before it computes; export the model again")]
    Missing { node: String, name: String },
    /// The operators are of a version that is not read.
    #[error(
        "the operators are of version {found}, but must be of {oldest} or newer; \
             export the model with opset_version={oldest}"
    )]
    Opset { found: i64, oldest: i64 },
    /// A fixed extent that is not the one asked for.
    #[error(
        "input `{input}` has {found} {what}, fixed when the model was exported, but {asked} are \
         asked for; ask for {found}, or export the model with this axis dynamic"
    )]
    Extent { input: String, what: &'static str, found: usize, asked: usize },
    /// The loss cannot be put on the model's output.
    #[error("the loss `{loss}` does not fit: {why}")]
    Loss { loss: &'static str, why: String },
    /// The exported file would be larger than the format allows.
    #[error(
        "{path} would have {bytes} bytes, more than the 2 GiB of an ONNX file; \
         save the weights as safetensors"
    )]
    TooLarge { path: PathBuf, bytes: u64 },
    /// The weights do not belong to this file.
    #[error("`{name}` is not a tensor of the ONNX file with {bytes} bytes; export its own model")]
    Foreign { name: String, bytes: usize },
    /// The builder refused.
    #[error(transparent)]
    Program(#[from] ProgramError),
}
