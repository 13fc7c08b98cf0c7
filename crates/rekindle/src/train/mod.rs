//! Training on one's own data: epochs, schedules, evaluation, and runs that can be stopped.
//!
//! In: a model that was fitted into a budget, [`Batches`](rekindle_data::Batches) and a [`Recipe`].
//! Out: a [`Session`], update by update; [`run`] is the whole loop, with checkpoints and the
//! weights of the best evaluation.
//!
//! Everything that a step depends on is in the checkpoint or a pure function of the recipe and the
//! number of the update: the order of the data, what is random in a sample, dropout, the learning
//! rate. So a run that was killed and resumed gives the bits of one that was not.
//!
//! An update may take several steps, whose gradients are summed: then the program holds the sums,
//! every step adds to them, and the engine is told which one moves the parameters.

mod evaluation;
mod files;
mod recipe;
mod run;
mod session;

pub use evaluation::{Evaluation, Metrics, wanted};
pub use files::{merged_pieces, save_merged};
pub use recipe::{LearningRate, Recipe, Shape};
pub use run::{Files, Watch, run};
pub use session::{Session, Start, UpdateReport};
