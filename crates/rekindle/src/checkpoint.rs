//! Checkpoints: everything that the next step depends on, in a safetensors file.
//!
//! The file holds every persistent tensor (parameters, buffers, optimizer state) as the engine has
//! it, under its name, and says which program, optimizer, seed and step it belongs to. A run may go
//! on with another learning rate, which is part of no state; with another optimizer the state would
//! mean something else. It is written tensor by tensor, beside its final place first and then moved
//! over it: a run that is killed leaves the old checkpoint or the new one, and never half of one.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use rekindle_engine::Engine;
use rekindle_graph::{Role, StorageId, replace_file};
use rekindle_models::Values;
use rekindle_program::op::Op;
use rekindle_program::{DType, Program};
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, View};

use crate::Error;
use crate::trainer::{read, write};

/// The one entry of the file's metadata; its text says what the file belongs to.
const KEY: &str = "remat.checkpoint/1";
/// Headers beyond this are damage; the format's own limit.
const LARGEST_HEADER: u64 = 100_000_000;

/// What a step finds and leaves: all that is persistent but the batch and constants.
pub(crate) fn persistent(program: &Program) -> Vec<StorageId> {
    let kept = |role| matches!(role, Role::Parameter | Role::OptimizerState);
    let ids = (0..program.tensors.len()).map(StorageId::new);
    ids.filter(|&id| kept(program.tensor(id).role)).collect()
}

/// Writes the state after `step`.
pub(crate) fn save(path: &Path, engine: &Engine, seed: u64, step: u64) -> Result<(), Error> {
    let fail = |why: String| Error::Checkpoint {
        path: path.to_owned(),
        what: "written",
        why,
    };
    let program = engine.program();
    let entries = persistent(program).into_iter().map(|id| {
        let tensor = program.tensor(id);
        (tensor.name.clone(), Entry { engine, id })
    });
    let belongs = serde_json::json!({
        "program": program.name,
        "optimizer": optimizer(program),
        "seed": seed,
        "step": step,
    });
    let about = HashMap::from([(KEY.to_owned(), belongs.to_string())]);
    replace_file(path, |partial| {
        safetensors::serialize_to_file(entries, Some(about), partial)
            .map_err(|error| std::io::Error::other(error.to_string()))
    })
    .map_err(|error| fail(error.to_string()))
}

/// How the program updates its parameters: the name of the algorithm.
fn optimizer(program: &Program) -> &'static str {
    let name = |op: &Op| match op {
        Op::Sgd(_) => Some("sgd"),
        Op::Adam(adam) if adam.options.decoupled => Some("adamw"),
        Op::Adam(_) => Some("adam"),
        _ => None,
    };
    let mut updates = program.nodes.iter().filter_map(|node| name(&node.op));
    updates.next().unwrap_or("no optimizer")
}

/// Refuses what [`Trainer::resume`](crate::Trainer::resume) would refuse, before anything is set up
/// for it.
///
/// # Errors
/// If the file cannot be read, or belongs to another model, size, optimizer or seed.
pub fn check_checkpoint(path: &Path, program: &Program, seed: u64) -> Result<(), Error> {
    let file = Opened::new(path)?;
    file.step(program, seed)?;
    file.tensors(program)?;
    Ok(())
}

/// Reads a checkpoint of this program, optimizer and seed into the engine, and gives the step after
/// which it was written. Everything is checked before the first value is changed.
pub(crate) fn load(path: &Path, engine: &mut Engine, seed: u64) -> Result<u64, Error> {
    let mut file = Opened::new(path)?;
    let step = file.step(engine.program(), seed)?;
    let tensors = file.tensors(engine.program())?;
    for (id, info) in tensors {
        let bytes = file.read(&info)?;
        let values = match engine.program().tensor(id).dtype {
            DType::I64 => Values::I64(
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| i64::from_le_bytes(b))
                    .collect(),
            ),
            DType::F32 | DType::U8 => Values::F32(
                bytes
                    .as_chunks()
                    .0
                    .iter()
                    .map(|&b| f32::from_le_bytes(b))
                    .collect(),
            ),
        };
        write(engine, id, &values)?;
    }
    Ok(step)
}

/// A tensor on its way into the file.
struct Entry<'e> {
    engine: &'e Engine,
    id: StorageId,
}

impl View for Entry<'_> {
    fn dtype(&self) -> Dtype {
        file_type(self.engine.program().tensor(self.id).dtype)
    }

    fn shape(&self) -> &[usize] {
        &self.engine.program().tensor(self.id).shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let values = read(self.engine, self.id).expect("persistent tensors stay in the arena");
        Cow::Owned(match values {
            Values::F32(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Values::I64(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        })
    }

    fn data_len(&self) -> usize {
        let tensor = self.engine.program().tensor(self.id);
        tensor.len() * tensor.dtype.size()
    }
}

fn file_type(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
    }
}

