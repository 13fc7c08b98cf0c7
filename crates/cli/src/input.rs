//! What a verb works on: a graph file.

use std::path::Path;

use anyhow::Context as _;
use remat_graph::{Graph, read_graph};

/// Reads the graph that the user named.
pub(crate) fn graph(path: &Path) -> anyhow::Result<Graph> {
    read_graph(path).with_context(|| format!("the graph {} is of no use", path.display()))
}
