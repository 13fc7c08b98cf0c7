//! Data as the batches that Rekindle trains on.
//!
//! In: a folder or a file, and what a model takes ([`Wanted`]). Out: [`Batch`] after batch, each a
//! pure function of the data, the seed and the batch's number: so a run that was stopped goes on
//! where it was, and a run never depends on how fast anything was read.
//!
//! - A folder of images by class: PNG and JPEG.
//! - Arrays: `.npy` files or tensors of a safetensors file.
//! - Text: UTF-8 files, by a Hugging Face `tokenizer.json`.
//! - Token files: `.bin` or `.npy`.
//!
//! [`Dataset`] opens them, [`split`] parts them into what is trained on and what is held back,
//! [`Batches`] puts them in the order of an epoch, and [`Ahead`] reads them on a thread of its own,
//! within the memory that it is given. Bad files are named; whether they are skipped or refused is
//! the caller's choice.

mod ahead;
mod array;
mod arrays;
mod batches;
mod dataset;
mod error;
mod file;
mod images;
mod options;
mod sample;
mod text;
mod tokens;

pub use ahead::Ahead;
pub use batches::{Batch, Batches, IGNORED, Skipped, order, split};
pub use dataset::Dataset;
pub use error::DataError;
pub use options::{BadFiles, DataOptions, ImageOptions, TokenType};
pub use sample::{Answers, Features, Wanted};
