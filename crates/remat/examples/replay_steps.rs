//! Trains a few steps on given weights and data, and writes down what came out.
//!
//! The other half of `python/tests/test_engine.py`, which runs the same steps in PyTorch and compares. Words of the
//! command line are a model's name and `key=value` pairs; see [`Request::parse`].
//!
//! In: weights and data as safetensors (data under the names and in the layouts of the program's inputs). Out, in the
//! folder `out`: `gradients.safetensors` of the first step, `final.safetensors` with parameters and buffers after the last; and
//! one line with the loss of each step on standard output.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};

use remat_engine::{Engine, StepContext};
use remat_graph::StorageId;
use remat_models::{Model, ModelOptions, Values, build, weights};
use remat_program::{DType, Optimizer};
use safetensors::SafeTensors;

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let request = Request::parse(std::env::args().skip(1))?;
    record_gradients(&request)?;
    record_training(&request)
}

/// What the command line asks for.
struct Request {
    model: String,
    options: ModelOptions,
    steps: u64,
    threads: usize,
    weights: PathBuf,
    data: PathBuf,
    out: PathBuf,
}

impl Request {
    fn parse(mut words: impl Iterator<Item = String>) -> Outcome<Request> {
        let model = words.next().ok_or("which model?")?;
        let pairs: BTreeMap<String, String> = words
            .map(|word| match word.split_once('=') {
                Some((key, value)) => Ok((key.to_string(), value.to_string())),
                None => Err(format!("`{word}` is not key=value")),
            })
            .collect::<Result<_, _>>()?;
        let get = |key: &str| {
            pairs
                .get(key)
                .cloned()
                .ok_or(format!("`{key}=` is missing"))
        };
        let learning_rate = get("learning_rate")?.parse()?;
        let optimizer = match get("optimizer")?.as_str() {
            "sgd" => Optimizer::sgd(learning_rate),
            "adam" => Optimizer::adam(learning_rate),
            other => return Err(format!("there is no optimizer `{other}`").into()),
        };
        let options = ModelOptions {
            batch: get("batch")?.parse()?,
            image_size: get("image_size")?.parse()?,
            sequence: get("sequence")?.parse()?,
            optimizer: Some(optimizer),
            dropout: Some(0.0),
        };
        Ok(Request {
            model,
            options,
            steps: get("steps")?.parse()?,
            threads: get("threads")?.parse()?,
            weights: get("weights")?.into(),
            data: get("data")?.into(),
            out: get("out")?.into(),
        })
    }

    /// An engine that holds the given weights and data.
    fn engine(&self, model: &Model) -> Outcome<Engine> {
        let mut engine = Engine::new(&model.program, self.threads)?;
        let mut failed = None;
        weights::load(&self.weights, model, |id, values| {
            failed = failed.take().or(write(&mut engine, id, &values).err());
        })?;
        failed.map_or(Ok(()), Err)?;
        write_data(&mut engine, model, &self.data)?;
        Ok(engine)
    }
}

/// Without an optimizer, a step ends with all gradients still there.
fn record_gradients(request: &Request) -> Outcome<()> {
    let options = ModelOptions {
        optimizer: None,
        ..request.options.clone()
    };
    let model = build(&request.model, &options)?;
    let mut engine = request.engine(&model)?;
    engine.run(StepContext { seed: 0, step: 1 })?;
    let gradients: BTreeMap<StorageId, StorageId> = model.gradients.iter().copied().collect();
    // A buffer has no gradient; its own values take the place.
    let read = |id: StorageId| values(&engine, gradients.get(&id).copied().unwrap_or(id));
    weights::save(&request.out.join("gradients.safetensors"), &model, read)?;
    Ok(())
}

fn record_training(request: &Request) -> Outcome<()> {
    let model = build(&request.model, &request.options)?;
    let mut engine = request.engine(&model)?;
    for step in 1..=request.steps {
        let peak = engine.run(StepContext { seed: 0, step })?;
        assert_eq!(
            peak,
            engine.predicted(),
            "the measured peak is the predicted one"
        );
        println!("{:e}", engine.read_f32(model.loss)?[0]);
    }
    weights::save(&request.out.join("final.safetensors"), &model, |id| {
        values(&engine, id)
    })?;
    Ok(())
}

fn write_data(engine: &mut Engine, model: &Model, path: &Path) -> Outcome<()> {
    let bytes = std::fs::read(path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    for input in &model.inputs {
        let tensor = model.program.tensor(input.tensor);
        let stored = file.tensor(&tensor.name)?;
        if stored.shape() != tensor.shape {
            return Err(format!(
                "`{}` is {:?}, not {:?}",
                tensor.name,
                stored.shape(),
                tensor.shape
            )
            .into());
        }
        let values = match tensor.dtype {
            DType::F32 => Values::F32(
                stored
                    .data()
                    .as_chunks()
                    .0
                    .iter()
                    .map(|b| f32::from_le_bytes(*b))
                    .collect(),
            ),
            _ => Values::I64(
                stored
                    .data()
                    .as_chunks()
                    .0
                    .iter()
                    .map(|b| i64::from_le_bytes(*b))
                    .collect(),
            ),
        };
        write(engine, input.tensor, &values)?;
    }
    Ok(())
}

fn write(engine: &mut Engine, id: StorageId, values: &Values) -> Outcome<()> {
    match values {
        Values::F32(values) => engine.write_f32(id, values)?,
        Values::I64(values) => engine.write_i64(id, values)?,
    }
    Ok(())
}

fn values(engine: &Engine, id: StorageId) -> Values {
    match engine.program().tensor(id).dtype {
        DType::I64 => Values::I64(engine.read_i64(id).expect("it is persistent").to_vec()),
        _ => Values::F32(
            engine
                .read_f32(id)
                .expect("it is persistent or an output")
                .to_vec(),
        ),
    }
}
