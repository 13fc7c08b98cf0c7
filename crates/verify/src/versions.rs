//! Which version of its original each copy of a rewritten graph holds, and whether every reader
//! finds the one that it needs.
//!
//! In a checked graph nobody reads a storage after its updater, so every run needs what the writer
//! made. What outlives the step must hold what the updater left.

use rekindle_graph::{NodeId, Step, StorageId};

use crate::Violation;
use crate::rewritten::{Check, persists};

/// What a copy holds, in memory or in the store.
#[derive(Clone, Copy, PartialEq)]
enum Version {
    /// What the original's writer made.
    Made,
    /// What the original's updater left.
    Updated,
}

/// Replays the rewritten graph, and looks at what is left at the end.
pub(crate) fn check(check: &Check<'_>, found: &mut Vec<Violation>) {
    // Inputs and runs make; the others hand on, and a checked graph's order is a valid one.
    let mut version = vec![Version::Made; check.rewritten.storages().len()];
    let mut is_updated = vec![false; check.graph.storages().len()];
    for id in check.order() {
        let node = check.rewritten.node(id);
        match check.origins.nodes[id.index()] {
            Step::Run(_) => {
                let stale = |s: &&StorageId| version[s.index()] == Version::Updated;
                if let Some(&storage) = node.reads.iter().find(stale) {
                    found.push(Violation::ReadsUpdatedCopy { node: node.shown_name(), storage });
                }
                for u in &node.updates {
                    version[u.index()] = Version::Updated;
                    is_updated[check.storage_origin(*u).index()] = true;
                }
            }
            Step::Offload(_) => hand_on(check, id, &mut version),
            Step::Fetch(origin) => {
                hand_on(check, id, &mut version);
                let is_old = |s: &StorageId| version[s.index()] == Version::Made;
                if is_updated[origin.index()] && node.reads.iter().any(is_old) {
                    found.push(Violation::FetchesStaleCopy {
                        node: node.shown_name(),
                        updater: updater(check, origin).unwrap_or_default(),
                    });
                }
            }
            Step::Free(_) => {}
        }
    }
    let mut stays: Vec<bool> = check.rewritten.storages().iter().map(persists).collect();
    check.rewritten.outputs().iter().for_each(|s| stays[s.index()] = true);
    for storage in check.rewritten.storage_ids().filter(|s| stays[s.index()]) {
        if let Some(updater) = updater(check, check.storage_origin(storage))
            && version[storage.index()] == Version::Made
        {
            found.push(Violation::CopyStale { storage, updater });
        }
    }
}

/// What a transfer writes is what it reads.
fn hand_on(check: &Check<'_>, id: NodeId, version: &mut [Version]) {
    let node = check.rewritten.node(id);
    if let (Some(from), Some(to)) = (node.reads.first(), node.writes.first()) {
        version[to.index()] = version[from.index()];
    }
}

/// The name of the node that updates a storage of the graph, if any does.
fn updater(check: &Check<'_>, origin: StorageId) -> Option<String> {
    let updater = check.graph.updater(origin)?;
    Some(check.graph.node(updater).shown_name())
}
