//! What a rewritten graph stands for.

use crate::{NodeId, StorageId};

/// What each part of a rewritten graph stands for in the graph that it was made from.
#[derive(Clone, Copy, Debug)]
pub struct Origins<'a> {
    /// The node that each node stands for.
    pub nodes: &'a [NodeId],
    /// The storage that each storage is a copy of.
    pub storages: &'a [StorageId],
}
