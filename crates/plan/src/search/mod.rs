//! The default strategy.

use remat_graph::{Bytes, Graph};

use crate::draft::Draft;
use crate::{Options, PlanError, Watch, sqrt};

/// A draft under `budget` if one is found, otherwise the lowest that was reached.
pub(crate) fn draft(
    graph: &Graph,
    _budget: Bytes,
    _options: &Options,
    _watch: &mut dyn Watch,
) -> Result<Draft, PlanError> {
    Ok(sqrt::draft(graph))
}
