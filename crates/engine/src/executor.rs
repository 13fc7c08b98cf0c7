//! The executor: a program and a schedule → a step that runs in one arena.
//!
//! Everything is decided before the first step: the schedule is replayed, its lifetimes are placed,
//! and each step becomes an [`Action`] with fixed addresses. Running a step allocates nothing.
//!
//! Invariant: spans that are live at the same time do not overlap (`placement`), and an action's
//! writes and scratch are disjoint from its reads, so the slices handed to a kernel never alias.

use rekindle_graph::{Bytes, Graph, NodeId, Schedule, Step, StorageId, Timeline};
use rekindle_program::{DType, Program};

use crate::arena::{Arena, Span};
use crate::dispatch::{Operands, run_kernel, workspace};
use crate::lifetimes::{Lifetimes, Touch};
use crate::placement::{Placement, place};
use crate::spill::NoSpill;
use crate::{EngineError, Spill, Threads};

/// The planner's view of `program` as this engine runs it with `threads` threads.
pub fn lower(program: &Program, threads: usize) -> Graph {
    program.graph(|op| workspace(op, threads))
}

/// What makes one step differ from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepContext {
    /// Of all randomness in the run.
    pub seed: u64,
    /// Counted from 1.
    pub step: u64,
}

/// Bytes at the peak of a step, as predicted before it or as measured in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The largest sum of live bytes.
    pub live: Bytes,
    /// The end of the highest address in use: live bytes plus what fragmentation costs.
    pub arena: Bytes,
}

/// Who wants to know when a node runs. The engine reads no clock; an observer may.
pub trait Observer {
    /// Just before a node's kernel.
    fn before(&mut self, node: NodeId);
    /// Just after a node's kernel, with the bytes that were in use while it ran.
    fn after(&mut self, node: NodeId, in_use: Bytes);
    /// After that, for each tensor that the node made: its bytes. They may be moved away and back,
    /// but must be what they were when the call returns.
    fn made(&mut self, _tensor: StorageId, _contents: &mut [u8]) {}
}

/// Nobody.
impl Observer for () {
    fn before(&mut self, _: NodeId) {}
    fn after(&mut self, _: NodeId, _: Bytes) {}
}

/// One thing to do, with its addresses.
#[derive(Clone, Debug)]
enum Action {
    /// Ranges are of [`Engine::spans`]. `claimed` is given back when the action is over if it is
    /// in `passing`: scratch, and copies of outputs that are still live.
    Run {
        node: NodeId,
        reads: [u32; 2],
        writes: [u32; 2],
        scratch: Span,
        claimed: u64,
        passing: u64,
    },
    Free(Span),
}

/// A program set up to run, with its memory.
pub struct Engine {
    program: Program,
    graph: Graph,
    threads: Threads,
    arena: Arena,
    spill: Box<dyn Spill + Send>,
    spans: Vec<Span>,
    actions: Vec<Action>,
    /// Where each storage is between steps; indexed by storage.
    between: Vec<Option<Span>>,
    /// End of the highest storage that is there from the start, and the sum of them all.
    resident: Peak,
    predicted: Peak,
    /// The seed of the sources' values, as long as nothing else was written to them.
    filled: Option<u64>,
}

impl Engine {
    /// Sets up the plain step: every node once, in the program's own order, weights from seed 0.
    ///
    /// # Errors
    /// If the arena does not fit in the machine's memory.
    pub fn new(program: &Program, threads: usize) -> Result<Engine, EngineError> {
        let graph = lower(program, threads);
        let steps = Schedule::plain(&graph).steps;
        Engine::with_schedule(program, &steps, threads, 0, &mut |_, _| {})
    }

    /// Sets up any valid schedule of runs and frees, with weights from `seed`. `ready` is told now
    /// and then how many bytes of how large an arena are ready.
    ///
    /// # Errors
    /// If the schedule is not valid for the program, or the arena does not fit in memory.
    pub fn with_schedule(
        program: &Program,
        steps: &[Step],
        threads: usize,
        seed: u64,
        ready: &mut dyn FnMut(Bytes, Bytes),
    ) -> Result<Engine, EngineError> {
        let layout = Layout::new(program, steps, threads)?;
        let size = layout.placement.size;
        let arena = Arena::new(size, &mut |bytes| ready(bytes, size))?;
        let mut engine = layout.into_engine(program, steps, Threads::new(threads), arena);
        engine.fill_sources(seed);
        Ok(engine)
    }

