//! Asks the watch often enough, however large the graph: by edges looked at, never by a clock.
//!
//! Whatever walks along edges says how many it has looked at; after [`BEAT`] of them the watch is
//! asked. Counting changes no result: only a watch that says stop does.

use std::cell::{Cell, RefCell};

use rekindle_graph::Bytes;

use crate::{Progress, Watch};

/// Edges between two questions to the watch: some hundredths of a second.
const BEAT: u64 = 4_000_000;

/// See the module's documentation.
pub(crate) struct Pulse<'w> {
    watch: RefCell<&'w mut dyn Watch>,
    /// What the watch was told last.
    progress: Cell<Progress>,
    /// Edges looked at since the watch was asked.
    since: Cell<u64>,
    stopped: Cell<bool>,
}

impl<'w> Pulse<'w> {
    pub(crate) fn new(watch: &'w mut dyn Watch) -> Pulse<'w> {
        Pulse {
            watch: RefCell::new(watch),
            progress: Cell::new(Progress { done: 0, total: 0, best: None, lowest: Bytes::ZERO }),
            since: Cell::new(0),
            stopped: Cell::new(false),
        }
    }

    /// Counts edges; whether the watch has said stop.
    pub(crate) fn beat(&self, edges: u64) -> bool {
        self.since.set(self.since.get() + edges);
        match self.since.get() >= BEAT {
            true => self.report(self.progress.get()),
            false => self.stopped.get(),
        }
    }

    /// Tells the watch; whether it has said stop.
    pub(crate) fn report(&self, progress: Progress) -> bool {
        self.progress.set(progress);
        self.since.set(0);
        let answer = self.watch.borrow_mut().progress(&progress);
        self.stopped.set(self.stopped.get() || answer.is_break());
        self.stopped.get()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }
}
