//! The values of an engine's tensors between training steps: what a person, a file or the next step
//! reads and writes.
//!
//! A tensor is in the arena or in the store. What is in the store passes through a buffer of
//! [`PIECE`] bytes, so that nothing here needs room for a whole tensor unless its caller does.

use std::borrow::Cow;
use std::sync::Arc;

use rekindle_graph::StorageId;
use rekindle_program::DType;

use crate::layout::Home;
use crate::moves::Direction;
use crate::store::PageBuffer;
use crate::{Engine, EngineError};

/// Enough for a disk's full speed, and nothing beside a model. A multiple of every element's size.
const PIECE: usize = 1 << 20;

/// As many numbers as a thread draws at a time; even, since they are drawn in pairs.
const CHUNK: usize = 1 << 14;

impl Engine {
    /// Gives every source its initial value again: weights from `seed`, the rest as declared.
    /// Sources that have just those values stay as they are.
    ///
    /// # Errors
    /// If the store fails.
    pub fn fill_sources(&mut self, seed: u64) -> Result<(), EngineError> {
        if self.filled == Some(seed) {
            return Ok(());
        }
        for index in 0..self.layout.program.tensors.len() {
            self.fill_source(index, seed)?;
        }
        self.filled = Some(seed);
        Ok(())
    }

    /// Gives a step beside another one those of its sources that are not shared.
    pub(crate) fn fill_own_sources(&mut self) -> Result<(), EngineError> {
        let own = self.layout.own_sources.clone();
        own.into_iter().try_for_each(|source| self.fill_source(source.index(), 0))
    }

    /// Gives a tensor its initial value, if it is a source.
    fn fill_source(&mut self, index: usize, seed: u64) -> Result<(), EngineError> {
        let threads = Arc::clone(&self.threads);
        let program = &self.layout.program;
        let (Some(init), Some(_)) = (&program.init[index], self.layout.between[index]) else {
            return Ok(());
        };
        let (init, dtype) = (init.clone(), program.tensors[index].dtype);
        let mut first = 0;
        self.write_pieces(StorageId::new(index), |piece| {
            match dtype {
                DType::F32 => threads.chunks_mut(cast_mut(piece), CHUNK, &|task, part| {
                    init.fill_f32(seed, index, first + task * CHUNK, part);
                }),
                DType::I64 => init.fill_i64(first, cast_mut(piece)),
                DType::U8 => piece.fill(0),
            }
            first += piece.len() / dtype.size();
            Ok::<(), EngineError>(())
        })
    }

    /// Hands out the little-endian bytes of a persistent tensor or an output, piece by piece in
    /// their order. What is in the arena is one piece.
    ///
    /// # Errors
    /// If it is gone after the step, the store fails, or `each` says so.
    pub fn read_pieces<E: From<EngineError>>(
        &self,
        id: StorageId,
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = self.byte_count(id);
        let slot = match self.home(id)? {
            Home::Arena(span) => return each(&self.arena.bytes(span)[..bytes]),
            Home::Store(slot) => slot,
        };
        let buffer = PageBuffer::new(PIECE.min(bytes));
        let mut buffer = buffer.map_err(|error| self.store_failed(Direction::In, &error))?;
        for at in (0..bytes).step_by(PIECE) {
            let piece = buffer.first(PIECE.min(bytes - at));
            let read = self.backing().read(slot + at as u64, piece);
            read.map_err(|error| self.store_failed(Direction::In, &error))?;
            each(piece)?;
        }
        Ok(())
    }

    /// Lets `each` overwrite the little-endian bytes of a persistent tensor, piece by piece in
    /// their order. What is in the arena is one piece; what a piece holds before is not what the
    /// tensor held.
    ///
    /// # Errors
    /// If it is gone after the step, the store fails, or `each` says so. The pieces before are
    /// overwritten then.
    pub fn write_pieces<E: From<EngineError>>(
        &mut self,
        id: StorageId,
        mut each: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let bytes = self.byte_count(id);
        self.filled = None;
        let slot = match self.home(id)? {
            Home::Arena(span) => return each(&mut self.arena.bytes_mut(span)[..bytes]),
            Home::Store(slot) => slot,
        };
        let buffer = PageBuffer::new(PIECE.min(bytes));
        let mut buffer = buffer.map_err(|error| self.store_failed(Direction::Out, &error))?;
        for at in (0..bytes).step_by(PIECE) {
            let piece = buffer.first(PIECE.min(bytes - at));
            each(piece)?;
            let written = self.backing().write(slot + at as u64, piece);
            written.map_err(|error| self.store_failed(Direction::Out, &error))?;
        }
        Ok(())
    }

