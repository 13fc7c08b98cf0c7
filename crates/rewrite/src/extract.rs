//! The sub-graphs that rebuild what was dropped, as data that a person can read.
//!
//! Clones that follow each other without an ordinary node in between form a batch. What a batch
//! makes and is read after it (or is an output) has been rebuilt; the clones of the batch that it
//! is made from are its sub-graph, and what these read from before the batch are its sources.

use std::collections::BTreeSet;

use rekindle_graph::{Graph, NodeId, StorageId};

/// How one dropped storage is rebuilt. All ids are those of the rewritten graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extraction {
    /// The copy that is made.
    pub storage: StorageId,
    /// The clones that make it; ascending, which is the order in which they run.
    pub nodes: Vec<NodeId>,
    /// What is kept and they start from; ascending.
    pub sources: Vec<StorageId>,
    /// The node before which they go; `None` at the end of the step.
    pub before: Option<NodeId>,
}

pub(crate) fn extractions(graph: &Graph, is_clone: &[bool]) -> Vec<Extraction> {
    let mut found = Vec::new();
    let mut start = 0;
    for end in 0..=is_clone.len() {
        if end < is_clone.len() && is_clone[end] {
            continue;
        }
        let batch =
            Batch { graph, start, end, before: (end < is_clone.len()).then(|| NodeId::new(end)) };
        found.extend(batch.extractions());
        start = end + 1;
    }
    found
}

/// The clones from `start` to before `end`.
struct Batch<'g> {
    graph: &'g Graph,
    start: usize,
    end: usize,
    before: Option<NodeId>,
}

impl Batch<'_> {
    fn extractions(&self) -> Vec<Extraction> {
        let nodes = (self.start..self.end).map(|i| self.graph.node(NodeId::new(i)));
        let made = nodes.flat_map(|node| &node.writes);
        let rebuilt = made.copied().filter(|&s| self.is_read_after(s));
        rebuilt.map(|s| self.extract(s)).collect()
    }

    fn is_read_after(&self, storage: StorageId) -> bool {
        let readers = self.graph.readers(storage);
        let after = readers.last().is_some_and(|r| r.index() >= self.end);
        after || self.graph.outputs().contains(&storage)
    }

    fn extract(&self, storage: StorageId) -> Extraction {
        let (mut nodes, mut sources) = (BTreeSet::new(), BTreeSet::new());
        let mut open = vec![self.graph.writer(storage)];
        while let Some(id) = open.pop() {
            if !nodes.insert(id) {
                continue;
            }
            for &read in &self.graph.node(id).reads {
                let writer = self.graph.writer(read);
                match (self.start..self.end).contains(&writer.index()) {
                    true => open.push(writer),
                    false => _ = sources.insert(read),
                }
            }
        }
        Extraction {
            storage,
            nodes: nodes.into_iter().collect(),
            sources: sources.into_iter().collect(),
            before: self.before,
        }
    }
}
