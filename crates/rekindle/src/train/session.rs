//! A model in training on data: updates, evaluations, checkpoints.

use std::path::Path;

use rekindle_data::{Ahead, Batches, DataError, Skipped};
use rekindle_engine::{Engine, Iteration, Update};
use rekindle_graph::Bytes;
use rekindle_models::Model;
use rekindle_program::Patterns;
use serde_json::{Value, json};

use super::evaluation::{Evaluation, Metrics, feed};
use super::files;
use super::recipe::{Recipe, difference};
use crate::Error;
use crate::checkpoint::{self, other_run};

/// A model in training on data.
pub struct Session<'m> {
    model: &'m Model,
    engine: Engine,
    batches: Batches,
    recipe: Recipe,
    evaluation: Option<Evaluation<'m>>,
    data_memory: Bytes,
    /// Begins when the first batch is wanted.
    ahead: Option<Ahead>,
    state: State,
}

/// What a run has come to, beside its tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct State {
    /// How many updates are over.
    updates: u64,
    /// The lowest loss of an evaluation, and after which update it was found.
    best: Option<(f64, u64)>,
    /// Evaluations since then.
    since_best: u64,
}

/// What a session begins with.
pub struct Start<'m> {
    /// The model, built to train.
    pub model: &'m Model,
    /// The engine of its fitted step.
    pub engine: Engine,
    /// What it is trained on.
    pub batches: Batches,
    /// How it is evaluated, if it is.
    pub evaluation: Option<Evaluation<'m>>,
    /// How the run goes.
    pub recipe: Recipe,
    /// What batches that are read ahead may take.
    pub data_memory: Bytes,
}

/// What an update gave.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateReport {
    /// Which update it was, counted from 1.
    pub number: u64,
    /// How many times the data has been gone through.
    pub epoch: f64,
    /// The mean loss of its steps, before the parameters moved.
    pub loss: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// The norm of all gradients together, before they were clipped; nothing if they are not.
    pub gradient_norm: Option<f64>,
    /// Bad files in whose place others stood.
    pub skipped: Vec<Skipped>,
}

impl<'m> Session<'m> {
    /// Starts before the first update, with weights from the recipe's seed.
    ///
    /// # Errors
    /// If an epoch is too short for an update, or weights live in a store that fails.
    pub fn new(start: Start<'m>) -> Result<Session<'m>, Error> {
        let Start { model, mut engine, batches, evaluation, recipe, data_memory } = start;
        if batches.per_epoch() < recipe.accumulate {
            let batch = batches.batch() * recipe.accumulate as usize;
            return Err(DataError::TooFew { samples: batches.samples(), batch }.into());
        }
        engine.fill_sources(recipe.seed)?;
        // The gradients of an update's steps are summed, and their mean is wanted.
        if let Some(tensor) = model.loss_gradient {
            engine.write_f32(tensor, &[(1.0 / recipe.accumulate as f64) as f32])?;
        }
        let state = State::default();
        let ahead = None;
        Ok(Session { model, engine, batches, recipe, evaluation, data_memory, ahead, state })
    }

    /// The engine, for its values.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine, to give it other weights before the first update.
    pub fn engine_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The model.
    pub fn model(&self) -> &'m Model {
        self.model
    }

    /// How many updates are over.
    pub fn updates_done(&self) -> u64 {
        self.state.updates
    }

    /// Updates in an epoch.
    pub fn per_epoch(&self) -> u64 {
        (self.batches.per_epoch() / self.recipe.accumulate).max(1)
    }

    /// How many updates the run has, unless it ends early.
    pub fn total_updates(&self) -> u64 {
        let all = self.recipe.epochs * self.per_epoch();
        self.recipe.updates.map_or(all, |updates| updates.min(all))
    }

    /// Whether nothing is left to do: the last update is over, or no evaluation was better for as
    /// long as the recipe waits.
    pub fn is_over(&self) -> bool {
        self.state.updates >= self.total_updates() || self.is_stopped()
    }

    /// Whether it ended before its last update.
    pub fn is_stopped(&self) -> bool {
        self.recipe.patience.is_some_and(|patience| self.state.since_best >= patience)
    }

    /// The lowest loss of an evaluation, and after which update it was found.
    pub fn best(&self) -> Option<(f64, u64)> {
        self.state.best
    }

    /// Whether an evaluation comes after the update that was last.
    pub fn evaluates_now(&self) -> bool {
        let every = self.recipe.evaluate_every.unwrap_or(self.per_epoch()).max(1);
        let is_due = self.state.updates.is_multiple_of(every);
        let is_last = self.state.updates == self.total_updates();
        self.evaluation.is_some() && (is_due || is_last)
    }

