//! Checkpoints: everything that the next step depends on, in a safetensors file.
//!
//! The file holds every persistent tensor (parameters, buffers, optimizer state) as the engine has
//! it, under its name, and says which program, optimizer, seed and step it belongs to. Its last
//! four bytes are a checksum of all others, so that damage is noticed before anything is changed. A
//! run may go on with another learning rate, which is part of no state; with another optimizer the
//! state would mean something else.
//!
//! A training run on data adds how it goes and what it has come to. The sums of gradients over the
//! steps of an update are left out: checkpoints are written between updates, which begin them anew.
//!
//! It is written straight from the arena and the store, beside its final place first and then moved
//! over it: a run that is killed leaves the old checkpoint or the new one, and never half of one.

use std::path::Path;

use rekindle_engine::Engine;
use rekindle_graph::{Role, StorageId};
use rekindle_models::weights::{Stored, TensorFile, WeightsError, write_tensors};
use rekindle_program::Program;
use rekindle_program::op::Op;
use serde_json::Value;

use crate::Error;

/// The one entry of the file's metadata; its text says what the file belongs to.
const KEY: &str = "remat.checkpoint/2";
/// The same before there were checksums.
const OLD_KEY: &str = "remat.checkpoint/1";

/// What a step finds and leaves: all that is persistent but the batch, constants and sums that the
/// next update begins anew.
pub(crate) fn persistent(program: &Program) -> Vec<StorageId> {
    let mut kept: Vec<bool> = program
        .tensors
        .iter()
        .map(|tensor| matches!(tensor.role, Role::Parameter | Role::OptimizerState))
        .collect();
    for node in &program.nodes {
        if let Op::Keep(_) = node.op {
            kept[node.reads[0].index()] = false;
        }
    }
    let ids = (0..program.tensors.len()).map(StorageId::new);
    ids.filter(|&id| kept[id.index()]).collect()
}

/// Writes the state after `step`, with what a training run adds.
pub(crate) fn save(
    path: &Path,
    engine: &Engine,
    seed: u64,
    step: u64,
    training: Option<Value>,
) -> Result<(), Error> {
    let program = engine.program();
    let mut belongs = serde_json::json!({
        "program": program.name,
        "optimizer": optimizer(program),
        "seed": seed,
        "step": step,
    });
    if let Some(training) = training {
        belongs["training"] = training;
    }
    let note = Some((KEY, belongs.to_string()));
    let tensors = persistent(program).into_iter();
    let tensors = tensors.map(|id| Stored::as_it_is(program, id)).collect();
    let written = write_tensors(path, note, tensors, true, |id, take| engine.read_pieces(id, take));
    written.map_err(|error| Error::Checkpoint {
        path: path.to_owned(),
        what: "written",
        why: reason(error),
    })
}

/// How the program updates its parameters: the name of the algorithm.
fn optimizer(program: &Program) -> &'static str {
    let is_update = |op: &Op| matches!(op, Op::Adam(_) | Op::Sgd(_));
    let update = program.nodes.iter().find(|n| is_update(&n.op));
    match update.map(|node| &node.op) {
        Some(Op::Adam(adam)) if adam.options.decoupled => "adamw",
        Some(op) => op.name(),
        None => "no optimizer",
    }
}

/// Refuses what [`Trainer::resume`](crate::Trainer::resume) would refuse, before anything is set up
/// for it.
///
/// # Errors
/// If the file cannot be read, is damaged, or belongs to another model, size, optimizer or seed.
pub fn check_checkpoint(path: &Path, program: &Program, seed: u64) -> Result<(), Error> {
    Opened::new(path, program, seed).map(drop)
}

