//! What can go wrong between a model and its training in a budget.

use std::path::PathBuf;

use remat_engine::{EngineError, Peak};
use remat_graph::Bytes;
use remat_models::ModelError;
use remat_models::weights::WeightsError;
use remat_plan::PlanError;
use remat_profile::ProfileError;
use remat_rewrite::RewriteError;
use remat_verify::Violations;

/// Why a step cannot be fitted into a budget, or not trained.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum Error {
    /// No plan's arena fits in the budget.
    #[error(
        "the step does not fit in {budget} ({} bytes): the smallest arena known for it has {smallest} \
         ({} bytes); give it that much, or take a smaller batch",
        budget.get(), smallest.get()
    )]
    DoesNotFit {
        budget: Bytes,
        smallest: Bytes,
        source: Box<PlanError>,
    },
    /// The plain step is larger than what it may use.
    #[error(
        "the plain step needs an arena of {needed} ({} bytes), more than the budget of {budget}; \
         without `--plain` it can be planned to fit: the smallest arena known for it has {smallest} \
         ({} bytes)",
        needed.get(), smallest.get()
    )]
    PlainDoesNotFit {
        budget: Bytes,
        needed: Bytes,
        smallest: Bytes,
    },
    /// The system does not give the plain step its memory.
    #[error(
        "the plain step does not fit in memory: {source}; with a budget it can be planned to fit: the \
         smallest arena known for it has {smallest} ({} bytes)",
        smallest.get()
    )]
    PlainOutOfMemory {
        smallest: Bytes,
        source: EngineError,
    },
    /// One sample trains in the budget, but takes too long.
    #[error(
        "not even one sample trains in the budget within the overhead allowed: the best plan found takes \
         {:.1} % more time, {:.1} % are allowed; allow more, or give it more memory",
        100.0 * overhead, 100.0 * allowed
    )]
    TooSlow { overhead: f64, allowed: f64 },
    /// Two batch sizes of a model are not the same nodes.
    #[error(
        "`{measured}` and `{other}` have other nodes: the times of one say nothing about the other"
    )]
    OtherNodes { measured: String, other: String },
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
    #[error("the rewritten step is not valid, please report this:\n{0}")]
    Verify(#[from] Violations),
    /// The order of the rewritten graph is not the order of the plan: a fault of our own.
    #[error("step {step} of the rewritten graph is not the plan's, please report this")]
    NotAsPlanned { step: usize },
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(
        "step {step} had a peak of {} live and {} of arena, but {} and {} were predicted, please report \
         this", measured.live, measured.arena, predicted.live, predicted.arena
    )]
    PeakDiffers {
        step: u64,
        predicted: Peak,
        measured: Peak,
    },
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("the checkpoint {} cannot be {what}: {why}", path.display())]
    Checkpoint {
        path: PathBuf,
        what: &'static str,
        why: String,
    },
    #[error(
        "the checkpoint {} does not belong to this run: {why}; resume it with the model, sizes, optimizer \
         and seed that it was written with", path.display()
    )]
    OtherRun { path: PathBuf, why: String },
}
