//! The exit codes, all in one place.

use std::process::ExitCode;

use rekindle_allocator::ReserveError;
use rekindle_analysis::TableError;
use rekindle_data::DataError;
use rekindle_engine::EngineError;
use rekindle_graph::FileError;
use rekindle_models::ModelError;
use rekindle_onnx::OnnxError;
use rekindle_plan::PlanError;
use rekindle_plan::mutwo::ActivationPlanError;
use rekindle_profile::ProfileError;
use rekindle_program::ProgramError;
use rekindle_rewrite::RewriteError;
use rekindle_verify::Violations;

/// A mistake on the command line.
pub(crate) const USAGE: u8 = 2;
/// No plan fits in the budget, or the step not in memory.
pub(crate) const INFEASIBLE: u8 = 3;
/// A plan breaks a rule, or a step was not what was promised.
pub(crate) const VIOLATION: u8 = 4;
/// A file cannot be read, or what it holds is not what it should be.
pub(crate) const BAD_FILE: u8 = 5;
/// Ctrl-C, or the system's wish to end.
pub(crate) const INTERRUPTED: u8 = 130;
/// Whoever read standard output is gone.
pub(crate) const CLOSED_PIPE: u8 = 141;
/// Anything else.
pub(crate) const FAILURE: u8 = 1;

/// Printed under `rekindle --help`.
pub(crate) const HELP: &str = "\
To train a model in the memory you have, look for one, see what fits, and run it:
  rekindle models
  rekindle max-batch resnet50 --budget 2GiB
  rekindle run resnet50 --batch-size 8 --budget 50% --steps 5

Exit codes:
  0    done
  1    something else went wrong
  2    there is a mistake on the command line
  3    no plan fits in the budget, or the step does not fit in memory
  4    a plan is not valid, or a step did not compute what it should
  5    a file cannot be read or written, or does not hold what it should
  130  interrupted (Ctrl-C); no half-written file is left
  141  the output was closed before its end, as in `rekindle models | head -1`

Results go to standard output, progress and notes to standard error; with --json, standard output \
is JSON and nothing else. Colours are used on a terminal, unless NO_COLOR is set.";

/// Ends the tool from any thread, without half-written files.
pub(crate) fn now(code: u8) -> ! {
    let _held = rekindle_graph::discard_partial_files();
    std::process::exit(code.into())
}

/// A mistake on the command line that only the verb can see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// There is no plan at any of several batch sizes.
#[derive(Debug, thiserror::Error)]
#[error("no batch size has a plan that fits; give more memory, or smaller batches")]
pub(crate) struct NothingFits;

/// A step that did not keep what was promised.
#[derive(Debug, thiserror::Error)]
#[error("{0}; please report this")]
pub(crate) struct Promised(pub(crate) String);

/// The code for an error: the first cause that has one decides.
pub(crate) fn code(error: &anyhow::Error) -> ExitCode {
    let code = error.chain().find_map(|cause| {
        if cause.is::<UsageError>() {
            return Some(USAGE);
        }
        if let Some(error) = cause.downcast_ref::<ModelError>() {
            return Some(of_model(error));
        }
        if let Some(error) = cause.downcast_ref::<rekindle::Error>() {
            return of_training(error);
        }
        if let Some(EngineError::Store { .. }) = cause.downcast_ref() {
            return Some(BAD_FILE);
        }
        if cause.is::<NothingFits>()
            || cause.downcast_ref::<EngineError>().is_some_and(is_out_of_memory)
        {
            return Some(INFEASIBLE);
        }
        if let Some(EngineError::Store { .. }) = cause.downcast_ref::<EngineError>() {
            return Some(BAD_FILE);
        }
        if cause.is::<TableError>() || cause.is::<FileError>() || cause.is::<std::io::Error>() {
            return Some(BAD_FILE);
        }
        match cause.downcast_ref::<ProfileError>() {
            Some(ProfileError::NoMemoryForCopy(_)) => return Some(INFEASIBLE),
            Some(ProfileError::Engine(error)) if is_out_of_memory(error) => {
                return Some(INFEASIBLE);
            }
            Some(ProfileError::Engine(EngineError::Store { .. })) => return Some(BAD_FILE),
            Some(ProfileError::Engine(_)) | None => {}
            Some(_) => return Some(BAD_FILE),
        }
        if cause.is::<Violations>() || cause.is::<RewriteError>() || cause.is::<Promised>() {
            return Some(VIOLATION);
        }
        match cause.downcast_ref::<ActivationPlanError>() {
            Some(ActivationPlanError::Infeasible { .. }) => return Some(INFEASIBLE),
            Some(_) => return Some(BAD_FILE),
            None => {}
        }
        match cause.downcast_ref::<ReserveError>() {
            Some(ReserveError::DoesNotFit { .. }) => return Some(INFEASIBLE),
            Some(ReserveError::Plan(error)) => return of_plan(error),
            None => {}
        }
        cause.downcast_ref::<PlanError>().and_then(of_plan)
    });
    ExitCode::from(code.unwrap_or(FAILURE))
}

