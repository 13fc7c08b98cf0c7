//! What can be wrong with data.

use std::path::PathBuf;

use rekindle_graph::Bytes;

/// Why data cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The fields are what the messages say.
pub enum DataError {
    /// One file of many; training can go on without it if the user says so.
    #[error("{} cannot be used: {why}", path.display())]
    BadFile { path: PathBuf, why: String },
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} holds nothing to train on: {why}", path.display())]
    Nothing { path: PathBuf, why: String },
    #[error(
        "the model is to answer with more than a class for each image, which {} does not say; give \
         a folder with inputs.npy and targets.npy, or a safetensors file with these", path.display()
    )]
    NoArrays { path: PathBuf },
    #[error("{} is not what the model takes: {why}", path.display())]
    Unsuitable { path: PathBuf, why: String },
    #[error("{} is no array that can be read: {why}", path.display())]
    Array { path: PathBuf, why: String },
    #[error("{} is no tokenizer that can be used: {why}", path.display())]
    Tokenizer { path: PathBuf, why: String },
    #[error("text needs a tokenizer; give the tokenizer.json that belongs to the model")]
    NoTokenizer,
    #[error(
        "{} has token {token} at position {position}, and the model knows {vocab} tokens; is the \
         file of another tokenizer, or of another type of numbers?", path.display()
    )]
    TokenOutOfRange { path: PathBuf, position: u64, token: u64, vocab: usize },
    #[error(
        "{} has class {label} in row {row}, and the model tells {classes} classes apart",
        path.display()
    )]
    LabelOutOfRange { path: PathBuf, row: usize, label: i64, classes: usize },
    #[error(
        "there are {samples} samples to train on, less than the {batch} of a batch; take a smaller \
         batch, or less for validation"
    )]
    TooFew { samples: usize, batch: usize },
    #[error("all {tried} files that were tried are bad, the last is {}: {why}", path.display())]
    AllBad { tried: usize, path: PathBuf, why: String },
    #[error(
        "data needs {needed} and may have {given}: a batch takes {batch}, and one is read while \
         another is in use; allow data more memory, or take a smaller batch"
    )]
    Memory { needed: Bytes, given: Bytes, batch: Bytes },
    #[error("the thread that reads ahead could not be started: {0}")]
    Thread(std::io::Error),
    #[error("the thread that reads ahead ended early, please report this")]
    Ended,
}
