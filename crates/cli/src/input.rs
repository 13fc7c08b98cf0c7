//! What a verb works on: a graph file, or a model whose step is measured first.

use std::path::Path;

use anyhow::{Context as _, bail};
use rekindle::{FitOptions, plain, profile_layout};
use rekindle_graph::{Graph, read_graph};
use rekindle_models::{ModelOptions, build};
use rekindle_program::Optimizer;

use crate::exit::UsageError;
use crate::progress::Meter;

/// Reads the graph that the user named.
pub(crate) fn graph(path: &Path) -> anyhow::Result<Graph> {
    read_graph(path).with_context(|| format!("the graph {} cannot be used", path.display()))
}

/// Reads the graph that the user named or, with a batch size, measures the plain step of the model
/// of that name, trained with Adam.
pub(crate) fn graph_or_model(name: &Path, batch: Option<usize>) -> anyhow::Result<Graph> {
    // What is no file and does not look like one was meant to be a model.
    let is_file = name.exists() || name.extension().is_some() || name.components().count() > 1;
    match (is_file, batch) {
        (true, None) => return graph(name),
        (true, Some(_)) => bail!(UsageError(format!(
            "{} names a file, whose batch size is what it is; leave out --batch-size, or name a \
             model",
            name.display()
        ))),
        (false, _) => {}
    }
    let options = ModelOptions {
        batch: batch.unwrap_or(1),
        optimizer: Some(Optimizer::adam(1e-3)),
        ..ModelOptions::default()
    };
    let model = build(&name.display().to_string(), &options)?;
    if batch.is_none() {
        bail!(UsageError(format!("{} is a model: give a --batch-size", name.display())));
    }
    let mut meter = Meter::new(None);
    let mut watch = |preparing| meter.prepare(preparing, "");
    let options = FitOptions::default();
    let plain = plain(&model, options.threads);
    Ok(profile_layout(&model, &plain, &options, &mut watch)?)
}
