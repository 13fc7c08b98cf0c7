//! A model of one's own, trained on one's own data in less memory than it needs.
//!
//! `cargo run` in this folder. docs/models.md goes through it.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use rekindle::data::{BadFiles, Batches, DataOptions, Dataset, split};
use rekindle::graph::Bytes;
use rekindle::models::{Forward, InputKind, Model};
use rekindle::program::op::GeluKind;
use rekindle::program::{
    Builder, DType, Init, Optimizer, ProgramError, Settings, Updates, Var,
};
use rekindle::train::{self, Evaluation, Files, LearningRate, Metrics, Recipe, Session, Shape};
use rekindle::{FitOptions, fit, plain};

const BATCH: usize = 32;
const FEATURES: usize = 16;
const CLASSES: usize = 3;

/// The forward pass: four residual layers, and a linear map to the classes.
fn forward(b: &mut Builder) -> Result<Forward, ProgramError> {
    let data = b.input("x", &[BATCH, FEATURES], DType::F32)?;
    let labels = b.input("labels", &[BATCH], DType::I64)?;
    let mut x = linear(b, "stem", &data, 64)?;
    for layer in 0..4 {
        x = b.scope(&format!("layers.{layer}"), |b| {
            let hidden = linear(b, "up", &x, 256)?;
            let hidden = b.gelu("act", &hidden, GeluKind::Tanh)?;
            let hidden = b.dropout("dropout", &hidden, 0.1)?;
            let out = linear(b, "down", &hidden, 64)?;
            b.add("sum", &x, &out)
        })?;
    }
    let logits = linear(b, "head", &x, CLASSES)?;
    let loss = b.cross_entropy("loss", &logits, &labels)?;
    let classes = CLASSES;
    Ok(Forward {
        inputs: vec![
            (data, InputKind::Features { classes }),
            (labels, InputKind::Classes { classes }),
        ],
        loss,
        logits: Some(logits),
        tied: vec![],
    })
}

fn linear(b: &mut Builder, name: &str, x: &Var, out: usize) -> Result<Var, ProgramError> {
    let columns = x.shape()[1];
    let init = Init::Uniform { bound: 1.0 / (columns as f32).sqrt() };
    let weight = b.parameter(&format!("{name}.weight"), &[out, columns], init)?;
    let bias = b.parameter(&format!("{name}.bias"), &[out], Init::Zeros)?;
    b.linear(name, x, &weight, Some(&bias))
}

/// The same forward pass, to train and to infer.
fn models() -> Result<[Model; 2], ProgramError> {
    let mut b = Builder::new("own");
    let updates = Updates { clip: Some(1.0), ..Optimizer::adamw(3e-3).into() };
    let training = forward(&mut b)?.train(b, Some(updates))?;
    let settings = Settings { inference: true, ..Settings::default() };
    let mut b = Builder::with_settings("own", settings);
    let inferring = forward(&mut b)?.evaluate(b)?;
    Ok([training, inferring])
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("own-model-{}", std::process::id()));
    write_data(&folder)?;
    let [model, inferring] = models()?;

    // Data: whatever the model takes, here arrays.
    let (wanted, answers) = train::wanted(&model)?;
    let options = DataOptions { answers, ..DataOptions::default() };
    let dataset = Arc::new(Dataset::open(&folder, wanted, &options)?);
    let (part, held) = split(&dataset, 0.2, 0);
    let batches = Batches::training(Arc::clone(&dataset), part, BATCH, 0, BadFiles::Refuse)?;
    let held = Batches::evaluation(dataset, held, BATCH, BadFiles::Refuse);

    // Memory: nine tenths of what the plain step needs.
    let options = FitOptions::default();
    let plain = plain(&model, options.threads);
    let budget = Bytes(plain.predicted().arena.get() / 10 * 9);
    let fitted = fit(&model, &plain, budget, &options)?;
    let evaluation = Evaluation::beside(&fitted.layout, &inferring, held)?;
    assert!(evaluation.room() <= budget, "an evaluation needs less than a step");

    let recipe = Recipe {
        epochs: 4,
        updates: None,
        accumulate: 1,
        learning_rate: LearningRate {
            highest: 3e-3,
            floor: 0.0,
            warmup: 5,
            shape: Shape::Cosine,
        },
        evaluate_every: None,
        patience: None,
        seed: 0,
        about: Default::default(),
    };
    let engine = fitted.engine()?;
    let data_memory = Bytes(1 << 20);
    let evaluation = Some(evaluation);
    let start = train::Start { model: &model, engine, batches, evaluation, recipe, data_memory };
    let mut session = Session::new(start)?;
    let files = Files { weights: Some(folder.join("own.safetensors")), ..Files::default() };
    let mut watch = Watch::default();
    train::run(&mut session, &files, &mut watch)?;
    std::fs::remove_dir_all(&folder)?;
    let best = watch.best.ok_or("it was evaluated")?;
    println!("loss {:.4}, accuracy {:.1} %", best.loss, 100.0 * best.accuracy);
    assert!(best.accuracy > 0.9, "it learns");
    Ok(())
}

/// Remembers the best evaluation.
#[derive(Default)]
struct Watch {
    best: Option<Metrics>,
}

impl train::Watch for Watch {
    fn updated(&mut self, _: &Session<'_>, _: &train::UpdateReport) {}
    fn evaluating(&mut self, _: u64, _: u64, _: &[rekindle::data::Skipped]) {}
    fn evaluated(&mut self, _: &Session<'_>, metrics: &Metrics, is_best: bool) {
        if is_best {
            self.best = Some(*metrics);
        }
    }
}

/// Points around three centres, as `.npy` files.
fn write_data(folder: &Path) -> std::io::Result<()> {
    const SAMPLES: usize = 1000;
    std::fs::create_dir_all(folder)?;
    let noise = rekindle::program::random::Stream::new(1);
    let mut inputs = Vec::new();
    let mut labels = Vec::new();
    for sample in 0..SAMPLES {
        let class = sample % CLASSES;
        for feature in 0..FEATURES {
            let centre = if feature % CLASSES == class { 1.0 } else { 0.0 };
            let value = centre + 0.5 * noise.normal((sample * FEATURES + feature) as u64);
            inputs.extend_from_slice(&(value as f32).to_le_bytes());
        }
        labels.extend_from_slice(&(class as i64).to_le_bytes());
    }
    let shape = format!("({SAMPLES}, {FEATURES})");
    std::fs::write(folder.join("inputs.npy"), npy("<f4", &shape, &inputs))?;
    std::fs::write(folder.join("labels.npy"), npy("<i8", &format!("({SAMPLES},)"), &labels))
}

fn npy(kind: &str, shape: &str, values: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(values);
    bytes
}
