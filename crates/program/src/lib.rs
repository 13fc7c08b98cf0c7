//! The executable IR of Rekindle: typed ops, builder, autodiff, optimizers.
//!
//! A [`Program`] is one training step as ops on tensors. It is written with the [`Builder`]: the
//! forward pass call by call, the backward pass by [`Builder::backward`], the parameters' updates
//! by [`Builder::optimize`].
//!
//! ```
//! use rekindle_program::{Builder, DType, Init, Optimizer};
//!
//! # fn main() -> Result<(), rekindle_program::ProgramError> {
//! let mut b = Builder::new("classifier");
//! let x = b.input("x", &[32, 784], DType::F32)?;
//! let labels = b.input("labels", &[32], DType::I64)?;
//! let weight = b.parameter("fc.weight", &[10, 784], Init::Uniform { bound: 0.05 })?;
//! let logits = b.linear("fc", &x, &weight, None)?;
//! let loss = b.cross_entropy("loss", &logits, &labels)?;
//! let gradients = b.backward(&loss)?;
//! b.optimize(&gradients, Optimizer::sgd(0.1))?;
//! let program = b.finish(&[&loss])?;
//! assert_eq!(program.nodes.last().unwrap().name, "fc.weight.update");
//! # Ok(())
//! # }
//! ```
//!
//! Programs run elsewhere: this crate holds no kernel, and no value but what [`Init`] describes.

mod autodiff;
mod builder;
mod error;
mod init;
pub mod op;
mod program;
pub mod random;
mod settings;

pub use autodiff::Gradients;
pub use builder::{Builder, Var};
pub use error::ProgramError;
pub use init::Init;
pub use op::{Optimizer, Updates};
pub use program::{ALIGN, DType, Node, Program, Tensor};
pub use settings::{Adapter, Lora, Patterns, Settings};
