//! The executor: a layout → a training step that runs in one arena.
//!
//! Everything is decided before the first training step: the [`Layout`] has an address for
//! everything, and the arena is reserved. Running allocates nothing.
//!
//! Invariant: spans that are live at the same time do not overlap (`placement`), and a run's writes
//! and scratch are disjoint from its reads, so the slices handed to a kernel never alias.

use rekindle_graph::{Bytes, Graph, NodeId, StorageId};
use rekindle_program::{DType, Program};

use crate::arena::{Arena, Span};
use crate::dispatch::{Operands, run_kernel};
use crate::layout::Instruction;
use crate::spill::NoSpill;
use crate::{EngineError, Layout, Peak, Spill, Threads};

/// What makes one training step differ from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iteration {
    /// The seed of all randomness in the run.
    pub seed: u64,
    /// Which training step it is, counted from 1.
    pub number: u64,
}

/// Who wants to know when a node of the graph that runs does so. The engine reads no clock; an
/// observer may.
pub trait Observer {
    /// Called just before a node's kernel.
    fn before(&mut self, node: NodeId);
    /// Called just after a node's kernel, with the bytes that were in use while it ran.
    fn after(&mut self, node: NodeId, in_use: Bytes);
    /// Called after that, for each storage that the node made, with its bytes. They may be moved
    /// away and back, but must be what they were when the call returns.
    fn made(&mut self, _storage: StorageId, _contents: &mut [u8]) {}
}

/// Nobody wants to know.
impl Observer for () {
    fn before(&mut self, _: NodeId) {}
    fn after(&mut self, _: NodeId, _: Bytes) {}
}

/// A training step set up to run, with its memory. Tensors are named by their ids in the program.
pub struct Engine {
    layout: Layout,
    threads: Threads,
    arena: Arena,
    spill: Box<dyn Spill + Send>,
    /// The seed of the sources' values, as long as nothing else was written to them.
    filled: Option<u64>,
}

impl Engine {
    /// Sets up the plain step, with weights from seed 0.
    ///
    /// # Errors
    /// If the arena does not fit in the machine's memory.
    pub fn new(program: &Program, threads: usize) -> Result<Engine, EngineError> {
        Engine::with_layout(Layout::plain(program, threads), 0, &mut |_, _| {})
    }

    /// Sets up a step that has been placed, with weights from `seed`. `ready` is told now and then
    /// how many bytes of how large an arena are ready.
    ///
    /// # Errors
    /// If the arena does not fit in the machine's memory.
    pub fn with_layout(
        layout: Layout,
        seed: u64,
        ready: &mut dyn FnMut(Bytes, Bytes),
    ) -> Result<Engine, EngineError> {
        let size = layout.predicted().arena;
        let threads = Threads::start(layout.threads())?;
        let arena = Arena::new(size, &mut |bytes| ready(bytes, size))?;
        let mut engine = Engine { threads, layout, arena, spill: Box::new(NoSpill), filled: None };
        engine.fill_sources(seed);
        Ok(engine)
    }

    /// Gives every source its initial value again: weights from `seed`, the rest as declared.
    /// Sources that have just those values stay as they are.
    pub fn fill_sources(&mut self, seed: u64) {
        if self.filled.replace(seed) == Some(seed) {
            return;
        }
        let Engine { layout, arena, .. } = self;
        let tensors = layout.program.tensors.iter().zip(&layout.program.init);
        for (index, (tensor, init)) in tensors.enumerate() {
            let (Some(init), Some(span)) = (init, layout.between[index]) else {
                continue;
            };
            let bytes = arena.bytes_mut(span);
            match tensor.dtype {
                DType::F32 => {
                    let values = &mut cast_mut::<f32>(bytes)[..tensor.len()];
                    init.fill_f32(seed, index, values);
                }
                DType::I64 => init.fill_i64(&mut cast_mut::<i64>(bytes)[..tensor.len()]),
                DType::U8 => {}
            }
        }
    }

    /// Gives the engine a place for the tensors that its program moves out of the arena.
    pub fn set_spill(&mut self, spill: Box<dyn Spill + Send>) {
        self.spill = spill;
    }

