//! What a verb works on: a graph file, or a model whose step is measured first.

use std::path::Path;

use anyhow::Context as _;
use remat::{FitOptions, profile_plain};
use remat_graph::{Graph, read_graph};
use remat_models::{ModelOptions, build, names};
use remat_program::Optimizer;

use crate::exit::UsageError;
use crate::progress::Preparation;

/// Reads the graph that the user named.
pub(crate) fn graph(path: &Path) -> anyhow::Result<Graph> {
    read_graph(path).with_context(|| format!("the graph {} is of no use", path.display()))
}

/// Reads the graph that the user named or, with a batch size, measures the plain step of the model
/// of that name, trained with Adam.
pub(crate) fn graph_or_model(name: &Path, batch: Option<usize>) -> anyhow::Result<Graph> {
    let Some(batch) = batch else {
        let model = names().find(|model| Path::new(model) == name);
        return match model.filter(|_| !name.exists()) {
            Some(model) => {
                Err(UsageError(format!("{model} is a model: give a --batch-size")).into())
            }
            None => graph(name),
        };
    };
    let options = ModelOptions {
        batch,
        optimizer: Some(Optimizer::adam(1e-3)),
        ..ModelOptions::default()
    };
    let model = build(&name.display().to_string(), &options)?;
    let mut progress = Preparation::new();
    let mut watch = |preparing| progress.show(preparing);
    Ok(profile_plain(&model, &FitOptions::default(), &mut watch)?)
}
