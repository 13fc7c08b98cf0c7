//! What can go wrong when a step is measured, in words for the reader.

use rekindle_engine::{EngineError, SpillError};
use rekindle_graph::{Bytes, GraphError};

/// Why there is no measurement.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum ProfileError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("there is nothing to measure in 0 steps; measure at least one")]
    NothingMeasured,
    #[error("cannot measure how long swapping takes: {0}")]
    Spill(SpillError),
    #[error(
        "`{node}` alone needs {needed} ({persistent} of it for parameters, optimizer state and the \
         batch), more than the limit of {limit}; swapping cannot help there: raise the limit or \
         take a smaller batch"
    )]
    NodeDoesNotFit { node: String, needed: Bytes, persistent: Bytes, limit: Bytes },
    #[error(
        "the step needs an arena of {needed} with everything idle swapped out, more than the limit \
         of {limit}; raise the limit to {needed} or take a smaller batch"
    )]
    LimitTooSmall { limit: Bytes, needed: Bytes },
}
