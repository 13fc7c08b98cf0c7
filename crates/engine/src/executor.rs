//! The executor: a layout → a training step that runs in one arena.
//!
//! Everything is decided before the first training step: the [`Layout`] has an address for
//! everything, and the arena is reserved. Running allocates nothing.
//!
//! Invariant: spans that are live at the same time do not overlap (`placement`), and a run's writes
//! and scratch are disjoint from its reads, so the slices handed to a kernel never alias. What is
//! moved at the same time (`channels`) is waited for by whoever needs it or its room (`moves`).

use std::sync::Arc;

use rekindle_graph::{Bytes, Graph, NodeId, StorageId};
use rekindle_program::Program;

use crate::arena::{Arena, Span};
use crate::channels::{Channels, Store, TransferWatch};
use crate::dispatch::{Operands, run_kernel};
use crate::layout::Instruction;
use crate::moves::Direction;
use crate::{EngineError, Layout, Peak, Threads};

/// What makes one training step differ from the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iteration {
    /// The seed of all randomness in the run.
    pub seed: u64,
    /// Which training step it is, counted from 1.
    pub number: u64,
}

/// What the optimizer is told of a step beside its gradients: values that change from one step to
/// the next, and are no part of the program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Update {
    /// Takes the place of the learning rate that the program was built with.
    pub learning_rate: Option<f64>,
    /// Which update it is, counted from 1; without one it is the number of the iteration.
    pub number: Option<u64>,
    /// Whether sums of gradients begin with this step; otherwise it adds to them.
    pub begins: bool,
    /// Whether the parameters follow their gradients in this step; otherwise they stay.
    pub ends: bool,
}

impl Default for Update {
    /// Every step is an update, as the program says.
    fn default() -> Update {
        Update { learning_rate: None, number: None, begins: true, ends: true }
    }
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
    /// Called before compute stands still because of a transfer; the node is what cannot go on.
    fn waits(&mut self, _node: NodeId) {}
    /// Called when it goes on.
    fn goes_on(&mut self, _node: NodeId) {}
    /// Asked once, before the step: who wants to know when transfers take place.
    fn transfers(&self) -> Option<Arc<dyn TransferWatch>> {
        None
    }
}

/// What a training step moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes copied to the store.
    pub out: Bytes,
    /// Bytes copied back.
    pub back: Bytes,
    /// How often compute stood still because of a transfer.
    pub waits: u64,
}

/// Nobody wants to know.
impl Observer for () {
    fn before(&mut self, _: NodeId) {}
    fn after(&mut self, _: NodeId, _: Bytes) {}
}

/// A training step set up to run, with its memory. Tensors are named by their ids in the program.
pub struct Engine {
    pub(crate) layout: Layout,
    pub(crate) threads: Arc<Threads>,
    /// Where the layout moves something. Ends before the arena does.
    pub(crate) channels: Option<Channels>,
    pub(crate) arena: Arena,
    /// The seed of the sources' values, as long as nothing else was written to them.
    pub(crate) filled: Option<u64>,
    moved: Moved,
    update: Update,
}

impl Engine {
    /// Sets up the plain step, with weights from seed 0.
    ///
    /// # Errors
    /// If the arena does not fit in the machine's memory.
    pub fn new(program: &Program, threads: usize) -> Result<Engine, EngineError> {
        Engine::with_layout(Layout::plain(program, threads), 0, &mut |_, _| {})
    }

    /// Sets up a step that has been placed and moves nothing, with weights from `seed`. `ready` is
    /// told now and then how many bytes of how large an arena are ready.
    ///
    /// # Errors
    /// If the arena does not fit in the machine's memory, or the step needs a store.
    pub fn with_layout(
        layout: Layout,
        seed: u64,
        ready: &mut dyn FnMut(Bytes, Bytes),
    ) -> Result<Engine, EngineError> {
        Engine::with_store(layout, seed, None, ready)
    }

    /// As [`Engine::with_layout`], for a step that moves tensors to a store, which holds at least
    /// [`Layout::store_bytes`].
    ///
    /// # Errors
    /// If the arena does not fit in the machine's memory, or the store fails.
    pub fn with_store(
        layout: Layout,
        seed: u64,
        store: Option<Store>,
        ready: &mut dyn FnMut(Bytes, Bytes),
    ) -> Result<Engine, EngineError> {
        let size = layout.room;
        let needed = layout.store_bytes();
        if needed > Bytes::ZERO && store.is_none() {
            return Err(EngineError::NoStore { needed });
        }
        let threads = Arc::new(Threads::start(layout.threads())?);
        let mut arena = Arena::new(size, &mut |bytes| ready(bytes, size))?;
        let base = arena.as_mut_ptr();
        // SAFETY: the arena is memory of its own that stays where it is until it is dropped, which
        // is after the channels; all spans of the layout lie in it. That nobody else uses them
        // while they are moved is what `moves` is for, and `run_observed` keeps to.
        let start = |store| unsafe { Channels::start(layout.moves.clone(), store, base) };
        let channels = store.filter(|_| needed > Bytes::ZERO).map(start).transpose()?;
        let (moved, update) = (Moved::default(), Update::default());
        let mut engine = Engine { threads, layout, channels, arena, filled: None, moved, update };
        engine.fill_sources(seed)?;
        Ok(engine)
    }