/// A checkpoint file whose header has been read.
struct Opened<'p> {
    path: &'p Path,
    file: File,
    header: Metadata,
    /// Where the values begin.
    start: u64,
}

impl<'p> Opened<'p> {
    fn new(path: &'p Path) -> Result<Opened<'p>, Error> {
        let fail = |why: String| unreadable(path, why);
        let io = |error: std::io::Error| unreadable(path, error.to_string());
        let mut file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let mut length = [0; 8];
        if size < length.len() as u64 {
            return Err(fail(format!("it is no checkpoint: it has {size} bytes")));
        }
        file.read_exact(&mut length).map_err(io)?;
        let length = u64::from_le_bytes(length);
        if length > LARGEST_HEADER || length > size.saturating_sub(8) {
            return Err(fail(format!(
                "it is no checkpoint: it is not a safetensors file of {size} bytes"
            )));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(io)?;
        let header: Metadata = serde_json::from_slice(&header)
            .map_err(|error| fail(format!("it is no checkpoint: {error}")))?;
        let start = 8 + length;
        let tensors = header.tensors();
        let end = tensors.values().map(|info| info.data_offsets.1).max();
        let needed = start + end.unwrap_or(0) as u64;
        if size != needed {
            return Err(fail(format!(
                "it has {size} bytes, not {needed}; it is damaged"
            )));
        }
        Ok(Opened {
            path,
            file,
            header,
            start,
        })
    }

    /// The step, if the file belongs to this program, optimizer and seed.
    fn step(&self, program: &Program, seed: u64) -> Result<u64, Error> {
        let about = self.header.metadata().as_ref().and_then(|all| all.get(KEY));
        let about = about.ok_or_else(|| unreadable(self.path, "it is no checkpoint".into()))?;
        let about: serde_json::Value = serde_json::from_str(about)
            .map_err(|error| unreadable(self.path, error.to_string()))?;
        let step = about["step"].as_u64();
        let step = step.ok_or_else(|| unreadable(self.path, "it names no step".into()))?;
        let word = |key: &str| {
            about[key]
                .as_str()
                .unwrap_or("something unknown")
                .to_owned()
        };
        let its_seed = about["seed"].as_u64();
        let its_seed = its_seed.map_or("none".into(), |seed| seed.to_string());
        let its = (word("program"), word("optimizer"), its_seed);
        let ours = (
            program.name.clone(),
            optimizer(program).to_owned(),
            seed.to_string(),
        );
        let text = |(program, optimizer, seed): &(String, String, String)| {
            format!("{program} with {optimizer} and seed {seed}")
        };
        match its == ours {
            true => Ok(step),
            false => {
                Err(self.other_run(format!("it is of {}, this is {}", text(&its), text(&ours))))
            }
        }
    }

    /// Where each persistent tensor of the program stands in the file.
    fn tensors(&self, program: &Program) -> Result<Vec<(StorageId, TensorInfo)>, Error> {
        let ids = persistent(program);
        let found = self.header.tensors();
        if ids.len() != found.len() {
            let (expected, found) = (ids.len(), found.len());
            return Err(self.other_run(format!("it has {found} tensors, not {expected}")));
        }
        let one = |id: StorageId| {
            let tensor = program.tensor(id);
            let info = found
                .get(&tensor.name)
                .filter(|info| info.shape == tensor.shape && info.dtype == file_type(tensor.dtype));
            match info {
                Some(&info) => Ok((id, info.clone())),
                None => Err(self.other_run(format!(
                    "it has no `{}` of shape {:?}",
                    tensor.name, tensor.shape
                ))),
            }
        };
        ids.into_iter().map(one).collect()
    }

    fn read(&mut self, info: &TensorInfo) -> Result<Vec<u8>, Error> {
        let (from, to) = info.data_offsets;
        let mut bytes = vec![0; to - from];
        self.file
            .seek(SeekFrom::Start(self.start + from as u64))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(|error| unreadable(self.path, error.to_string()))?;
        Ok(bytes)
    }

    fn other_run(&self, why: String) -> Error {
        Error::OtherRun {
            path: self.path.to_owned(),
            why,
        }
    }
}

fn unreadable(path: &Path, why: String) -> Error {
    Error::Checkpoint {
        path: path.to_owned(),
        what: "read",
        why,
    }
}
