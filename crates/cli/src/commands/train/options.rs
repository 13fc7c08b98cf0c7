//! The arguments of `rekindle train` and `rekindle evaluate`, by what they are about.

use std::path::PathBuf;
use std::str::FromStr;

use rekindle::train::{LearningRate, Recipe, Shape};
use rekindle_data::{Answers, BadFiles, DataOptions, ImageOptions, TokenType};
use rekindle_graph::{Budget, Bytes, parse_budget, parse_share};
use rekindle_onnx::Loss;
use rekindle_program::op::{AdamOptions, SgdOptions};
use rekindle_program::{Lora, Optimizer, Patterns, Settings, Updates};
use serde_json::{Value, json};

use crate::commands::step::{IMAGE_SIZE, SEQUENCE, parse_count, parse_threads};
use crate::exit::UsageError;

/// What the model is validated with.
#[derive(Clone, Debug)]
pub(crate) enum Validation {
    Share(f64),
    Path(PathBuf),
}

impl FromStr for Validation {
    type Err = String;

    fn from_str(text: &str) -> Result<Validation, String> {
        match text.ends_with('%') {
            true => parse_share(text).map(Validation::Share),
            false => Ok(Validation::Path(text.into())),
        }
    }
}

/// Which model, in which sizes.
#[derive(clap::Args)]
#[command(next_help_heading = "The model")]
pub(crate) struct ModelArguments {
    /// Name of the model, as `rekindle models` lists them, or an ONNX file
    pub(crate) model: String,
    /// What a model of an ONNX file is trained for; graph is a loss that the file has
    #[arg(
        long,
        default_value = "cross-entropy",
        value_parser = Loss::ALL.map(Loss::name)
    )]
    loss: String,
    /// Number of samples in a batch
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = parse_count)]
    pub(crate) batch_size: usize,
    /// Height and width of each image in pixels, for models that take images
    #[arg(long, value_name = "N", default_value_t = IMAGE_SIZE, value_parser = parse_count)]
    pub(crate) image_size: usize,
    /// Number of tokens in each sequence, for models that take text
    #[arg(long, value_name = "N", default_value_t = SEQUENCE, value_parser = parse_count)]
    pub(crate) sequence: usize,
    /// Number of classes that the model tells apart [default: those of the data]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) classes: Option<usize>,
    /// Probability of every dropout [default: the model's own]
    #[arg(long, value_name = "P")]
    pub(crate) dropout: Option<f32>,
    /// Parameters that stay as they are, by name: 'layer1.*,conv1.weight'
    #[arg(long, value_name = "PATTERNS")]
    freeze: Option<String>,
    /// Exceptions to --freeze and --lora: 'fc.*'
    #[arg(long, value_name = "PATTERNS")]
    train_also: Option<String>,
    /// Train adapters of this rank beside the matrices (LoRA), and nothing else
    #[arg(long, value_name = "RANK", value_parser = parse_count)]
    lora: Option<usize>,
    /// Scale of the adapters: their product is multiplied by this over the rank [default: the rank]
    #[arg(long, value_name = "ALPHA", requires = "lora")]
    lora_alpha: Option<f32>,
    /// Matrices that get an adapter, by name
    #[arg(long, value_name = "PATTERNS", requires = "lora", default_value = "*attn*.weight")]
    lora_weights: String,
    /// Share of each label that is spread over all classes
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    label_smoothing: f32,
    /// Number of threads that compute [default: all cores]
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub(crate) threads: Option<usize>,
}

impl ModelArguments {
    /// How it is built to train.
    pub(crate) fn settings(&self) -> Result<Settings, UsageError> {
        let patterns = |text: &Option<String>| Patterns::new(text.as_deref().unwrap_or(""));
        let lora = self.lora.map(|rank| Lora {
            rank,
            alpha: self.lora_alpha.unwrap_or(rank as f32),
            weights: Patterns::new(&self.lora_weights),
        });
        let frozen = match &lora {
            Some(_) => Patterns::new("*"),
            None => patterns(&self.freeze),
        };
        Ok(Settings {
            inference: false,
            label_smoothing: self.label_smoothing,
            frozen,
            trained: patterns(&self.train_also),
            lora,
        })
    }

    /// What a model of an ONNX file is trained for.
    pub(crate) fn loss(&self) -> Loss {
        Loss::from_name(&self.loss).expect("clap allows no other name")
    }

    /// Whether every parameter is trained.
    pub(crate) fn trains_all(&self) -> bool {
        self.freeze.is_none() && self.lora.is_none()
    }