/// Reads a checkpoint of this program, optimizer and seed into the engine, and gives the step after
/// which it was written, and what a training run added. Everything is checked before the first
/// value is changed, that also by `check`.
pub(crate) fn load(
    path: &Path,
    engine: &mut Engine,
    seed: u64,
    check: &dyn Fn(&Value) -> Result<(), Error>,
) -> Result<(u64, Value), Error> {
    let Opened { mut file, step, training, tensors } = Opened::new(path, engine.program(), seed)?;
    check(&training)?;
    for tensor in tensors {
        let read =
            file.read(&tensor.name, &tensor, |fill| engine.write_pieces(tensor.tensor, fill));
        read.map_err(|error| unreadable(path, reason(error)))?;
    }
    Ok((step, training))
}

/// A checkpoint file that was checked to its last byte.
struct Opened {
    file: TensorFile,
    step: u64,
    /// What a training run added.
    training: Value,
    tensors: Vec<Stored>,
}

impl Opened {
    fn new(path: &Path, program: &Program, seed: u64) -> Result<Opened, Error> {
        let fail = |error| unreadable(path, reason(error));
        let mut file = TensorFile::open(path).map_err(fail)?;
        if file.note(OLD_KEY).is_some() {
            let why = "it is of an older version and has no checksum; resume it with that version, \
                       and save the weights";
            return Err(unreadable(path, why.into()));
        }
        if file.note(KEY).is_none() {
            return Err(unreadable(path, "it is no checkpoint".into()));
        }
        file.verify().map_err(fail)?;
        let (step, training) = step(path, &file, program, seed)?;
        let tensors = tensors(path, &file, program)?;
        Ok(Opened { file, step, training, tensors })
    }
}

/// The step, if the file belongs to this program, optimizer and seed, and what a run added.
fn step(
    path: &Path,
    file: &TensorFile,
    program: &Program,
    seed: u64,
) -> Result<(u64, Value), Error> {
    let about: Value = serde_json::from_str(file.note(KEY).unwrap_or_default())
        .map_err(|error| unreadable(path, error.to_string()))?;
    let step = about["step"].as_u64();
    let step = step.ok_or_else(|| unreadable(path, "it names no step".into()))?;
    let word = |key: &str| about[key].as_str().unwrap_or("something unknown").to_owned();
    let its_seed = about["seed"].as_u64();
    let its_seed = its_seed.map_or("none".into(), |seed| seed.to_string());
    let text = |program: &str, optimizer: &str, seed: &str| {
        format!("{program} with {optimizer} and seed {seed}")
    };
    let its = text(&word("program"), &word("optimizer"), &its_seed);
    let ours = text(&program.name, optimizer(program), &seed.to_string());
    match its == ours {
        true => Ok((step, about["training"].clone())),
        false => Err(other_run(path, format!("it is of {its}, this is {ours}"))),
    }
}

/// The persistent tensors of the program, all of which are in the file.
fn tensors(path: &Path, file: &TensorFile, program: &Program) -> Result<Vec<Stored>, Error> {
    let (ids, found) = (persistent(program), file.tensors());
    if ids.len() != found.len() {
        let (expected, found) = (ids.len(), found.len());
        return Err(other_run(path, format!("it has {found} tensors, not {expected}")));
    }
    let one = |id: StorageId| {
        let tensor = Stored::as_it_is(program, id);
        let is_there = found
            .get(&tensor.name)
            .is_some_and(|info| info.shape == tensor.shape && info.dtype == tensor.file_type());
        match is_there {
            true => Ok(tensor),
            false => Err(other_run(
                path,
                format!("it has no `{}` of shape {:?}", tensor.name, tensor.shape),
            )),
        }
    };
    ids.into_iter().map(one).collect()
}

/// What is wrong, without the name of the file.
fn reason(error: WeightsError) -> String {
    match error {
        WeightsError::Read { source, .. } | WeightsError::Write { source, .. } => {
            source.to_string()
        }
        WeightsError::Format { why, .. } => format!("it is no checkpoint, or it is damaged: {why}"),
        other => other.to_string(),
    }
}

pub(crate) fn other_run(path: &Path, why: String) -> Error {
    Error::OtherRun { path: path.to_owned(), why }
}

fn unreadable(path: &Path, why: String) -> Error {
    Error::Checkpoint { path: path.to_owned(), what: "read", why }
}
