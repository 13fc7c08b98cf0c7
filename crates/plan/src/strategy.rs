//! The registry of strategies: every list of them, in help texts, reports, Python and tests, is
//! [`Strategy::ALL`].
//!
//! A strategy is one file that defines a constant `STRATEGY`; a `mod` line in `lib.rs` and an entry
//! in the list below are all that makes it known.

use rekindle_graph::{Bytes, Graph};

use crate::draft::Draft;
use crate::{Options, Watch, blocks, moving, mutwo, search, sqrt};

/// An algorithm that decides what is kept and what is recomputed.
#[derive(Clone, Copy)]
pub struct Strategy {
    /// The name on the command line and in plan files.
    pub name: &'static str,
    /// What a report calls it.
    pub title: &'static str,
    /// What it does: a sentence whose subject is the strategy.
    pub about: &'static str,
    /// Whether it aims at the budget. One that does not gives the same plan for every budget.
    pub heeds_budget: bool,
    /// Whether it has nothing to do without a store.
    pub needs_store: bool,
    /// A schedule under the budget if one is found, otherwise the lowest that was reached.
    pub(crate) draft: Drafter,
    /// A schedule with as low a peak as is found; instead of a budget it is given the floor.
    pub(crate) lowest: Drafter,
}

/// How a strategy is called. Only the runs of its draft count: frees are put in afterwards.
pub(crate) type Drafter = fn(&Graph, Bytes, &Options, &mut dyn Watch) -> Draft;

impl Strategy {
    /// Every strategy, the default first.
    pub const ALL: &[Strategy] =
        &[Strategy::SEARCH, Strategy::MUTWO, sqrt::STRATEGY, blocks::STRATEGY, moving::STRATEGY];

    /// The best that Rekindle knows, and the default.
    pub const SEARCH: Strategy = search::STRATEGY;

    /// The greedy choice of μ-TWO, which also plans from a profiler's tables ([`mutwo`]).
    pub const MUTWO: Strategy = mutwo::STRATEGY;

    /// Those that plan without a store.
    pub fn without_store() -> impl Iterator<Item = Strategy> {
        Strategy::ALL.iter().copied().filter(|s| !s.needs_store)
    }

    /// The strategy of that name.
    pub fn from_name(name: &str) -> Option<Strategy> {
        Strategy::ALL.iter().copied().find(|s| s.name == name)
    }

    /// The names of all, separated by commas, for messages.
    pub fn names() -> String {
        let names: Vec<&str> = Strategy::ALL.iter().map(|s| s.name).collect();
        names.join(", ")
    }
}

impl Default for Strategy {
    fn default() -> Self {
        Strategy::SEARCH
    }
}

/// By name.
impl PartialEq for Strategy {
    fn eq(&self, other: &Strategy) -> bool {
        self.name == other.name
    }
}

impl Eq for Strategy {}

impl std::fmt::Debug for Strategy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_finds_its_own_strategy() {
        for strategy in Strategy::ALL {
            assert_eq!(Strategy::from_name(strategy.name), Some(*strategy));
            let about = strategy.about;
            assert!(about.ends_with('.') && !about.starts_with(char::is_uppercase));
        }
        assert_eq!(Strategy::default(), Strategy::ALL[0]);
    }
}
