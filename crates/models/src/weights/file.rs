//! A safetensors file, read tensor by tensor.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, TensorInfo};

use super::{Stored, WeightsError, file_type, stored};
use crate::Model;

/// Headers beyond this are damage, not tensors; the format's own limit.
const LARGEST_HEADER: u64 = 100_000_000;

/// An open file whose header has been read.
pub(super) struct WeightFile {
    path: PathBuf,
    file: File,
    /// By name, so that errors name the same tensor every time.
    tensors: BTreeMap<String, TensorInfo>,
    /// Where the values begin.
    start: u64,
}

impl WeightFile {
    pub(super) fn open(path: &Path) -> Result<WeightFile, WeightsError> {
        let io = |source| WeightsError::Read {
            path: path.to_owned(),
            source,
        };
        let damaged = |why: String| WeightsError::Format {
            path: path.to_owned(),
            why,
        };
        let mut file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let mut length = [0; 8];
        if size < 8 {
            return Err(damaged(format!("it has {size} bytes, less than a header")));
        }
        file.read_exact(&mut length).map_err(io)?;
        let length = u64::from_le_bytes(length);
        if length > LARGEST_HEADER || length > size - 8 {
            return Err(damaged(format!(
                "a header of {length} bytes in {size} bytes"
            )));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(io)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| damaged(error.to_string()))?;
        let start = 8 + length;
        let tensors: BTreeMap<_, _> = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| (name, info.clone()))
            .collect();
        let end = tensors.values().map(|info| info.data_offsets.1).max();
        let needed = start + end.unwrap_or(0) as u64;
        if size != needed {
            return Err(damaged(format!(
                "it has {size} bytes, but its header speaks of {needed}"
            )));
        }
        Ok(WeightFile {
            path: path.to_owned(),
            file,
            tensors,
            start,
        })
    }

    /// Each tensor of the model with its names in the file, one or two.
    pub(super) fn match_names(
        &self,
        model: &Model,
    ) -> Result<Vec<(Stored, Vec<String>)>, WeightsError> {
        let mut unused: BTreeMap<&String, &TensorInfo> = self.tensors.iter().collect();
        let mut found = Vec::new();
        let mut missing = Vec::new();
        for stored in stored(model) {
            let tied = model.tied.iter().filter(|(_, id)| *id == stored.tensor);
            let mut names = vec![stored.name.clone()];
            names.extend(tied.map(|(name, _)| name.clone()));
            names.retain(|name| unused.remove(name).is_some());
            if names.is_empty() {
                missing.push(stored.name);
                continue;
            }
            for name in &names {
                self.check(&stored, name, model)?;
            }
            found.push((stored, names));
        }
        let path = self.path.clone();
        if let Some(example) = missing.first() {
            return Err(WeightsError::Missing {
                path,
                count: missing.len(),
                example: format!("`{example}`"),
            });
        }
        if let Some(example) = unused.keys().next() {
            return Err(WeightsError::Unexpected {
                path,
                count: unused.len(),
                example: format!("`{example}`"),
            });
        }
        Ok(found)
    }

    fn check(&self, stored: &Stored, name: &str, model: &Model) -> Result<(), WeightsError> {
        let info = &self.tensors[name];
        let (path, name) = (self.path.clone(), name.to_owned());
        let dtype = file_type(model.program.tensor(stored.tensor).dtype);
        if info.shape != stored.shape {
            return Err(WeightsError::Shape {
                path,
                name,
                expected: stored.shape.clone(),
                found: info.shape.clone(),
            });
        }
        if info.dtype != dtype {
            return Err(WeightsError::Type {
                path,
                name,
                expected: dtype,
                found: info.dtype,
            });
        }
        Ok(())
    }

    pub(super) fn read(&mut self, name: &str) -> Result<Vec<u8>, WeightsError> {
        let (from, to) = self.tensors[name].data_offsets;
        let mut bytes = vec![0; to - from];
        let read = self
            .file
            .seek(SeekFrom::Start(self.start + from as u64))
            .and_then(|_| self.file.read_exact(&mut bytes));
        read.map_err(|source| WeightsError::Read {
            path: self.path.clone(),
            source,
        })?;
        Ok(bytes)
    }
}