    /// The elements of a persistent tensor or an output; a copy of them if it is in the store.
    ///
    /// # Errors
    /// If it has other elements, is gone after the step, or the store fails.
    pub fn read_f32(&self, id: StorageId) -> Result<Cow<'_, [f32]>, EngineError> {
        self.read(id, DType::F32)
    }

    /// The elements of a persistent tensor or an output; a copy of them if it is in the store.
    ///
    /// # Errors
    /// If it has other elements, is gone after the step, or the store fails.
    pub fn read_i64(&self, id: StorageId) -> Result<Cow<'_, [i64]>, EngineError> {
        self.read(id, DType::I64)
    }

    /// Overwrites a persistent tensor.
    ///
    /// # Errors
    /// If it has another length or other elements, or the store fails.
    pub fn write_f32(&mut self, id: StorageId, values: &[f32]) -> Result<(), EngineError> {
        self.write(id, DType::F32, values)
    }

    /// Overwrites a persistent tensor.
    ///
    /// # Errors
    /// If it has another length or other elements, or the store fails.
    pub fn write_i64(&mut self, id: StorageId, values: &[i64]) -> Result<(), EngineError> {
        self.write(id, DType::I64, values)
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn find(&self, name: &str) -> Result<StorageId, EngineError> {
        let found = self.layout.program.tensors.iter().position(|t| t.name == name);
        found.map(StorageId::new).ok_or_else(|| EngineError::UnknownTensor {
            name: name.into(),
            program: self.layout.program.name.clone(),
        })
    }

    fn read<T: Plain>(&self, id: StorageId, dtype: DType) -> Result<Cow<'_, [T]>, EngineError> {
        self.check_type(id, dtype)?;
        let len = self.layout.program.tensor(id).len();
        if let Home::Arena(span) = self.home(id)? {
            return Ok(Cow::Borrowed(&cast(self.arena.bytes(span))[..len]));
        }
        let mut values = Vec::with_capacity(len);
        self.read_pieces(id, |piece| {
            values.extend_from_slice(cast(piece));
            Ok::<(), EngineError>(())
        })?;
        Ok(Cow::Owned(values))
    }

    fn write<T: Plain>(
        &mut self,
        id: StorageId,
        dtype: DType,
        values: &[T],
    ) -> Result<(), EngineError> {
        self.check_type(id, dtype)?;
        let tensor = self.layout.program.tensor(id);
        if tensor.len() != values.len() {
            let (expected, found) = (tensor.len(), values.len());
            return Err(EngineError::Length { name: tensor.name.clone(), expected, found });
        }
        let mut rest = values;
        self.write_pieces(id, |piece| {
            let (now, later) = rest.split_at(piece.len() / size_of::<T>());
            cast_mut(piece).copy_from_slice(now);
            rest = later;
            Ok(())
        })
    }

    /// How many bytes the elements of a tensor have.
    fn byte_count(&self, id: StorageId) -> usize {
        let tensor = self.layout.program.tensor(id);
        tensor.len() * tensor.dtype.size()
    }

    fn home(&self, id: StorageId) -> Result<Home, EngineError> {
        let home = self.layout.between[id.index()];
        home.ok_or_else(|| EngineError::Gone { name: self.layout.program.tensor(id).name.clone() })
    }

    fn check_type(&self, id: StorageId, found: DType) -> Result<(), EngineError> {
        let tensor = self.layout.program.tensor(id);
        match tensor.dtype == found {
            true => Ok(()),
            false => {
                Err(EngineError::Type { name: tensor.name.clone(), expected: tensor.dtype, found })
            }
        }
    }

    fn backing(&self) -> &dyn crate::Backing {
        let channels = self.channels.as_ref();
        channels.expect("a tensor in the store has a store").backing()
    }

    fn store_failed(&self, direction: Direction, error: &std::io::Error) -> EngineError {
        EngineError::store(self.backing(), direction, error)
    }
}

/// Tensors pass between files and the arena as bytes.
const _: () = assert!(cfg!(target_endian = "little"), "a machine's numbers are those of the files");

/// A type whose every bit pattern is valid.
trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for i64 {}

fn cast<T: Plain>(bytes: &[u8]) -> &[T] {
    // SAFETY: every bit pattern is a valid `T`; `align_to` keeps to aligned elements.
    let (before, values, _) = unsafe { bytes.align_to::<T>() };
    assert!(before.is_empty(), "tensors are aligned");
    values
}

fn cast_mut<T: Plain>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: every bit pattern is a valid `T`; `align_to` keeps to aligned elements.
    let (before, values, _) = unsafe { bytes.align_to_mut::<T>() };
    assert!(before.is_empty(), "tensors are aligned");
    values
}
