//! What can go wrong before or while a step runs.

use rekindle_graph::Bytes;
use rekindle_program::DType;

use crate::kernels::KernelError;

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
    #[error("{node}: {source}")]
    Kernel { node: String, source: KernelError },
}
