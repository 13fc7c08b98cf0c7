//! Training: steps on generated data, weights, and checkpoints.

use std::path::Path;

use rekindle_engine::{Engine, Iteration, Observer, Peak};
use rekindle_graph::StorageId;
use rekindle_models::{Model, Values, data, weights};
use rekindle_program::DType;

use crate::{Error, checkpoint};

/// A model in training.
pub struct Trainer<'m> {
    model: &'m Model,
    engine: Engine,
    seed: u64,
    /// How many training steps are over.
    step: u64,
}

/// What a training step gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IterationReport {
    /// Which training step it was, counted from 1.
    pub number: u64,
    /// The loss before the update.
    pub loss: f32,
    /// The peak that the step had; it equals the prediction, or the step is an error.
    pub measured: Peak,
}

impl<'m> Trainer<'m> {
    /// Starts at step 1, with weights from `seed`.
    ///
    /// # Errors
    /// If weights live in a store, and that fails.
    pub fn new(model: &'m Model, mut engine: Engine, seed: u64) -> Result<Trainer<'m>, Error> {
        engine.fill_sources(seed)?;
        Ok(Trainer { model, engine, seed, step: 0 })
    }

    /// The engine, for its values.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// How many training steps are over.
    pub fn steps_done(&self) -> u64 {
        self.step
    }

    /// Feeds the next batch and runs the step.
    ///
    /// # Errors
    /// If the measured peak is not the predicted one.
    pub fn step(&mut self) -> Result<IterationReport, Error> {
        self.feed()?;
        self.run()
    }

    /// Writes the next step's batch.
    ///
    /// # Errors
    /// None for data that belongs to the model.
    pub fn feed(&mut self) -> Result<(), Error> {
        write_batch(&mut self.engine, self.model, self.seed, self.step + 1)
    }

    /// Runs the next step on the batch that was written last.
    ///
    /// # Errors
    /// If the measured peak is not the predicted one.
    pub fn run(&mut self) -> Result<IterationReport, Error> {
        self.run_observed(&mut ())
    }

    /// As [`Trainer::run`], with somebody watching each node.
    ///
    /// # Errors
    /// If the measured peak is not the predicted one.
    pub fn run_observed(&mut self, observer: &mut dyn Observer) -> Result<IterationReport, Error> {
        self.step += 1;
        let iteration = Iteration { seed: self.seed, number: self.step };
        let measured = self.engine.run_observed(iteration, observer)?;
        let predicted = self.engine.predicted();
        if measured != predicted {
            return Err(Error::PeakDiffers { step: self.step, predicted, measured });
        }
        Ok(IterationReport {
            number: self.step,
            loss: self.engine.read_f32(self.model.loss)?[0],
            measured,
        })
    }

    /// Takes the weights of a file.
    ///
    /// # Errors
    /// If the file does not hold exactly the model's weights.
    pub fn load_weights(&mut self, path: &Path) -> Result<(), Error> {
        let engine = &mut self.engine;
        Ok(weights::load(path, self.model, |id, fill| engine.write_pieces(id, fill))?)
    }

    /// Writes the weights to a file, whole or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save_weights(&self, path: &Path) -> Result<(), Error> {
        Ok(weights::save(path, self.model, |id, take| self.engine.read_pieces(id, take))?)
    }

    /// Writes everything that the next step depends on to a file, whole or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save_checkpoint(&self, path: &Path) -> Result<(), Error> {
        checkpoint::save(path, &self.engine, self.seed, self.step, None)
    }

    /// Goes on where a checkpoint was written.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or belongs to another model, size, optimizer or
    /// seed. Nothing is changed then.
    pub fn resume(&mut self, path: &Path) -> Result<(), Error> {
        (self.step, _) = checkpoint::load(path, &mut self.engine, self.seed, &|_| Ok(()))?;
        Ok(())
    }
}

/// Writes the generated batch of a step, counted from 1: what [`Trainer`] does before each.
///
/// # Errors
/// None for an engine of this model.
pub fn write_batch(engine: &mut Engine, model: &Model, seed: u64, step: u64) -> Result<(), Error> {
    for (id, values) in data::batch(model, seed, step) {
        write(engine, id, &values)?;
    }
    Ok(())
}

pub(crate) fn write(engine: &mut Engine, id: StorageId, values: &Values) -> Result<(), Error> {
    match values {
        Values::F32(values) => engine.write_f32(id, values)?,
        Values::I64(values) => engine.write_i64(id, values)?,
    }
    Ok(())
}

pub(crate) fn read(engine: &Engine, id: StorageId) -> Result<Values, Error> {
    Ok(match engine.program().tensor(id).dtype {
        DType::I64 => Values::I64(engine.read_i64(id)?.into_owned()),
        DType::F32 | DType::U8 => Values::F32(engine.read_f32(id)?.into_owned()),
    })
}
