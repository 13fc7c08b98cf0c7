//! The files of a session: weights in, weights out.

use std::io;
use std::path::Path;

use rekindle_engine::Engine;
use rekindle_graph::StorageId;
use rekindle_models::{Model, weights};
use rekindle_program::{Adapter, Patterns};

use crate::Error;

/// Takes the weights of a file, but for those whose names are `fresh`.
pub(super) fn load_weights(
    path: &Path,
    model: &Model,
    engine: &mut Engine,
    fresh: &Patterns,
) -> Result<(), Error> {
    let pieces = |id: StorageId, fill: &mut weights::Fill<'_>| engine.write_pieces(id, fill);
    Ok(weights::load_but(path, model, fresh, pieces)?)
}

/// Writes the weights of a model to a file, whole or not at all, with adapters added to the
/// matrices beside which they stand.
///
/// # Errors
/// If the file cannot be written.
pub fn save_merged(
    path: &Path,
    model: &Model,
    engine: &Engine,
    note: Option<(&str, String)>,
) -> Result<(), Error> {
    let pieces =
        |id: StorageId, take: &mut weights::Take<'_>| merged_pieces(model, engine, id, take);
    Ok(weights::save_noted(path, model, note, pieces)?)
}

/// Hands out the bytes of a weight, with its adapter added if it has one.
///
/// # Errors
/// If it cannot be read, or what `take` says.
pub fn merged_pieces(
    model: &Model,
    engine: &Engine,
    id: StorageId,
    take: &mut weights::Take<'_>,
) -> io::Result<()> {
    match model.adapters.iter().find(|adapter| adapter.weight == id) {
        Some(adapter) => take(&merged(engine, adapter)?),
        None => engine.read_pieces(id, take),
    }
}

/// The bytes of a matrix and its adapter: `W + scale · B · A`, each element summed in double.
fn merged(engine: &Engine, adapter: &Adapter) -> io::Result<Vec<u8>> {
    let [w, a, b] = [adapter.weight, adapter.a, adapter.b].map(|id| engine.read_f32(id));
    let (w, a, b) = (w?, a?, b?);
    let shape = &engine.program().tensor(adapter.a).shape;
    let (rank, inputs) = (shape[0], shape[1]);
    let outputs = b.len() / rank;
    let mut bytes = Vec::with_capacity(w.len() * size_of::<f32>());
    for (index, &weight) in w.iter().enumerate() {
        let (output, input) = match adapter.transposed {
            true => (index % outputs, index / outputs),
            false => (index / inputs, index % inputs),
        };
        let product: f64 = (0..rank)
            .map(|r| f64::from(b[output * rank + r]) * f64::from(a[r * inputs + input]))
            .sum();
        let value = f64::from(weight) + f64::from(adapter.scale) * product;
        bytes.extend_from_slice(&(value as f32).to_le_bytes());
    }
    Ok(bytes)
}
