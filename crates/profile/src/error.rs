//! What can go wrong when a step is measured, in words for the reader.

use rekindle_engine::EngineError;
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
    #[error(
        "there is no memory for a copy of {0} outside the arena, to measure how long swapping \
         takes; take a smaller batch"
    )]
    NoMemoryForCopy(Bytes),
}
