//! Which model is trained: one that is built in.

use rekindle_data::Wanted;
use rekindle_models::{Model, ModelOptions, build};
use rekindle_program::{Settings, Updates};

use super::options::ModelArguments;

/// Where a model comes from.
pub(crate) enum Source {
    /// One that is built in, by its name.
    BuiltIn(String),
}

impl Source {
    pub(crate) fn new(arguments: &ModelArguments) -> anyhow::Result<Source> {
        Ok(Source::BuiltIn(arguments.model.clone()))
    }

    /// What files about it are called.
    pub(crate) fn name(&self) -> &str {
        match self {
            Source::BuiltIn(name) => name,
        }
    }

    /// What the samples of its data are.
    pub(crate) fn wanted(&self, arguments: &ModelArguments) -> anyhow::Result<Wanted> {
        let probe = self.build(&ModelOptions { batch: 1, ..inferring(arguments) })?;
        Ok(rekindle::train::wanted(&probe)?)
    }

    /// One training step.
    pub(crate) fn training(
        &self,
        arguments: &ModelArguments,
        classes: Option<usize>,
        updates: &Updates,
    ) -> anyhow::Result<Model> {
        let options = ModelOptions {
            classes,
            optimizer: Some(updates.optimizer),
            clip: updates.clip,
            accumulate: updates.accumulate,
            no_decay: updates.no_decay.clone(),
            vectors_decay: updates.vectors_decay,
            settings: arguments.settings()?,
            ..sizes(arguments)
        };
        self.build(&options)
    }

    /// The forward pass alone.
    pub(crate) fn inferring(
        &self,
        arguments: &ModelArguments,
        classes: Option<usize>,
    ) -> anyhow::Result<Model> {
        let settings = Settings { inference: true, ..arguments.settings()? };
        self.build(&ModelOptions { classes, settings, ..sizes(arguments) })
    }

    fn build(&self, options: &ModelOptions) -> anyhow::Result<Model> {
        match self {
            Source::BuiltIn(name) => Ok(build(name, options)?),
        }
    }
}

fn sizes(arguments: &ModelArguments) -> ModelOptions {
    ModelOptions {
        batch: arguments.batch_size,
        image_size: arguments.image_size,
        sequence: arguments.sequence,
        dropout: arguments.dropout,
        ..ModelOptions::default()
    }
}

fn inferring(arguments: &ModelArguments) -> ModelOptions {
    let settings = Settings { inference: true, ..Settings::default() };
    ModelOptions { settings, classes: arguments.classes, ..sizes(arguments) }
}
