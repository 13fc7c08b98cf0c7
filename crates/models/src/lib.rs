//! Models written with the builder of Rekindle.
//!
//! In: a model's name and [`ModelOptions`]. Out: a [`Model`]: one training step as a program, with
//! the inputs that it expects. Architectures and the names of parameters are those of torchvision,
//! PyTorch and Hugging Face, so that weights can be exchanged.
//!
//! ```
//! use rekindle_models::{ModelOptions, build, data};
//!
//! # fn main() -> Result<(), rekindle_models::ModelError> {
//! let options = ModelOptions {
//!     batch: 2,
//!     image_size: 64,
//!     ..ModelOptions::default()
//! };
//! let model = build("resnet18", &options)?;
//! assert_eq!(model.parameter_count(), 11_689_512);
//! let (images, values) = &data::batch(&model, 1, 0)[0];
//! assert_eq!(model.program.tensor(*images).shape, [2, 64, 64, 3]);
//! assert_eq!(values.len(), 2 * 64 * 64 * 3);
//! # Ok(())
//! # }
//! ```
//!
//! One file per family; each uses the builder's public API only.

mod attention;
mod bert;
pub mod data;
mod error;
mod gpt2;
mod layer;
mod mlp;
mod model;
mod registry;
mod resnet;
mod transformer;
mod values;
pub mod weights;

pub use bert::BertConfig;
pub use error::ModelError;
pub use model::{Forward, Input, InputKind, Model, ModelOptions};
pub use registry::{build, build_bert, names};
pub use values::Values;
