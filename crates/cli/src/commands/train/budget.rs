//! What of a budget goes to what.

use rekindle_graph::{Budget, Bytes};

use crate::exit::UsageError;
use crate::summary::percent;

/// What a process needs beside its arena and its data: code, stacks, the model's graphs and what
/// the planner leaves behind. A guess on the safe side: a small step left 23 MiB resident in all.
pub(crate) const BESIDE: Bytes = Bytes(64 << 20);

/// What is not the step's.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    /// For data.
    pub(crate) data: Bytes,
}

impl Memory {
    /// What the arena may have: what data and the process leave of a number of bytes, or a share of
    /// the plain step's.
    pub(crate) fn arena(
        self,
        budget: Option<Budget>,
        plain: Bytes,
    ) -> Result<Option<Bytes>, UsageError> {
        let beside = self.data + BESIDE;
        match budget {
            None => Ok(None),
            Some(share @ Budget::Share(_)) => Ok(Some(share.resolve(plain))),
            Some(Budget::Bytes(whole)) if whole > beside => Ok(Some(whole - beside)),
            Some(Budget::Bytes(whole)) => Err(UsageError(format!(
                "a budget of {whole} leaves nothing to train in: data has {} of it \
                 (--data-memory) and the process {BESIDE}; give it more",
                self.data
            ))),
        }
    }

    /// What the whole process may have.
    pub(crate) fn whole(self, budget: Option<Budget>, plain: Bytes) -> Option<Bytes> {
        match budget? {
            Budget::Bytes(whole) => Some(whole),
            share @ Budget::Share(_) => Some(share.resolve(plain) + self.data + BESIDE),
        }
    }

    pub(crate) fn text(self, budget: Option<Budget>, plain: Bytes, room: Bytes) -> String {
        let whole = self.whole(budget, plain).unwrap_or_default();
        let share = percent(room.get() as f64 / plain.get().max(1) as f64);
        format!(
            "{whole} in all: {room} for the step ({share} of the plain one), {} for data, {BESIDE} \
             for the process",
            self.data
        )
    }
}
