//! Which model is trained: one that is built in, or one of an ONNX file.

use std::path::Path;

use rekindle::Error;
use rekindle::train::{Session, merged_pieces};
use rekindle_data::{Answers, Wanted};
use rekindle_engine::Engine;
use rekindle_models::{Model, ModelOptions, build};
use rekindle_onnx::{Loss, Onnx};
use rekindle_program::{Settings, Updates};

use super::options::ModelArguments;

/// Where a model comes from.
pub(crate) enum Source {
    /// One that is built in, by its name.
    BuiltIn(String),
    /// One of a file, with the file's name and what it is trained for.
    File(Box<Onnx>, String, Loss),
}

impl Source {
    pub(crate) fn new(arguments: &ModelArguments) -> anyhow::Result<Source> {
        let path = Path::new(&arguments.model);
        if path.extension().is_none_or(|ending| ending != "onnx") {
            return Ok(Source::BuiltIn(arguments.model.clone()));
        }
        let onnx = Onnx::open(path).map_err(Error::from)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Source::File(Box::new(onnx), name, arguments.loss()))
    }

    /// Gives a session the weights of the file, if it is of one.
    pub(crate) fn load(&self, session: &mut Session<'_>) -> Result<(), Error> {
        let model = session.model();
        self.load_into(model, session.engine_mut())
    }

    /// Gives a model's engine the weights of the file, if it is of one.
    pub(crate) fn load_into(&self, model: &Model, engine: &mut Engine) -> Result<(), Error> {
        if let Source::File(onnx, ..) = self {
            onnx.load(model, |id, fill| engine.write_pieces(id, fill))?;
        }
        Ok(())
    }

    /// Writes the file's graph with the weights that a session has.
    pub(crate) fn export(&self, path: &Path, session: &Session<'_>) -> Result<(), Error> {
        if let Source::File(onnx, ..) = self {
            let (model, engine) = (session.model(), session.engine());
            onnx.export(path, model, |id, take| merged_pieces(model, engine, id, take))?;
        }
        Ok(())
    }

    /// Whether it is one of a file, which can be written again.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self, Source::File(..))
    }

    /// What files about it are called.
    pub(crate) fn name(&self) -> &str {
        match self {
            Source::BuiltIn(name) | Source::File(_, name, _) => name,
        }
    }

    /// What the samples of its data are, and what they are to be answered with.
    pub(crate) fn wanted(&self, arguments: &ModelArguments) -> anyhow::Result<(Wanted, Answers)> {
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
            Source::File(onnx, _, loss) if options.settings.inference => {
                Ok(onnx.evaluate(*loss, options).map_err(Error::from)?)
            }
            Source::File(onnx, _, loss) => Ok(onnx.train(*loss, options).map_err(Error::from)?),
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
