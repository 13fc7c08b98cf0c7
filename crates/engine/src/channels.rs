//! Channels: threads that move tensors between the arena and a store while compute goes on.
//!
//! In: the moves of a layout, one after the other, as compute comes to them. Out: whether each has
//! ended. There is one channel for both directions, or one for each where the store does both at
//! the same time; a channel takes its moves in their order. Nothing allocates during a step.
//!
//! Invariant: a move begins when all those that it must come after have ended; these were all begun
//! before it, so somebody can always go on. After a fault or a panic no bytes are moved any more,
//! no move ends, and whoever waits is told.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rekindle_graph::{Bytes, NodeId};

use crate::EngineError;
use crate::moves::{Direction, Moves};
use crate::store::Backing;

/// Who wants to know when transfers really take place. Called by the threads of the channels; a
/// transfer begins when `began` returns.
pub trait TransferWatch: Send + Sync {
    /// A transfer is next on its channel.
    fn began(&self, node: NodeId, direction: Direction);
    /// It is over.
    fn ended(&self, node: NodeId, direction: Direction, bytes: Bytes);
}

/// A store for an engine, and how it is used.
pub struct Store {
    /// What keeps the bytes.
    pub backing: Box<dyn Backing>,
    /// Whether both directions go at the same time.
    pub duplex: bool,
    /// How many moves each channel has under way at a time, at least one.
    pub depth: usize,
}

/// The beginning of the arena.
struct Base(*mut u8);

// SAFETY: a pointer can be sent; what is done with it is what `Shared::copy` says.
unsafe impl Send for Base {}
// SAFETY: likewise.
unsafe impl Sync for Base {}

struct Shared {
    backing: Box<dyn Backing>,
    base: Base,
    moves: Moves,
    /// Whether each move has ended.
    ended: Vec<AtomicBool>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The moves that are next, for each channel.
    queues: Vec<VecDeque<u32>>,
    /// How many moves have been begun and have not ended.
    open: usize,
    failed: Option<EngineError>,
    watch: Option<Arc<dyn TransferWatch>>,
    stop: bool,
}

/// The threads that move an engine's tensors.
pub(crate) struct Channels {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Channels {
    /// Starts the threads for the moves of a layout, whose arena is at `base`.
    ///
    /// # Safety
    /// The arena stays where it is as long as the channels live, the spans of all moves lie in it,
    /// and nobody else uses a span while a move of it is under way, but to read what is read.
    ///
    /// # Errors
    /// If the system does not start them.
    pub(crate) unsafe fn start(
        moves: Moves,
        store: Store,
        base: *mut u8,
    ) -> Result<Channels, EngineError> {
        let channels = if store.duplex { 2 } else { 1 };
        let count = moves.all.len();
        let shared = Arc::new(Shared {
            backing: store.backing,
            base: Base(base),
            ended: (0..count).map(|_| AtomicBool::new(false)).collect(),
            moves,
            state: Mutex::new(State {
                queues: (0..channels).map(|_| VecDeque::with_capacity(count)).collect(),
                open: 0,
                failed: None,
                watch: None,
                stop: false,
            }),
            changed: Condvar::new(),
        });
        let mut this = Channels { shared, workers: Vec::new() };
        let wanted = channels * store.depth.max(1);
        for index in 0..wanted {
            let shared = Arc::clone(&this.shared);
            let worker = std::thread::Builder::new()
                .name(format!("rekindle-move-{index}"))
                .spawn(move || shared.serve(index % channels))
                .map_err(|error| EngineError::Threads {
                    wanted,
                    started: index,
                    reason: error.to_string(),
                })?;
            this.workers.push(worker);
        }
        Ok(this)
    }

    /// What keeps the bytes. Nobody may be moving them.
    pub(crate) fn backing(&self) -> &dyn Backing {
        &*self.shared.backing
    }

    /// Makes ready for a training step.
    ///
    /// # Errors
    /// If a transfer failed in an earlier one: what is in the store is not whole.
    pub(crate) fn begin(&self, watch: Option<Arc<dyn TransferWatch>>) -> Result<(), EngineError> {
        let mut state = self.shared.lock();
        state.watch = watch;
        for ended in &self.shared.ended {
            ended.store(false, Ordering::Relaxed);
        }
        state.failed.clone().map_or(Ok(()), Err)
    }

