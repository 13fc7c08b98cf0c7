//! The files of a profile, for a step that was timed elsewhere.

use std::path::PathBuf;

use pyo3::prelude::*;
use rekindle_analysis::Profile;
use rekindle_report::profile_charts;

use crate::error::invalid;
use crate::graph::Graph;

/// Writes tables, graph and pictures into a folder, and gives their paths.
#[pyfunction]
pub(crate) fn write_profile(
    py: Python<'_>,
    graph: &Graph,
    folder: PathBuf,
    model: &str,
    batch_size: usize,
    device: &str,
) -> PyResult<Vec<PathBuf>> {
    let graph = &graph.graph;
    let profile = Profile::of_graph(model, batch_size, graph, device);
    let paths = rekindle_analysis::write_profile(&folder, &profile, graph)
        .map_err(|error| invalid(py, error))?;
    let mut written = vec![paths.nodes, paths.activations, paths.graph];
    for (name, chart) in profile_charts(&profile, graph, None) {
        let files = chart.save(&folder, &name);
        written.extend(files.map_err(|error| invalid(py, error))?);
    }
    Ok(written)
}
