//! A few steps on given weights and data, without dropout.
//!
//! In: `weights` and `data`, safetensors files (data under the names and in the layouts of the
//! program's inputs); an ONNX file has its own weights. Out, in the folder `out`:
//! `gradients.safetensors` of the first step, `final.safetensors` with parameters and buffers after
//! `steps` steps, for an ONNX file also `final.onnx`; and one line with the loss of each step on
//! standard output. With `share`, the steps run in that part of the plain peak.

use std::collections::BTreeMap;
use std::path::Path;

use rekindle::{FitOptions, fit};
use rekindle_engine::{Engine, EngineError, Iteration};
use rekindle_graph::{Bytes, StorageId};
use rekindle_models::{Model, ModelOptions, weights};
use safetensors::SafeTensors;

use crate::Outcome;
use crate::request::Request;

pub(crate) fn run(request: &Request) -> Outcome<()> {
    record_gradients(request)?;
    record_training(request)
}

/// The engine with the given weights and data.
fn loaded_engine(request: &Request, model: &Model, mut engine: Engine) -> Outcome<Engine> {
    if let Some(onnx) = request.onnx()? {
        onnx.load(model, |id, fill| engine.write_pieces(id, fill))?;
    } else {
        let path = Path::new(request.get("weights")?);
        weights::load(path, model, |id, fill| engine.write_pieces(id, fill))?;
    }
    write_data(&mut engine, model, Path::new(request.get("data")?))?;
    Ok(engine)
}

/// An engine whose arena is at most this share of the plain step's.
fn fitted_engine(model: &Model, share: f64, threads: usize) -> Outcome<Engine> {
    let plain = rekindle::plain(model, threads);
    let budget = Bytes((plain.predicted().arena.get() as f64 * share) as u64);
    let options = FitOptions { threads, ..FitOptions::default() };
    Ok(fit(model, &plain, budget, &options)?.engine()?)
}

/// Without an optimizer, a step ends with all gradients still there.
fn record_gradients(request: &Request) -> Outcome<()> {
    let options = ModelOptions { optimizer: None, dropout: Some(0.0), ..request.options.clone() };
    let model = request.build(&options)?;
    let engine = Engine::new(&model.program, request.threads)?;
    let mut engine = loaded_engine(request, &model, engine)?;
    engine.run(Iteration { seed: 0, number: 1 })?;
    let gradients: BTreeMap<StorageId, StorageId> = model.gradients.iter().copied().collect();
    // A buffer has no gradient; its own values take the place.
    let path = Path::new(request.get("out")?).join("gradients.safetensors");
    weights::save(&path, &model, |id, take| {
        engine.read_pieces(gradients.get(&id).copied().unwrap_or(id), take)
    })?;
    Ok(())
}

fn record_training(request: &Request) -> Outcome<()> {
    let options = ModelOptions { dropout: Some(0.0), ..request.options.clone() };
    let model = request.build(&options)?;
    let engine = match request.get("share") {
        Ok(share) => fitted_engine(&model, share.parse()?, request.threads)?,
        Err(_) => Engine::new(&model.program, request.threads)?,
    };
    let mut engine = loaded_engine(request, &model, engine)?;
    let steps: u64 = request.get("steps")?.parse()?;
    for step in 1..=steps {
        let peak = engine.run(Iteration { seed: 0, number: step })?;
        assert_eq!(peak, engine.predicted(), "the measured peak is the predicted one");
        println!("{:e}", engine.read_f32(model.loss)?[0]);
    }
    let path = Path::new(request.get("out")?).join("final.safetensors");
    weights::save(&path, &model, |id, take| engine.read_pieces(id, take))?;
    if let Some(onnx) = request.onnx()? {
        let path = Path::new(request.get("out")?).join("final.onnx");
        onnx.export(&path, &model, |id, take| engine.read_pieces(id, take))?;
    }
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
        let mut rest = stored.data();
        engine.write_pieces(input.tensor, |piece| {
            let (now, later) = rest.split_at(piece.len());
            piece.copy_from_slice(now);
            rest = later;
            Ok::<(), EngineError>(())
        })?;
    }
    Ok(())
}