    /// Puts a move on its channel.
    pub(crate) fn issue(&self, number: u32) {
        let mut state = self.shared.lock();
        let channel = match self.shared.moves.all[number as usize].direction {
            Direction::Out => 0,
            Direction::In => state.queues.len() - 1,
        };
        state.queues[channel].push_back(number);
        state.open += 1;
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Whether all these moves have ended.
    pub(crate) fn have_ended(&self, moves: &[u32]) -> bool {
        moves.iter().all(|&m| self.shared.ended[m as usize].load(Ordering::Acquire))
    }

    /// Returns when all these moves have ended.
    ///
    /// # Errors
    /// If a transfer failed.
    pub(crate) fn wait(&self, moves: &[u32]) -> Result<(), EngineError> {
        let state =
            self.shared.wait_until(|state| state.failed.is_some() || self.have_ended(moves));
        state.failed.clone().map_or(Ok(()), Err)
    }

    /// Returns when nothing is under way.
    ///
    /// # Errors
    /// If a transfer failed.
    pub(crate) fn drain(&self) -> Result<(), EngineError> {
        let mut state = self.shared.wait_until(|state| state.open == 0);
        state.watch = None;
        state.failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for Channels {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        for worker in self.workers.drain(..) {
            // A panic of a worker has nobody left to tell.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The state is valid after every statement, so that a panic elsewhere does not matter.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, mut is_so: impl FnMut(&State) -> bool) -> MutexGuard<'_, State> {
        let state = self.changed.wait_while(self.lock(), |state| !is_so(state));
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the moves of one channel, until the engine goes.
    fn serve(&self, channel: usize) {
        loop {
            let mut state =
                self.wait_until(|state| state.stop || !state.queues[channel].is_empty());
            if state.stop {
                return;
            }
            let Some(number) = state.queues[channel].pop_front() else {
                continue;
            };
            drop(state);
            // Whoever waits for a move must be told that nobody makes it any more.
            let done = catch_unwind(AssertUnwindSafe(|| self.carry_out(number)));
            let done = done.unwrap_or_else(|panic| Err(self.panicked(number, &*panic)));
            let mut state = self.lock();
            match done {
                Ok(()) => self.ended[number as usize].store(true, Ordering::Release),
                Err(error) => _ = state.failed.get_or_insert(error),
            }
            state.open -= 1;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for those before it, and copies. After a fault nothing is copied.
    fn carry_out(&self, number: u32) -> Result<(), EngineError> {
        let it = &self.moves.all[number as usize];
        let before = self.moves.waits(it.after);
        let ended = |m: &u32| self.ended[*m as usize].load(Ordering::Acquire);
        let state = self.wait_until(|state| state.failed.is_some() || before.iter().all(ended));
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let watch = state.watch.clone();
        drop(state);
        if let Some(watch) = &watch {
            watch.began(it.node, it.direction);
        }
        let copied = self.copy(number);
        if let Some(watch) = &watch {
            watch.ended(it.node, it.direction, Bytes(it.span.bytes as u64));
        }
        copied
    }

    fn panicked(&self, number: u32, panic: &(dyn Any + Send)) -> EngineError {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let thread = std::thread::current();
        EngineError::TransferPanicked {
            thread: thread.name().unwrap_or_default().into(),
            direction: self.moves.all[number as usize].direction,
            name: self.backing.name(),
            reason: text.unwrap_or("no reason given").into(),
        }
    }

    fn copy(&self, number: u32) -> Result<(), EngineError> {
        let it = &self.moves.all[number as usize];
        match it.direction {
            Direction::Out => {
                // SAFETY: the span lies in the arena, and nobody writes to it while it is copied,
                // by the promise of `Channels::start`.
                let bytes = unsafe {
                    std::slice::from_raw_parts(self.base.0.add(it.span.offset), it.span.bytes)
                };
                self.backing.write(it.slot, bytes)
            }
            Direction::In => {
                // SAFETY: likewise, and nobody reads it either.
                let bytes = unsafe {
                    std::slice::from_raw_parts_mut(self.base.0.add(it.span.offset), it.span.bytes)
                };
                self.backing.read(it.slot, bytes)
            }
        }
        .map_err(|error| EngineError::store(&*self.backing, it.direction, &error))
    }
}
