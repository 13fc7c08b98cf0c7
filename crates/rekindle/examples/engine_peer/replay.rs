//! A few steps on given weights and data, without dropout.
//!
//! In: `weights` and `data`, safetensors files (data under the names and in the layouts of the
//! program's inputs). Out, in the folder `out`: `gradients.safetensors` of the first step,
//! `final.safetensors` with parameters and buffers after `steps` steps; and one line with the loss
//! of each step on standard output.

use std::collections::BTreeMap;
use std::path::Path;

use rekindle_engine::{Engine, Iteration};
use rekindle_graph::StorageId;
use rekindle_models::{Model, ModelOptions, weights};
use safetensors::SafeTensors;

use crate::Outcome;
use crate::request::Request;

pub(crate) fn run(request: &Request) -> Outcome<()> {
    record_gradients(request)?;
    record_training(request)
}

/// An engine that holds the given weights and data.
fn loaded_engine(request: &Request, model: &Model) -> Outcome<Engine> {
    let mut engine = Engine::new(&model.program, request.threads)?;
    let path = Path::new(request.get("weights")?);
    weights::load(path, model, &mut engine, |engine, id| {
        engine.bytes_mut(id).expect("it is persistent")
    })?;
    write_data(&mut engine, model, Path::new(request.get("data")?))?;
    Ok(engine)
}

/// Without an optimizer, a step ends with all gradients still there.
fn record_gradients(request: &Request) -> Outcome<()> {
    let options = ModelOptions { optimizer: None, dropout: Some(0.0), ..request.options.clone() };
    let model = request.build(&options)?;
    let mut engine = loaded_engine(request, &model)?;
    engine.run(Iteration { seed: 0, number: 1 })?;
    let gradients: BTreeMap<StorageId, StorageId> = model.gradients.iter().copied().collect();
    // A buffer has no gradient; its own values take the place.
    let read = |id: StorageId| bytes(&engine, gradients.get(&id).copied().unwrap_or(id));
    weights::save(&Path::new(request.get("out")?).join("gradients.safetensors"), &model, read)?;
    Ok(())
}

fn record_training(request: &Request) -> Outcome<()> {
    let options = ModelOptions { dropout: Some(0.0), ..request.options.clone() };
    let model = request.build(&options)?;
    let mut engine = loaded_engine(request, &model)?;
    let steps: u64 = request.get("steps")?.parse()?;
    for step in 1..=steps {
        let peak = engine.run(Iteration { seed: 0, number: step })?;
        assert_eq!(peak, engine.predicted(), "the measured peak is the predicted one");
        println!("{:e}", engine.read_f32(model.loss)?[0]);
    }
    weights::save(&Path::new(request.get("out")?).join("final.safetensors"), &model, |id| {
        bytes(&engine, id)
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
            let (name, is, shape) = (&tensor.name, stored.shape(), &tensor.shape);
            return Err(format!("`{name}` is {is:?}, not {shape:?}").into());
        }
        engine.bytes_mut(input.tensor)?.copy_from_slice(stored.data());
    }
    Ok(())
}

fn bytes(engine: &Engine, id: StorageId) -> &[u8] {
    engine.bytes(id).expect("it is persistent or an output")
}