    /// Gives every source its initial value again: weights from `seed`, the rest as declared.
    /// Sources that have just those values stay as they are.
    pub fn fill_sources(&mut self, seed: u64) {
        if self.filled.replace(seed) == Some(seed) {
            return;
        }
        for index in 0..self.program.tensors.len() {
            let Some(init) = self.program.init[index].clone() else {
                continue;
            };
            let id = StorageId::new(index);
            let Some(span) = self.between[index] else {
                continue;
            };
            match self.program.tensor(id).dtype {
                DType::F32 => {
                    let len = self.program.tensor(id).len();
                    let bytes = self.arena.bytes_mut(span);
                    init.fill_f32(seed, index, &mut cast_mut::<f32>(bytes)[..len]);
                }
                DType::I64 => {
                    let len = self.program.tensor(id).len();
                    let bytes = self.arena.bytes_mut(span);
                    init.fill_i64(&mut cast_mut::<i64>(bytes)[..len]);
                }
                DType::U8 => {}
            }
        }
    }

    /// Gives the engine a place for the tensors that its program moves out of the arena.
    pub fn set_spill(&mut self, spill: Box<dyn Spill + Send>) {
        self.spill = spill;
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The planner's view of the program, scratch of this engine included.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// How many threads run a kernel.
    pub fn threads(&self) -> usize {
        self.threads.count()
    }

    /// The peak that every step will have.
    pub fn predicted(&self) -> Peak {
        self.predicted
    }

    /// Runs one step and says what its peak really was.
    ///
    /// # Errors
    /// If the data is bad: an id or label out of range.
    pub fn run(&mut self, context: StepContext) -> Result<Peak, EngineError> {
        self.run_observed(context, &mut ())
    }

    /// Runs one step with somebody watching each node.
    ///
    /// # Errors
    /// If the data is bad: an id or label out of range.
    pub fn run_observed(
        &mut self,
        context: StepContext,
        observer: &mut dyn Observer,
    ) -> Result<Peak, EngineError> {
        self.filled = None;
        let base = self.arena.as_mut_ptr();
        let mut ledger = Ledger {
            live: self.resident.live.get(),
            peak: self.resident,
        };
        for action in &self.actions {
            match action {
                Action::Free(span) => ledger.live -= span.bytes as u64,
                Action::Run {
                    node,
                    reads,
                    writes,
                    scratch,
                    claimed,
                    passing,
                } => {
                    let reads = &self.spans[reads[0] as usize..reads[1] as usize];
                    let writes = &self.spans[writes[0] as usize..writes[1] as usize];
                    ledger.claim(*claimed, writes, *scratch);
                    observer.before(*node);
                    // SAFETY: `base` is the arena, every span lies in it, and by the invariant of
                    // this module no write or scratch overlaps another operand.
                    let operands = unsafe { Operands::new(base, reads, writes, *scratch) };
                    let program_node = self.program.node(*node);
                    let (threads, spill) = (&self.threads, self.spill.as_mut());
                    let program = &self.program;
                    run_kernel(program, program_node, operands, context, threads, spill).map_err(
                        |source| EngineError::Kernel {
                            node: program_node.name.clone(),
                            source,
                        },
                    )?;
                    observer.after(*node, Bytes(ledger.live));
                    // SAFETY: as above; the kernel is done with its operands.
                    let made = unsafe { Operands::new(base, &[], writes, Span::default()) };
                    for (k, &tensor) in program_node.writes.iter().enumerate() {
                        observer.made(tensor, made.write(k, writes[k].bytes));
                    }
                    ledger.live -= passing;
                }
            }
        }
        Ok(ledger.peak)
    }

    /// The elements of a persistent tensor or an output.
    ///
    /// # Errors
    /// If it has other elements, or is gone after the step.
    pub fn read_f32(&self, id: StorageId) -> Result<&[f32], EngineError> {
        let span = self.locate(id, DType::F32)?;
        Ok(&cast::<f32>(self.arena.bytes(span))[..self.program.tensor(id).len()])
    }

    /// The elements of a persistent tensor or an output.
    ///
    /// # Errors
    /// If it has other elements, or is gone after the step.
    pub fn read_i64(&self, id: StorageId) -> Result<&[i64], EngineError> {
        let span = self.locate(id, DType::I64)?;
        Ok(&cast::<i64>(self.arena.bytes(span))[..self.program.tensor(id).len()])
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
        let found = self.program.tensors.iter().position(|t| t.name == name);
        found
            .map(StorageId::new)
            .ok_or_else(|| EngineError::UnknownTensor {
                name: name.into(),
                program: self.program.name.clone(),
            })
    }

    fn locate(&self, id: StorageId, dtype: DType) -> Result<Span, EngineError> {
        let tensor = self.program.tensor(id);
        if tensor.dtype != dtype {
            return Err(EngineError::Type {
                name: tensor.name.clone(),
                expected: tensor.dtype,
                found: dtype,
            });
        }
        self.between[id.index()].ok_or_else(|| EngineError::Gone {
            name: tensor.name.clone(),
        })
    }

    fn check_length(&self, id: StorageId, found: usize) -> Result<(), EngineError> {
        let tensor = self.program.tensor(id);
        if tensor.len() == found {
            return Ok(());
        }
        Err(EngineError::Length {
            name: tensor.name.clone(),
            expected: tensor.len(),
            found,
        })
    }
}

/// What is in use, counted while the step runs and apart from the prediction.
struct Ledger {
    live: u64,
    peak: Peak,
}

impl Ledger {
    fn claim(&mut self, claimed: u64, writes: &[Span], scratch: Span) {
        self.live += claimed;
        self.peak.live = self.peak.live.max(Bytes(self.live));
        let highest = writes
            .iter()
            .chain([&scratch])
            .map(|s| s.end())
            .max()
            .unwrap_or(0);
        self.peak.arena = self.peak.arena.max(Bytes(highest as u64));
    }
}

/// A schedule with an address for everything: what can be known without any memory.
pub struct Layout {
    graph: Graph,
    lifetimes: Lifetimes,
    placement: Placement,
    predicted: Peak,
}

impl Layout {
    /// Replays and places a schedule.
    ///
    /// # Errors
    /// If the schedule is not valid for the program.
    pub fn new(program: &Program, steps: &[Step], threads: usize) -> Result<Layout, EngineError> {
        let graph = lower(program, threads);
        let timeline = Timeline::new(&graph, &steps.to_vec().into())?;
        let lifetimes = Lifetimes::new(program, &graph, steps);
        let placement = place(&lifetimes.blocks);
        let predicted = Peak {
            live: timeline.peak,
            arena: placement.size,
        };
        Ok(Layout {
            graph,
            lifetimes,
            placement,
            predicted,
        })
    }

