//! ONNX graphs as programs of Rekindle.
//!
//! In: an ONNX file with a forward graph, as `torch.onnx.export` writes it (opset 17 or newer),
//! and the name of a loss. Out: a [`Model`](rekindle_models::Model), like those that are built in:
//! its parameters are the file's initializers under their own names, its dropouts and batch-norms
//! train. The weights stay in the file until [`Onnx::load`] passes them on piece by piece, and
//! [`Onnx::export`] writes the same graph with others.
//!
//! ```no_run
//! use rekindle_models::ModelOptions;
//! use rekindle_onnx::{Loss, Onnx};
//!
//! # fn main() -> Result<(), rekindle_onnx::OnnxError> {
//! let onnx = Onnx::open("model.onnx".as_ref())?;
//! let model = onnx.train(Loss::CrossEntropy, &ModelOptions::default())?;
//! println!("{} parameters", model.parameter_count());
//! # Ok(())
//! # }
//! ```
//!
//! Method: shapes are known once the free axes have extents, so whatever computes shapes folds to
//! constants, and each remaining node becomes ops of the builder. A value is a tensor *seen
//! through an order of its axes*: a transposition changes the order and moves nothing, images are
//! held channels last, and an attention's heads are multiplied where a linear map left them.
//!
//! Limits: no control flow, no data-dependent shape, one precision (`float32`). What is not
//! supported is an error before anything is built, with all such nodes.

mod error;
mod export;
mod file;
mod fold;
mod import;
mod loss;
mod proto;
mod value;
mod wire;

pub use error::OnnxError;
pub use file::Onnx;
pub use import::operators;
pub use loss::Loss;
pub use proto::Extent;