/// The code for what goes wrong in planning.
fn of_plan(error: &PlanError) -> Option<u8> {
    match error {
        PlanError::Infeasible(_) => Some(INFEASIBLE),
        PlanError::Rejected { .. } => Some(VIOLATION),
        PlanError::NeedsStore { .. } => Some(USAGE),
        PlanError::AlreadyMoves { .. } => Some(BAD_FILE),
        PlanError::Stopped { .. } => None,
    }
}

/// The code for what goes wrong between a model and its training.
fn of_training(error: &rekindle::Error) -> Option<u8> {
    use rekindle::Error;
    match error {
        Error::Model(error) => Some(of_model(error)),
        Error::DoesNotFit { .. }
        | Error::TooSlow { .. }
        | Error::PlainDoesNotFit { .. }
        | Error::PlainOutOfMemory { .. }
        | Error::EvaluationDoesNotFit { .. }
        | Error::Data(DataError::Memory { .. })
        | Error::Plan(PlanError::Infeasible(_)) => Some(INFEASIBLE),
        Error::Plan(PlanError::Rejected { .. })
        | Error::Rewrite(_)
        | Error::Verify(_)
        | Error::PeakDiffers { .. } => Some(VIOLATION),
        Error::Weights(_) | Error::Checkpoint { .. } | Error::OtherRun { .. } => Some(BAD_FILE),
        Error::Engine(error) | Error::Profile(ProfileError::Engine(error))
            if is_out_of_memory(error) =>
        {
            Some(INFEASIBLE)
        }
        Error::Engine(EngineError::Store { .. })
        | Error::Profile(ProfileError::Engine(EngineError::Store { .. })) => Some(BAD_FILE),
        Error::Plan(PlanError::NeedsStore { .. })
        | Error::NoData { .. }
        | Error::NothingToEvaluate
        | Error::Data(DataError::NoTokenizer | DataError::TooFew { .. }) => Some(USAGE),
        Error::Data(DataError::Thread(_) | DataError::Ended) => None,
        Error::Plan(PlanError::AlreadyMoves { .. }) | Error::Data(_) => Some(BAD_FILE),
        Error::Onnx(error) => Some(of_onnx(error)),
        Error::Plan(PlanError::Stopped { .. })
        | Error::Profile(_)
        | Error::Engine(_)
        | Error::OtherNodes { .. } => None,
    }
}

/// The code for an ONNX file: a mistake, unless the file is bad.
fn of_onnx(error: &OnnxError) -> u8 {
    match error {
        OnnxError::Extent { .. } | OnnxError::Loss { .. } => USAGE,
        _ => BAD_FILE,
    }
}

/// The code for a model that cannot be built: a mistake, unless no machine could hold it.
fn of_model(error: &ModelError) -> u8 {
    match error {
        ModelError::Program { source: ProgramError::TooLarge { .. }, .. } => INFEASIBLE,
        _ => USAGE,
    }
}

/// Whether the machine has not enough memory for a step.
pub(crate) fn is_out_of_memory(error: &EngineError) -> bool {
    matches!(error, EngineError::OutOfMemory { .. } | EngineError::Reserve { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_graph::Bytes;

    #[track_caller]
    fn check(error: impl Into<anyhow::Error>, expected: u8) {
        let error = error.into().context("while it worked");
        let found = format!("{:?}", code(&error));
        assert_eq!(found, format!("{:?}", ExitCode::from(expected)));
    }

    #[test]
    fn what_the_machine_lacks_has_its_code() {
        let memory = || EngineError::OutOfMemory { needed: Bytes(2), available: Bytes(1) };
        check(memory(), INFEASIBLE);
        check(ProfileError::from(memory()), INFEASIBLE);
        check(rekindle::Error::from(memory()), INFEASIBLE);
        check(ProfileError::NoMemoryForCopy(Bytes(2)), INFEASIBLE);
        let store = || EngineError::Store {
            what: "write to",
            name: "the store's file in d".into(),
            reason: "no space".into(),
            advice: "make room there",
        };
        check(store(), BAD_FILE);
        check(rekindle::Error::from(store()), BAD_FILE);
        check(ProfileError::from(store()), BAD_FILE);
        check(anyhow::anyhow!("something"), FAILURE);
    }
}
