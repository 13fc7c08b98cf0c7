//! What a rewritten graph stands for.

use crate::{Step, StorageId};

/// What each part of a rewritten graph stands for in the graph and the plan that it was made from.
#[derive(Clone, Copy, Debug)]
pub struct Origins<'a> {
    /// The step that each node is: the run of a node, a transfer of a storage, or the free that a
    /// `wait` stands for. An input is a run of itself.
    pub nodes: &'a [Step],
    /// The storage that each storage is a copy of, in memory or, as a token, in the store.
    pub storages: &'a [StorageId],
}