    /// Runs the steps of the next update.
    ///
    /// # Errors
    /// If data cannot be read, or a measured peak is not the predicted one.
    pub fn update(&mut self) -> Result<UpdateReport, Error> {
        let (number, steps) = (self.state.updates, self.recipe.accumulate);
        let learning_rate = self.recipe.learning_rate.at(number, self.total_updates());
        let mut loss = 0.0;
        let mut skipped = Vec::new();
        for step in 0..steps {
            let batch = self.next_batch()?;
            feed(&mut self.engine, self.model, &batch)?;
            skipped.extend(batch.skipped);
            self.engine.set_update(Update {
                learning_rate: Some(learning_rate),
                number: Some(number + 1),
                begins: step == 0,
                ends: step + 1 == steps,
            });
            let iteration = Iteration { seed: self.recipe.seed, number: number * steps + step + 1 };
            let measured = self.engine.run(iteration)?;
            let predicted = self.engine.predicted();
            if measured != predicted {
                let step = iteration.number;
                return Err(Error::PeakDiffers { step, predicted, measured });
            }
            loss += f64::from(self.engine.read_f32(self.model.loss)?[0]);
        }
        self.state.updates += 1;
        let norm = match self.model.square_sum {
            Some(sum) => Some(f64::from(self.engine.read_f32(sum)?[0]).sqrt()),
            None => None,
        };
        Ok(UpdateReport {
            number: number + 1,
            epoch: (number + 1) as f64 / self.per_epoch() as f64,
            loss: loss / steps as f64,
            learning_rate,
            gradient_norm: norm,
            skipped,
        })
    }

    fn next_batch(&mut self) -> Result<rekindle_data::Batch, Error> {
        if self.ahead.is_none() {
            // An epoch is a whole number of updates: what is left of it is left out.
            let (steps, per_epoch) = (self.recipe.accumulate, self.per_epoch());
            let first = self.state.updates;
            let place = move |update: u64| (update / per_epoch, update % per_epoch);
            let of_epoch = self.batches.per_epoch();
            let numbers = (first..self.total_updates()).flat_map(move |update| {
                let (epoch, update) = place(update);
                (0..steps).map(move |step| epoch * of_epoch + update * steps + step)
            });
            self.ahead = Some(Ahead::start(self.batches.clone(), numbers, self.data_memory)?);
        }
        let ahead = self.ahead.as_mut().expect("it has begun");
        Ok(ahead.next_batch()?)
    }

    /// Evaluates the model as it is. Gives what was found, and whether it is the best so far.
    ///
    /// # Errors
    /// If there is nothing to evaluate with, or it cannot be read.
    pub fn evaluate(
        &mut self,
        watch: &mut dyn FnMut(u64, u64, &[Skipped]),
    ) -> Result<(Metrics, bool), Error> {
        let evaluation = self.evaluation.as_mut().ok_or(Error::NothingToEvaluate)?;
        let metrics = evaluation.run(&mut self.engine, watch)?;
        let is_best = self.state.best.is_none_or(|(best, _)| metrics.loss < best);
        if is_best {
            self.state.best = Some((metrics.loss, self.state.updates));
            self.state.since_best = 0;
        } else {
            self.state.since_best += 1;
        }
        Ok((metrics, is_best))
    }

    /// Takes the weights of a file, but for those whose names are `fresh`.
    ///
    /// # Errors
    /// If the file does not hold exactly the model's weights.
    pub fn load_weights(&mut self, path: &Path, fresh: &Patterns) -> Result<(), Error> {
        files::load_weights(path, self.model, &mut self.engine, fresh)
    }

    /// Writes the weights to a file, whole or not at all, with adapters added to the matrices
    /// beside which they stand.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save_weights(&self, path: &Path, note: Option<(&str, String)>) -> Result<(), Error> {
        files::save_merged(path, self.model, &self.engine, note)
    }

    /// Writes everything that the rest of the run depends on to a file, whole or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save_checkpoint(&self, path: &Path) -> Result<(), Error> {
        let State { updates, best, since_best } = self.state;
        let training = json!({
            "recipe": self.recipe.to_json(),
            "best_loss": best.map(|best| best.0),
            "best_update": best.map(|best| best.1),
            "evaluations_since_best": since_best,
        });
        checkpoint::save(path, &self.engine, self.recipe.seed, updates, Some(training))
    }

    /// Goes on where a checkpoint was written.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or belongs to another model or recipe. Nothing is
    /// changed then.
    pub fn resume(&mut self, path: &Path) -> Result<(), Error> {
        let check = |training: &Value| match difference(&training["recipe"], &self.recipe.to_json())
        {
            None => Ok(()),
            Some(why) => Err(other_run(path, format!("it was written with {why}"))),
        };
        let (updates, training) =
            checkpoint::load(path, &mut self.engine, self.recipe.seed, &check)?;
        let best = training["best_loss"].as_f64().zip(training["best_update"].as_u64());
        let since_best = training["evaluations_since_best"].as_u64().unwrap_or(0);
        self.state = State { updates, best, since_best };
        self.ahead = None;
        Ok(())
    }
}