    /// What the optimizer is told of the steps from now on.
    pub fn set_update(&mut self, update: Update) {
        self.update = update;
    }

    /// Lets `work` use the engine for another step, which was placed in the memory of this one
    /// ([`Layout::beside`]). Afterwards all that is persistent here is as `work` left it.
    ///
    /// # Panics
    /// If `layout` does not fit in the arena: it was placed beside another step.
    pub fn run_beside<T>(
        &mut self,
        layout: &mut Layout,
        work: impl FnOnce(&mut Engine) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        assert!(layout.room <= self.layout.room, "a step beside this one");
        std::mem::swap(&mut self.layout, layout);
        let filled = self.fill_own_sources();
        let done = filled.and_then(|()| work(self));
        std::mem::swap(&mut self.layout, layout);
        done
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

    /// What the last training step moved.
    pub fn moved(&self) -> Moved {
        self.moved
    }

    /// Runs one training step and says what its peak really was.
    ///
    /// # Errors
    /// If the data is bad: an id or label out of range; or if the store fails. After that the
    /// values are those of no step.
    pub fn run(&mut self, iteration: Iteration) -> Result<Peak, EngineError> {
        self.run_observed(iteration, &mut ())
    }

    /// Runs one training step with somebody watching each node.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn run_observed(
        &mut self,
        iteration: Iteration,
        observer: &mut dyn Observer,
    ) -> Result<Peak, EngineError> {
        self.filled = None;
        self.moved = Moved::default();
        if let Some(channels) = &self.channels {
            channels.begin(observer.transfers())?;
        }
        let ran = self.run_instructions(iteration, observer);
        // Whatever happened, nobody moves anything when this returns.
        let drained = self.channels.as_ref().map_or(Ok(()), Channels::drain);
        ran.and_then(|peak| drained.map(|()| peak))
    }

    fn run_instructions(
        &mut self,
        iteration: Iteration,
        observer: &mut dyn Observer,
    ) -> Result<Peak, EngineError> {
        let base = self.arena.as_mut_ptr();
        let layout = &self.layout;
        let mut queue = Queue { layout, channels: self.channels.as_ref(), moved: &mut self.moved };
        let mut ledger = Ledger { live: layout.resident.live.get(), peak: layout.resident };
        let mut last = NodeId(0);
        for instruction in &layout.instructions {
            let (node, reads, writes, scratch) = match instruction {
                Instruction::Free { span, after } => {
                    queue.wait(*after, last, observer)?;
                    ledger.live -= span.bytes as u64;
                    continue;
                }
                Instruction::Wait { node, after } => {
                    queue.wait(*after, *node, observer)?;
                    continue;
                }
                Instruction::Move(number) => {
                    ledger.claim(queue.begin(*number), Span::default());
                    continue;
                }
                Instruction::Run { node, reads, writes, scratch, after } => {
                    queue.wait(*after, *node, observer)?;
                    (*node, layout.range(*reads), layout.range(*writes), *scratch)
                }
            };
            last = node;
            ledger.claim(writes, scratch);
            observer.before(node);
            // SAFETY: `base` is the arena, every span lies in it, and by the invariant of this
            // module no write or scratch overlaps another operand.
            let operands = unsafe { Operands::new(base, reads, writes, scratch) };
            let origin = layout.run_of(node).expect("a run is a run of something");
            let origin = layout.program.node(origin);
            let told = (iteration, self.update);
            let done = run_kernel(&layout.program, origin, operands, told, &self.threads);
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
}

/// How compute deals with transfers.
struct Queue<'a> {
    layout: &'a Layout,
    channels: Option<&'a Channels>,
    moved: &'a mut Moved,
}

impl Queue<'_> {
    /// Stands still until these moves have ended.
    fn wait(
        &mut self,
        after: [u32; 2],
        node: NodeId,
        observer: &mut dyn Observer,
    ) -> Result<(), EngineError> {
        let moves = self.layout.moves.waits(after);
        let Some(channels) = self.channels.filter(|c| !c.have_ended(moves)) else {
            return Ok(());
        };
        self.moved.waits += 1;
        observer.waits(node);
        channels.wait(moves)?;
        observer.goes_on(node);
        Ok(())
    }

    /// Puts a move on its channel. Gives what it claims of the arena.
    fn begin(&mut self, number: u32) -> &[Span] {
        let it = &self.layout.moves.all[number as usize];
        let channels = self.channels.expect("a step that moves something has a store");
        channels.issue(number);
        let bytes = Bytes(it.span.bytes as u64);
        match it.direction {
            Direction::Out => {
                self.moved.out += bytes;
                &[]
            }
            Direction::In => {
                self.moved.back += bytes;
                std::slice::from_ref(&it.span)
            }
        }
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
