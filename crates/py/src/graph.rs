//! The graph, and budgets for it.

use pyo3::prelude::*;
use rekindle_graph::Timeline;

use crate::error::invalid;

/// A checked training step.
#[pyclass(frozen, module = "rekindle")]
pub(crate) struct Graph {
    pub(crate) graph: rekindle_graph::Graph,
    /// Of the plain step.
    pub(crate) timeline: Timeline,
}

impl Graph {
    pub(crate) fn new(graph: rekindle_graph::Graph) -> Graph {
        let timeline = Timeline::natural(&graph);
        Graph { graph, timeline }
    }
}

#[pymethods]
impl Graph {
    /// Reads `remat.graph/1`.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Graph> {
        let graph = rekindle_graph::Graph::from_json(text).map_err(|error| invalid(py, error))?;
        Ok(Graph::new(graph))
    }

    /// Writes `remat.graph/1`.
    fn to_json(&self) -> String {
        self.graph.to_json()
    }

    /// The graph's own name.
    #[getter]
    fn name(&self) -> &str {
        self.graph.name()
    }

    /// How many nodes it has.
    fn __len__(&self) -> usize {
        self.graph.nodes().len()
    }

    /// The plain step's peak, in bytes.
    #[getter]
    fn peak(&self) -> u64 {
        self.timeline.peak.get()
    }

    /// The plain step's time, in microseconds.
    #[getter]
    fn time(&self) -> f64 {
        self.timeline.time.get()
    }

    /// Below this many bytes no plan can go.
    #[getter]
    fn floor(&self) -> u64 {
        rekindle_plan::floor(&self.graph).bytes.get()
    }

    /// The highest bytes while each node of the plain step runs, in order.
    fn timeline(&self) -> Vec<u64> {
        runs(
            &rekindle_graph::Schedule::plain(&self.graph),
            &self.timeline,
        )
    }

    fn __repr__(&self) -> String {
        format!(
            "<rekindle.Graph {:?}: {} nodes, peak {}>",
            self.graph.name(),
            self.graph.nodes().len(),
            self.timeline.peak
        )
    }
}

/// The bytes during each run of a schedule, without the frees between them.
pub(crate) fn runs(schedule: &rekindle_graph::Schedule, timeline: &Timeline) -> Vec<u64> {
    let during = schedule.steps.iter().zip(&timeline.during);
    let runs = during.filter(|(step, _)| matches!(step, rekindle_graph::Step::Run(_)));
    runs.map(|(_, bytes)| bytes.get()).collect()
}

/// The bytes that `text` allows for `graph`: `3GiB`, `800MiB`, plain bytes, or `60%` of the plain
/// peak.
#[pyfunction]
pub(crate) fn parse_budget(py: Python<'_>, text: &str, graph: &Graph) -> PyResult<u64> {
    match rekindle_graph::parse_budget(text) {
        Ok(budget) => Ok(budget.resolve(graph.timeline.peak).get()),
        Err(why) => Err(invalid(py, format!("the budget \"{text}\" {why}"))),
    }
}