    /// What of it the numbers of a run depend on.
    pub(crate) fn recipe(&self) -> Value {
        json!({
            "model": self.model,
            "loss": self.loss,
            "classes": self.classes,
            "dropout": self.dropout,
            "freeze": self.freeze,
            "train also": self.train_also,
            "lora": self.lora,
            "lora alpha": self.lora_alpha,
            "lora weights": self.lora.map(|_| &self.lora_weights),
            "label smoothing": self.label_smoothing,
        })
    }
}

/// Which data, and how it is read.
#[derive(clap::Args)]
#[command(next_help_heading = "The data")]
pub(crate) struct DataArguments {
    /// Folder or file with the data
    #[arg(long, value_name = "PATH")]
    pub(crate) data: PathBuf,
    /// Tokenizer of text, as Hugging Face's models have it
    #[arg(long, value_name = "tokenizer.json")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Numbers of a raw token file
    #[arg(long, default_value = "u16", value_parser = ["u16", "u32"])]
    token_type: String,
    /// What becomes of files that cannot be used: skip names them and goes on without
    #[arg(long, default_value = "refuse", value_parser = ["refuse", "skip"])]
    bad_files: String,
    /// Resize images so that their shorter side has so many pixels, then crop them
    #[arg(long, value_name = "N", value_parser = parse_count)]
    resize: Option<usize>,
    /// Crop at random in training, instead of in the middle
    #[arg(long)]
    random_crop: bool,
    /// Mirror half of the images in training
    #[arg(long)]
    flip: bool,
    /// Subtract this from each channel of the pixels, which are from 0 to 1: 0.485,0.456,0.406
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', allow_hyphen_values = true)]
    mean: Vec<f32>,
    /// Divide each channel by this afterwards: 0.229,0.224,0.225
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    std: Vec<f32>,
    /// Part of the memory that data gets: half for batches that are read ahead, half for decoding
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = parse_bytes)]
    data_memory: Bytes,
}

/// A number of bytes; the signature is what `clap` wants.
fn parse_bytes(text: &str) -> Result<Bytes, String> {
    match parse_budget(text)? {
        Budget::Bytes(bytes) => Ok(bytes),
        Budget::Share(_) => Err("is a share, but of what? Give it in bytes, such as 64MiB".into()),
    }
}

impl DataArguments {
    /// Refuses what `clap` cannot see.
    pub(crate) fn check(&self) -> Result<(), UsageError> {
        match self.std.iter().all(|std| std.is_finite() && *std > 0.0) {
            true => Ok(()),
            false => Err(UsageError("nothing can be divided by such a --std".into())),
        }
    }

    pub(crate) fn memory(&self) -> Bytes {
        self.data_memory
    }

    pub(crate) fn bad_files(&self) -> BadFiles {
        match self.bad_files.as_str() {
            "skip" => BadFiles::Skip,
            _ => BadFiles::Refuse,
        }
    }

    pub(crate) fn options(&self, classes: Option<usize>, answers: Answers) -> DataOptions {
        DataOptions {
            bad_files: self.bad_files(),
            images: ImageOptions {
                resize: self.resize,
                random_crop: self.random_crop,
                flip: self.flip,
                mean: self.mean.clone(),
                deviation: self.std.clone(),
            },
            classes,
            answers,
            tokenizer: self.tokenizer.clone(),
            token_type: if self.token_type == "u32" { TokenType::U32 } else { TokenType::U16 },
            memory: self.data_memory,
        }
    }

    /// What of it the numbers of a run depend on.
    pub(crate) fn recipe(&self) -> Value {
        json!({
            "bad files": self.bad_files,
            "resize": self.resize,
            "random crop": self.random_crop,
            "flip": self.flip,
            "mean": self.mean,
            "std": self.std,
        })
    }
}

