//! What can go wrong before or while a step runs.

use std::io;

use rekindle_graph::Bytes;
use rekindle_program::DType;

use crate::kernels::KernelError;
use crate::moves::Direction;
use crate::store::{Backing, advice};

/// Why a step cannot be set up or run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum EngineError {
    #[error(
        "`{node}` is not what any node of {program} does with that many threads; run the graph \
         that was made from this program"
    )]
    OtherProgram { node: String, program: String },
    #[error(
        "the step needs an arena of {needed}, but this machine has {available} to give; take a \
         smaller batch, or plan the step for a budget below that"
    )]
    OutOfMemory { needed: Bytes, available: Bytes },
    #[error("the arena of {needed} could not be reserved: {reason}")]
    Reserve { needed: Bytes, reason: String },
    #[error(
        "the system started {started} of {wanted} threads and no more: {reason}; ask for fewer \
         (`--threads`), or allow the process more of them and more memory"
    )]
    Threads { wanted: usize, started: usize, reason: String },
    #[error("no tensor is named `{name}` in {program}")]
    UnknownTensor { name: String, program: String },
    #[error("`{name}` holds {expected} elements, but {found} were given")]
    Length { name: String, expected: usize, found: usize },
    #[error("`{name}` holds {expected:?} elements, not {found:?}")]
    Type { name: String, expected: DType, found: DType },
    #[error("`{name}` is gone after the step: it is neither persistent nor an output")]
    Gone { name: String },
    #[error("cannot {what} {name}: {reason}; {advice}")]
    Store { what: &'static str, name: String, reason: String, advice: &'static str },
    #[error(
        "the thread {thread} panicked while it was to {} {name}: {reason}; please report this (the \
         last checkpoint is intact)", direction.verb()
    )]
    TransferPanicked { thread: String, direction: Direction, name: String, reason: String },
    #[error(
        "the step moves {needed} to a store and back, and the engine has none; set it up with one"
    )]
    NoStore { needed: Bytes },
    #[error(
        "`{name}` is not in the memory of {program}, so nothing that needs it can run there; a \
         step that keeps it in a store cannot be evaluated while it trains"
    )]
    NotBeside { name: String, program: String },
    #[error("{node}: {source}")]
    Kernel { node: String, source: KernelError },
}

impl EngineError {
    /// A transfer that failed.
    pub(crate) fn store(
        backing: &dyn Backing,
        direction: Direction,
        error: &io::Error,
    ) -> EngineError {
        let what = direction.verb();
        let (name, reason) = (backing.name(), error.to_string());
        EngineError::Store { what, name, reason, advice: advice(error) }
    }
}

impl From<EngineError> for io::Error {
    fn from(error: EngineError) -> io::Error {
        io::Error::other(error)
    }
}
