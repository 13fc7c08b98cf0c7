//! What can go wrong between a model and its training in a budget.

use std::path::PathBuf;

use rekindle_data::DataError;
use rekindle_engine::{EngineError, Peak};
use rekindle_graph::Bytes;
use rekindle_models::ModelError;
use rekindle_models::weights::WeightsError;
use rekindle_onnx::OnnxError;
use rekindle_plan::PlanError;
use rekindle_profile::ProfileError;
use rekindle_rewrite::RewriteError;
use rekindle_verify::Violations;

/// Why a step cannot be fitted into a budget, or not trained.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum Error {
    /// No plan's arena fits in the budget.
    #[error(
        "the step does not fit in {budget} ({} bytes): the smallest arena known for it has \
         {smallest} ({} bytes); give it that much, or take a smaller batch",
        budget.get(), smallest.get()
    )]
    DoesNotFit { budget: Bytes, smallest: Bytes, source: Box<PlanError> },
    /// The plain step is larger than what it may use.
    #[error(
        "the plain step needs an arena of {needed} ({} bytes), more than the budget of {budget}; \
         {}",
        needed.get(), planned_instead("without `--plain`", Some(*budget), *smallest)
    )]
    PlainDoesNotFit { budget: Bytes, needed: Bytes, smallest: Bytes },
    /// The system does not give the plain step its memory.
    #[error(
        "the plain step does not fit in memory: {}; {}", no_memory(error),
        planned_instead("with a budget", available(error), *smallest)
    )]
    PlainOutOfMemory {
        smallest: Bytes,
        /// Not its source: that one would advise to plan also where it does not help.
        error: EngineError,
    },
    /// One sample trains in the budget, but takes too long.
    #[error(
        "not even one sample trains in the budget within the overhead allowed: the best plan \
         found takes {:.1} % more time, {:.1} % are allowed; allow more, or give it more memory",
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
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(
        "step {step} had a peak of {} live and {} of arena, but {} and {} were predicted, please \
         report this", measured.live, measured.arena, predicted.live, predicted.arena
    )]
    PeakDiffers { step: u64, predicted: Peak, measured: Peak },
    #[error(
        "the evaluation needs an arena of {needed} ({} bytes), more than the {budget} that \
         training has; give it that much, or take a smaller batch", needed.get()
    )]
    EvaluationDoesNotFit { budget: Bytes, needed: Bytes },
    #[error(
        "`{model}` does not learn from images, arrays, text or tokens; `rekindle run` trains \
             it on generated data"
    )]
    NoData { model: String },
    #[error("nothing was held back for evaluation")]
    NothingToEvaluate,
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Onnx(#[from] OnnxError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("the checkpoint {} cannot be {what}: {why}", path.display())]
    Checkpoint { path: PathBuf, what: &'static str, why: String },
    #[error(
        "the checkpoint {} does not belong to this run: {why}; resume it with the model, sizes, \
         optimizer and seed that it was written with", path.display()
    )]
    OtherRun { path: PathBuf, why: String },
}

/// What a plan would do for a plain step that does not fit, where `room` is what there is, if that
/// is known.
fn planned_instead(how: &str, room: Option<Bytes>, smallest: Bytes) -> String {
    let known =
        format!("the smallest arena known for it has {smallest} ({} bytes)", smallest.get());
    match room.is_none_or(|room| smallest <= room) {
        true => format!("{how} it can be planned to fit: {known}"),
        false => format!("a plan does not fit either: {known}; take a smaller batch"),
    }
}

fn no_memory(error: &EngineError) -> String {
    match error {
        EngineError::OutOfMemory { needed, available } => {
            format!("it needs an arena of {needed}, and this machine has {available} to give")
        }
        other => other.to_string(),
    }
}

/// What the machine has, where the error says so.
fn available(error: &EngineError) -> Option<Bytes> {
    match error {
        EngineError::OutOfMemory { available, .. } => Some(*available),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a plan is advised where there are 10 bytes, and the smallest plan needs so many.
    #[track_caller]
    fn check(smallest: u64, advised: bool) {
        let (needed, room, smallest) = (Bytes(20), Bytes(10), Bytes(smallest));
        let memory = EngineError::OutOfMemory { needed, available: room };
        let budget = Error::PlainDoesNotFit { budget: room, needed, smallest };
        let memory = Error::PlainOutOfMemory { smallest, error: memory };
        for message in [budget, memory].map(|error| error.to_string()) {
            let number = format!("({} bytes)", smallest.get());
            assert!(message.contains(&number), "{message}");
            assert_eq!(message.contains("can be planned to fit"), advised, "{message}");
            assert_eq!(message.contains("not fit either"), !advised, "{message}");
        }
    }

    #[test]
    fn a_plan_is_advised_only_where_it_helps() {
        check(9, true);
        check(10, true);
        check(11, false);
    }
}