    /// The layout that it runs.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.layout.program
    }

    /// The graph that runs; of the plain step, the planner's view of the program.
    pub fn graph(&self) -> &Graph {
        &self.layout.graph
    }

    /// How many threads run a kernel.
    pub fn threads(&self) -> usize {
        self.threads.count()
    }

    /// The peak that every training step will have.
    pub fn predicted(&self) -> Peak {
        self.layout.predicted()
    }

    /// Runs one training step and says what its peak really was.
    ///
    /// # Errors
    /// If the data is bad: an id or label out of range.
    pub fn run(&mut self, iteration: Iteration) -> Result<Peak, EngineError> {
        self.run_observed(iteration, &mut ())
    }

    /// Runs one training step with somebody watching each node.
    ///
    /// # Errors
    /// If the data is bad: an id or label out of range.
    pub fn run_observed(
        &mut self,
        iteration: Iteration,
        observer: &mut dyn Observer,
    ) -> Result<Peak, EngineError> {
        self.filled = None;
        let base = self.arena.as_mut_ptr();
        let layout = &self.layout;
        let mut ledger = Ledger { live: layout.resident.live.get(), peak: layout.resident };
        for instruction in &layout.instructions {
            let (node, reads, writes, scratch) = match instruction {
                Instruction::Free(span) => {
                    ledger.live -= span.bytes as u64;
                    continue;
                }
                Instruction::Run { node, reads, writes, scratch } => {
                    (*node, layout.range(*reads), layout.range(*writes), *scratch)
                }
            };
            ledger.claim(writes, scratch);
            observer.before(node);
            // SAFETY: `base` is the arena, every span lies in it, and by the invariant of this
            // module no write or scratch overlaps another operand.
            let operands = unsafe { Operands::new(base, reads, writes, scratch) };
            let origin = layout.program.node(layout.origin(node));
            let (threads, spill) = (&self.threads, self.spill.as_mut());
            let done = run_kernel(&layout.program, origin, operands, iteration, threads, spill);
            done.map_err(|source| EngineError::Kernel {
                node: layout.graph.node(node).name.clone(),
                source,
            })?;
            observer.after(node, Bytes(ledger.live));
            // SAFETY: as above; the kernel is done with its operands.
            let made = unsafe { Operands::new(base, &[], writes, Span::default()) };
            for (k, &storage) in layout.graph.node(node).writes.iter().enumerate() {
                observer.made(storage, made.write(k, writes[k].bytes));
            }
            ledger.live -= scratch.bytes as u64;
        }
        Ok(ledger.peak)
    }

    /// The elements of a persistent tensor or an output.
    ///
    /// # Errors
    /// If it has other elements, or is gone after the step.
    pub fn read_f32(&self, id: StorageId) -> Result<&[f32], EngineError> {
        let span = self.locate(id, DType::F32)?;
        Ok(&cast::<f32>(self.arena.bytes(span))[..self.layout.program.tensor(id).len()])
    }

    /// The elements of a persistent tensor or an output.
    ///
    /// # Errors
    /// If it has other elements, or is gone after the step.
    pub fn read_i64(&self, id: StorageId) -> Result<&[i64], EngineError> {
        let span = self.locate(id, DType::I64)?;
        Ok(&cast::<i64>(self.arena.bytes(span))[..self.layout.program.tensor(id).len()])
    }

    /// The little-endian bytes of a persistent tensor or an output.
    ///
    /// # Errors
    /// If it is gone after the step.
    pub fn bytes(&self, id: StorageId) -> Result<&[u8], EngineError> {
        let tensor = self.layout.program.tensor(id);
        let span = self.locate(id, tensor.dtype)?;
        Ok(&self.arena.bytes(span)[..tensor.len() * tensor.dtype.size()])
    }

    /// As [`Engine::bytes`], to be overwritten.
    ///
    /// # Errors
    /// If it is gone after the step.
    pub fn bytes_mut(&mut self, id: StorageId) -> Result<&mut [u8], EngineError> {
        let tensor = self.layout.program.tensor(id);
        let (span, len) = (self.locate(id, tensor.dtype)?, tensor.len() * tensor.dtype.size());
        self.filled = None;
        Ok(&mut self.arena.bytes_mut(span)[..len])
    }

    /// Overwrites a persistent tensor.
    ///
    /// # Errors
    /// If it has another length or other elements.
    pub fn write_f32(&mut self, id: StorageId, values: &[f32]) -> Result<(), EngineError> {
        let span = self.locate(id, DType::F32)?;
        self.check_length(id, values.len())?;
        self.filled = None;
        cast_mut::<f32>(self.arena.bytes_mut(span))[..values.len()].copy_from_slice(values);
        Ok(())
    }

    /// Overwrites a persistent tensor.
    ///
    /// # Errors
    /// If it has another length or other elements.
    pub fn write_i64(&mut self, id: StorageId, values: &[i64]) -> Result<(), EngineError> {
        let span = self.locate(id, DType::I64)?;
        self.check_length(id, values.len())?;
        self.filled = None;
        cast_mut::<i64>(self.arena.bytes_mut(span))[..values.len()].copy_from_slice(values);
        Ok(())
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

    fn locate(&self, id: StorageId, dtype: DType) -> Result<Span, EngineError> {
        let tensor = self.layout.program.tensor(id);
        if tensor.dtype != dtype {
            return Err(EngineError::Type {
                name: tensor.name.clone(),
                expected: tensor.dtype,
                found: dtype,
            });
        }
        self.layout.between[id.index()]
            .ok_or_else(|| EngineError::Gone { name: tensor.name.clone() })
    }

    fn check_length(&self, id: StorageId, found: usize) -> Result<(), EngineError> {
        let tensor = self.layout.program.tensor(id);
        if tensor.len() == found {
            return Ok(());
        }
        Err(EngineError::Length { name: tensor.name.clone(), expected: tensor.len(), found })
    }
}

/// What is in use, counted while the training step runs and apart from the prediction.
struct Ledger {
    live: u64,
    peak: Peak,
}

impl Ledger {
    fn claim(&mut self, writes: &[Span], scratch: Span) {
        for span in writes.iter().chain([&scratch]) {
            self.live += span.bytes as u64;
            self.peak.arena = self.peak.arena.max(Bytes(span.end() as u64));
        }
        self.peak.live = self.peak.live.max(Bytes(self.live));
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
