//! Models written with the builder of Remat.
//!
//! In: a model's name and [`ModelOptions`]. Out: a [`Model`]: one training step as a program, with
//! the inputs that it expects. Architectures and the names of parameters are those of torchvision,
//! PyTorch and Hugging Face, so that weights can be exchanged.
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
pub use model::{Input, InputKind, Model, ModelOptions};
pub use registry::{build, build_bert, names};
pub use values::Values;