/// How it learns.
#[derive(clap::Args)]
#[command(next_help_heading = "Learning")]
pub(crate) struct Learning {
    /// Number of times that the data is gone through
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_number)]
    epochs: u64,
    /// Stop after this many updates, even within an epoch
    #[arg(long, value_name = "N", value_parser = parse_number)]
    updates: Option<u64>,
    /// Number of batches whose gradients are summed for an update
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = parse_number)]
    accumulate: u64,
    /// Algorithm that updates the parameters
    #[arg(long, default_value = "adamw", value_parser = ["adam", "adamw", "sgd"])]
    pub(crate) optimizer: String,
    /// Learning rate after the warm-up
    #[arg(long, value_name = "RATE", default_value_t = 3e-4)]
    learning_rate: f64,
    /// How the learning rate goes on after the warm-up
    #[arg(long, default_value = "constant", value_parser = ["constant", "cosine", "linear"])]
    schedule: String,
    /// Number of updates in which the learning rate rises
    #[arg(long, value_name = "N", default_value_t = 0)]
    warmup: u64,
    /// What the learning rate falls to
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    lowest_rate: f64,
    /// Momentum of SGD
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    momentum: f32,
    /// Weight decay [default: 0.01 for adamw, 0 for the others]
    #[arg(long, value_name = "RATE")]
    weight_decay: Option<f32>,
    /// Parameters that do not decay, by name; 1d stands for all of one axis (biases, norms)
    #[arg(long, value_name = "PATTERNS")]
    no_decay: Option<String>,
    /// Scale gradients down whose norm, all together, is above this
    #[arg(long, value_name = "NORM")]
    clip: Option<f32>,
    /// Number of updates between two evaluations [default: those of an epoch]
    #[arg(long, value_name = "N", value_parser = parse_number)]
    evaluate_every: Option<u64>,
    /// Stop after this many evaluations without a lower loss
    #[arg(long, value_name = "N", requires = "validate", value_parser = parse_number)]
    patience: Option<u64>,
    /// Random seed: the same seed gives the same initial weights, order of data and dropout
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
}

/// A number of at least one; the signature is what `clap` wants.
fn parse_number(text: &str) -> Result<u64, String> {
    parse_count(text).map(|count| count as u64)
}

/// The word for all parameters of one axis.
const VECTORS: &str = "1d";

impl Learning {
    /// Refuses what `clap` cannot see.
    pub(crate) fn check(&self) -> Result<(), UsageError> {
        let numbers = [
            ("learning rate", self.learning_rate),
            ("lowest learning rate", self.lowest_rate),
            ("weight decay", f64::from(self.weight_decay.unwrap_or(0.0))),
            ("momentum", f64::from(self.momentum)),
        ];
        for (what, number) in numbers {
            if !number.is_finite() || number < 0.0 {
                let why = format!("a {what} of {number} makes no sense; give a number from zero");
                return Err(UsageError(why));
            }
        }
        match self.clip.is_some_and(|clip| !clip.is_finite() || clip <= 0.0) {
            true => Err(UsageError("gradients can be clipped at a norm above zero only".into())),
            false => Ok(()),
        }
    }

    /// How parameters are updated.
    pub(crate) fn updates(&self) -> Result<Updates, UsageError> {
        let learning_rate = self.learning_rate as f32;
        let decoupled = self.optimizer == "adamw";
        let usual = if decoupled { 0.01 } else { 0.0 };
        let weight_decay = self.weight_decay.unwrap_or(usual);
        let optimizer = match self.optimizer.as_str() {
            "sgd" => {
                Optimizer::Sgd(SgdOptions { learning_rate, momentum: self.momentum, weight_decay })
            }
            _ => Optimizer::Adam(AdamOptions {
                learning_rate,
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-8,
                weight_decay,
                decoupled,
            }),
        };
        let mut no_decay = Patterns::new(self.no_decay.as_deref().unwrap_or(""));
        let vectors_decay = !no_decay.0.iter().any(|pattern| pattern == VECTORS);
        no_decay.0.retain(|pattern| pattern != VECTORS);
        let (clip, accumulate) = (self.clip, self.accumulate > 1);
        Ok(Updates { optimizer, no_decay, vectors_decay, clip, accumulate })
    }

    pub(crate) fn recipe(&self) -> Recipe {
        let shape = match self.schedule.as_str() {
            "cosine" => Shape::Cosine,
            "linear" => Shape::Linear,
            _ => Shape::Constant,
        };
        Recipe {
            epochs: self.epochs,
            updates: self.updates,
            accumulate: self.accumulate,
            learning_rate: LearningRate {
                highest: self.learning_rate,
                floor: self.lowest_rate,
                warmup: self.warmup,
                shape,
            },
            evaluate_every: self.evaluate_every,
            patience: self.patience,
            seed: self.seed,
            about: Value::Null,
        }
    }

    /// What else the numbers of a run depend on.
    pub(crate) fn about(&self) -> Value {
        json!({
            "momentum": self.momentum,
            "weight decay": self.weight_decay,
            "no decay": self.no_decay,
            "clip": self.clip,
        })
    }
}
