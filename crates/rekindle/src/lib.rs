//! Train a model in the memory you have.
//!
//! In: a [`Model`](rekindle_models::Model) and a budget in bytes. Out: the same training step with
//! recomputation in it, which runs in an arena of at most that many bytes and gives the same bits.
//!
//! ```
//! use rekindle::graph::Bytes;
//! use rekindle::models::{ModelOptions, build};
//! use rekindle::program::Optimizer;
//! use rekindle::{FitOptions, Trainer, fit, plain};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = ModelOptions {
//!     batch: 512,
//!     optimizer: Some(Optimizer::sgd(0.01)),
//!     ..ModelOptions::default()
//! };
//! let model = build("mlp", &options)?;
//! let options = FitOptions::default();
//! let plain = plain(&model, options.threads);
//! let budget = Bytes(plain.predicted().arena.get() * 9 / 10);
//! let fitted = fit(&model, &plain, budget, &options)?;
//! let mut trainer = Trainer::new(&model, fitted.engine()?, 0)?;
//! let step = trainer.step()?;
//! assert!(step.measured.arena <= budget);
//! # Ok(())
//! # }
//! ```
//!
//! [`plain`] lowers the step once, for everything that follows. [`fit`] is the list of the stages:
//! [`profile()`] the step, then plan, rewrite, verify and place it ([`fit_profiled`]). [`Trainer`]
//! runs the result and keeps checkpoints, and [`check_numbers`] compares it with the plain step,
//! bit by bit; [`side_by_side`] compares their times. [`max_batch`] asks the other way round: not
//! what a step costs in a budget, but how large its batch can be.
//!
//! Where [`FitOptions::offload`] names a folder, storages may also be moved to a file there and
//! back while the step computes, and parameters and optimizer state may live there between steps:
//! so a model can be trained that is larger than the memory. [`with_store`] measures the disk once.
//!
//! There is no fallback: the graph that runs is the one that was verified, or there is an error.
//!
//! Each stage is a crate of its own, named here by its stage: [`graph`], [`analysis`], [`program`],
//! [`models`], [`onnx`], [`engine`], [`mod@profile`], [`plan`], [`rewrite`], [`verify`]. The
//! crate's examples show them one by one: `profile`, `plan`, `rewrite` and `train`.

pub use rekindle_analysis as analysis;
pub use rekindle_engine as engine;
pub use rekindle_graph as graph;
pub use rekindle_models as models;
pub use rekindle_onnx as onnx;
pub use rekindle_plan as plan;
pub use rekindle_profile as profile;
pub use rekindle_program as program;
pub use rekindle_rewrite as rewrite;
pub use rekindle_verify as verify;

/// The README's example, which is run like this page's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod checkpoint;
mod error;
mod fit;
mod max_batch;
mod numbers;
mod side_by_side;
mod times;
mod trainer;

pub use checkpoint::check_checkpoint;
pub use error::Error;
pub use fit::{
    FitOptions, Fitted, Offload, fit, fit_profiled, plain, set_up, smallest, with_store,
};
pub use max_batch::{
    BatchWatch, LARGEST, MaxBatch, MaxBatchOptions, PlainBatch, Refusal, max_batch,
};
pub use numbers::{Checked, Difference, check_numbers, check_numbers_from};
pub use side_by_side::side_by_side;
pub use times::{Preparing, estimate, profile, profile_layout};
pub use trainer::{IterationReport, Trainer, write_batch};
