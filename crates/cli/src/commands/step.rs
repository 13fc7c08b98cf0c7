//! Which training step: the arguments of every verb that runs one.

use rekindle::FitOptions;
use rekindle_models::{Model, ModelError, ModelOptions, build};
use rekindle_plan::Options;
use rekindle_profile::MeasureOptions;
use rekindle_program::Optimizer;

use crate::exit::UsageError;

pub(crate) const IMAGE_SIZE: usize = 224;
pub(crate) const SEQUENCE: usize = 128;
pub(crate) const OPTIMIZER: &str = "adam";
const LEARNING_RATE: f32 = 3e-4;

/// A model, its sizes, and how it trains.
#[derive(clap::Args)]
pub(crate) struct StepArguments {
    /// Name of the model; `rekindle models` lists them all
    pub(crate) model: String,
    #[command(flatten)]
    pub(crate) training: Training,
}

/// The sizes of a step, and how it trains.
#[derive(clap::Args)]
#[command(next_help_heading = "The training step")]
pub(crate) struct Training {
    /// Height and width of each image in pixels, for models that take images
    #[arg(long, value_name = "N", default_value_t = IMAGE_SIZE, value_parser = parse_count)]
    pub(crate) image_size: usize,
    /// Number of tokens in each sequence, for models that take text
    #[arg(long, value_name = "N", default_value_t = SEQUENCE, value_parser = parse_count)]
    pub(crate) sequence: usize,
    /// Algorithm that updates the parameters
    #[arg(long, default_value = OPTIMIZER, value_parser = ["adam", "adamw", "sgd"])]
    pub(crate) optimizer: String,
    /// Learning rate of the optimizer
    #[arg(long, value_name = "RATE", default_value_t = LEARNING_RATE)]
    pub(crate) learning_rate: f32,
    /// Number of threads that compute [default: all cores]
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub(crate) threads: Option<usize>,
    /// Random seed: the same seed gives the same initial weights, data and dropout
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

impl StepArguments {
    /// The model's training step at this batch size.
    pub(crate) fn build(&self, batch: usize) -> anyhow::Result<Model> {
        self.training.build(&self.model, batch)
    }

    /// The words that name this step in a command: the model, and every flag that is not as usual.
    pub(crate) fn words(&self) -> String {
        let Training { image_size, sequence, optimizer, learning_rate, threads, seed } =
            &self.training;
        let mut words = self.model.clone();
        let mut flag = |unusual: bool, name: &str, value: &dyn std::fmt::Display| {
            if unusual {
                words += &format!(" --{name} {value}");
            }
        };
        flag(*image_size != IMAGE_SIZE, "image-size", image_size);
        flag(*sequence != SEQUENCE, "sequence", sequence);
        flag(optimizer != OPTIMIZER, "optimizer", optimizer);
        flag(*learning_rate != LEARNING_RATE, "learning-rate", learning_rate);
        flag(threads.is_some(), "threads", &threads.unwrap_or_default());
        flag(*seed != 0, "seed", seed);
        words
    }
}

impl Training {
    /// One training step of `model` at this batch size.
    pub(crate) fn build(&self, model: &str, batch: usize) -> anyhow::Result<Model> {
        self.check()?;
        Ok(self.model(model, batch)?)
    }

    /// Refuses what `clap` cannot see.
    pub(crate) fn check(&self) -> Result<(), UsageError> {
        let rate = self.learning_rate;
        match rate.is_finite() && rate >= 0.0 {
            true => Ok(()),
            false => Err(UsageError(format!(
                "a learning rate of {rate} makes no sense; give a number from zero"
            ))),
        }
    }

    /// As [`Training::build`], for arguments that were checked.
    pub(crate) fn model(&self, model: &str, batch: usize) -> Result<Model, ModelError> {
        let optimizer = match self.optimizer.as_str() {
            "sgd" => Optimizer::sgd(self.learning_rate),
            "adamw" => Optimizer::adamw(self.learning_rate),
            _ => Optimizer::adam(self.learning_rate),
        };
        let options = ModelOptions {
            batch,
            image_size: self.image_size,
            sequence: self.sequence,
            optimizer: Some(optimizer),
            ..ModelOptions::default()
        };
        build(model, &options)
    }

    /// How to fit it, with this planner.
    pub(crate) fn fit_options(&self, plan: Options) -> FitOptions {
        let defaults = FitOptions::default();
        FitOptions {
            threads: self.threads.unwrap_or(defaults.threads),
            plan,
            measure: MeasureOptions { seed: self.seed, ..defaults.measure },
            seed: self.seed,
            ..defaults
        }
    }
}

/// More threads than any machine has cores.
const MOST_THREADS: usize = 1024;

/// A count of threads; the signature is what `clap` wants.
pub(crate) fn parse_threads(text: &str) -> Result<usize, String> {
    match parse_count(text)? {
        count if count > MOST_THREADS => Err(format!("is more than {MOST_THREADS}")),
        count => Ok(count),
    }
}

/// A count of at least one; the signature is what `clap` wants.
pub(crate) fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("is not a whole number above zero".into()),
        Ok(count) => Ok(count),
    }
}