    /// The peak that every step will have.
    pub fn predicted(&self) -> Peak {
        self.predicted
    }

    fn span(&self, instance: usize) -> Span {
        Span {
            offset: self.placement.offsets[instance] as usize,
            bytes: self.lifetimes.blocks[instance].bytes as usize,
        }
    }

    fn into_engine(
        self,
        program: &Program,
        steps: &[Step],
        threads: Threads,
        arena: Arena,
    ) -> Engine {
        let mut spans = Vec::new();
        let mut actions = Vec::with_capacity(steps.len());
        for (step, touch) in steps.iter().zip(&self.lifetimes.touches) {
            actions.push(match (step, touch) {
                (
                    Step::Run(node),
                    Touch::Run {
                        reads,
                        writes,
                        scratch,
                        dropped,
                    },
                ) => {
                    let mut range = |instances: &[usize]| {
                        let from = spans.len() as u32;
                        spans.extend(instances.iter().map(|&i| self.span(i)));
                        [from, spans.len() as u32]
                    };
                    let scratch = scratch.map_or(Span::default(), |i| self.span(i));
                    let bytes = |list: &[usize]| -> u64 {
                        list.iter().map(|&i| self.span(i).bytes as u64).sum()
                    };
                    Action::Run {
                        node: *node,
                        reads: range(reads),
                        writes: range(writes),
                        scratch,
                        claimed: bytes(writes) + scratch.bytes as u64,
                        passing: bytes(dropped) + scratch.bytes as u64,
                    }
                }
                (_, Touch::Free(instance)) => Action::Free(self.span(*instance)),
                (_, Touch::Run { .. }) => unreachable!("touches follow the steps"),
            });
        }
        let start = self.lifetimes.start.iter().map(|&(_, i)| self.span(i));
        let resident = Peak {
            live: Bytes(start.clone().map(|s| s.bytes as u64).sum()),
            arena: Bytes(start.map(|s| s.end() as u64).max().unwrap_or(0)),
        };
        let between = self
            .lifetimes
            .end
            .iter()
            .map(|i| i.map(|i| self.span(i)))
            .collect();
        Engine {
            program: program.clone(),
            graph: self.graph,
            threads,
            arena,
            spill: Box::new(NoSpill),
            spans,
            actions,
            between,
            resident,
            predicted: self.predicted,
            filled: None,
        }
    }
}

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
