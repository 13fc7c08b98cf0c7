//! What the caller chooses: the strategy, the effort, and who watches.

use std::ops::ControlFlow;

use rekindle_graph::{Bytes, Micros, Store};

use crate::Strategy;

/// How to plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Which algorithm decides.
    pub strategy: Strategy,
    /// How much work to spend.
    pub effort: Effort,
    /// Where storages can be moved to and back; `None` if nothing is moved.
    pub store: Option<Store>,
}

/// How much work a strategy may do, counted in its own steps and never on a clock, so that the same
/// input gives the same plan on every machine. Each level is twice the work of the one below.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Effort(u8);

impl Effort {
    /// The first plan that fits.
    pub const FIRST: Effort = Effort(0);
    /// Good plans for a graph of two thousand nodes in about two seconds.
    pub const DEFAULT: Effort = Effort(5);
    /// The most that can be asked for.
    pub const MOST: Effort = Effort(10);

    /// The effort of that level, from 0 to 10.
    pub fn new(level: u8) -> Option<Effort> {
        (level <= Effort::MOST.0).then_some(Effort(level))
    }

    /// 0 to 10.
    pub fn level(self) -> u8 {
        self.0
    }
}

impl Default for Effort {
    fn default() -> Self {
        Effort::DEFAULT
    }
}

/// How far a strategy has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Work done, in the strategy's own count.
    pub done: u64,
    /// Work that will be done if nobody says stop.
    pub total: u64,
    /// Time of the best plan under the budget so far.
    pub best: Option<Micros>,
    /// The lowest peak so far.
    pub lowest: Bytes,
}

/// Sees the progress, and may end the work early.
pub trait Watch {
    /// Called now and then by strategies that take many steps: `search` several times a second on
    /// any graph, `mutwo` in every round. After `Break` the strategy returns the best that it has.
    fn progress(&mut self, progress: &Progress) -> ControlFlow<()>;
}

/// Never says stop.
pub struct NoWatch;

impl Watch for NoWatch {
    fn progress(&mut self, _: &Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
