//! A plan: a schedule with the promise that it makes.

use crate::{Bytes, Micros, Step};

/// A schedule of runs and frees on one graph, and what it promises.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The name of the graph it is for.
    pub graph: String,
    /// The strategy that made it, where known.
    pub strategy: Option<String>,
    /// What the whole step may use at its peak.
    pub budget: Bytes,
    /// The highest sum of live bytes at any step, scratch and persistent storages included.
    pub peak: Bytes,
    /// The sum of the times of all runs.
    pub time: Micros,
    /// What to do, in order.
    pub steps: Vec<Step>,
}
