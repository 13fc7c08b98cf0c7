//! The graph: storages, the nodes that read and write them, and what must be there at the end.

use std::fmt::Write as _;

use crate::check::check;
use crate::{Bytes, GraphError, Micros, NodeId, StorageId};

/// What a storage holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// A weight, bias or buffer of the model. Persistent.
    Parameter,
    /// A batch: data or labels. Persistent.
    Input,
    /// A constant table. Persistent.
    Constant,
    /// The gradient that is fed into the backward pass. Persistent.
    Tangent,
    /// What the optimizer remembers between steps. Persistent.
    OptimizerState,
    /// Made by the forward pass.
    Activation,
    /// Made by the backward pass.
    Gradient,
    /// Anything else.
    Other,
}

impl Role {
    /// Live from the start (once written), and never freed unless a store has a copy.
    pub fn is_persistent(self) -> bool {
        !matches!(self, Role::Activation | Role::Gradient | Role::Other)
    }

    /// May live in a store between training steps.
    pub fn may_be_stored(self) -> bool {
        matches!(self, Role::Parameter | Role::Constant | Role::OptimizerState)
    }
}

/// Which part of the training step a node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Never runs: its writes are live from the start.
    Input,
    /// Computes the loss.
    Forward,
    /// Computes gradients.
    Backward,
    /// Updates parameters and optimizer state.
    Optimizer,
}

/// Whether a node may run again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Running it again gives the same bits.
    #[default]
    Pure,
    /// Draws random numbers, but its randomness is a value (seed, step, node): running it again
    /// gives the same bits if the executor replays the draw.
    Random,
    /// May run only once: it updates a buffer in place, or talks to other processes.
    Once,
}

/// A block of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Its size.
    pub bytes: Bytes,
    /// What it holds.
    pub role: Role,
}

/// A piece of work.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Unique among the names a person reads; the identity is the id.
    pub name: String,
    /// The operation, as its origin names it.
    pub op: String,
    /// The part of the step it belongs to.
    pub phase: Phase,
    /// How long one run takes.
    pub time: Micros,
    /// Floating-point operations of one run, where known.
    pub flops: Option<u64>,
    /// Storages that must be live when it runs. No duplicates.
    pub reads: Vec<StorageId>,
    /// Storages that it makes. No duplicates, disjoint from `reads`.
    pub writes: Vec<StorageId>,
    /// Storages (among `reads`) that it overwrites in place. Only a node that may run once has
    /// any; no other node may read them after it has run, but to move them.
    pub updates: Vec<StorageId>,
    /// Scratch bytes while it runs.
    pub workspace: Bytes,
    /// Whether it may run again.
    pub effect: Effect,
}

impl Node {
    /// A pure node that takes `time`, without scratch; its operation is called as it is.
    pub fn new(name: &str, phase: Phase, time: f64, reads: &[u32], writes: &[u32]) -> Node {
        let ids = |list: &[u32]| list.iter().copied().map(StorageId).collect();
        Node {
            name: name.into(),
            op: name.into(),
            phase,
            time: Micros(time),
            flops: None,
            reads: ids(reads),
            writes: ids(writes),
            updates: Vec::new(),
            workspace: Bytes::ZERO,
            effect: Effect::Pure,
        }
    }
}

/// What a node of a rewritten graph does with a store, which is its operation's name.
///
/// In such a graph a copy in the store is a storage of no bytes, a *token*: whoever reads it comes
/// after the offload that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Reads a storage and writes a token: begins to copy the storage to the store.
    Offload,
    /// Reads a token and writes a storage: begins to copy it back.
    Fetch,
    /// Reads a storage, and the token of its last offload if it had one: what is under way is over
    /// when it is. The storage is held until here.
    Wait,
}

impl Transfer {
    /// All of them.
    pub const ALL: [Transfer; 3] = [Transfer::Offload, Transfer::Fetch, Transfer::Wait];

    /// The name of the operation.
    pub fn op(self) -> &'static str {
        match self {
            Transfer::Offload => "offload",
            Transfer::Fetch => "fetch",
            Transfer::Wait => "wait",
        }
    }
}

impl Node {
    /// What it does with a store, if that is all that it does.
    pub fn transfer(&self) -> Option<Transfer> {
        let is_once = self.effect == Effect::Once;
        Transfer::ALL.into_iter().find(|t| is_once && self.op == t.op())
    }
}

impl Node {
    /// Its name as it stands in a message.
    pub fn shown_name(&self) -> String {
        one_line(&self.name)
    }
}

/// A name, which may come from anywhere, as it stands in a message: control characters, line ends
/// among them, are visible (`\u000a`), so that it stays on its line.
pub fn one_line(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    for c in name.chars() {
        match c.is_control() {
            true => write!(shown, "\\u{:04x}", c as u32).expect("strings take everything"),
            false => shown.push(c),
        }
    }
    shown
}

/// What a graph is made of, before it is checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GraphParts {
    /// A short name: `resnet152-b32`.
    pub name: String,
    /// Where it came from, in words.
    pub origin: String,
    /// Indexed by [`StorageId`].
    pub storages: Vec<Storage>,
    /// Indexed by [`NodeId`]; the order is a valid one.
    pub nodes: Vec<Node>,
    /// Storages that must be live at the end.
    pub outputs: Vec<StorageId>,
    /// Nodes that must run at least once.
    pub targets: Vec<NodeId>,
}

/// A checked training step. See the crate's documentation for what is guaranteed.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    parts: GraphParts,
    /// The node that writes each storage.
    writer: Vec<NodeId>,
    /// The nodes that read each storage, ascending.
    readers: Vec<Vec<NodeId>>,
    /// The node that overwrites each storage in place, if any.
    updater: Vec<Option<NodeId>>,
}

impl Graph {
    /// Checks `parts`. Repeated ids within one `reads`, `writes`, `outputs` or `targets` are
    /// merged.
    ///
    /// # Errors
    /// The first thing that is wrong, with the nodes and storages concerned.
    pub fn new(mut parts: GraphParts) -> Result<Graph, GraphError> {
        for node in &mut parts.nodes {
            merge_repeats(&mut node.reads);
            merge_repeats(&mut node.writes);
            merge_repeats(&mut node.updates);
        }
        merge_repeats(&mut parts.outputs);
        merge_repeats(&mut parts.targets);
        let links = check(&parts)?;
        Ok(Graph { parts, writer: links.writer, readers: links.readers, updater: links.updater })
    }

    /// A short name.
    pub fn name(&self) -> &str {
        &self.parts.name
    }

    /// Where it came from, in words.
    pub fn origin(&self) -> &str {
        &self.parts.origin
    }

    /// All nodes, in the graph's own order.
    pub fn nodes(&self) -> &[Node] {
        &self.parts.nodes
    }

    /// All storages.
    pub fn storages(&self) -> &[Storage] {
        &self.parts.storages
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.parts.nodes[id.index()]
    }

    /// One storage.
    pub fn storage(&self, id: StorageId) -> &Storage {
        &self.parts.storages[id.index()]
    }

    /// Storages that must be live at the end.
    pub fn outputs(&self) -> &[StorageId] {
        &self.parts.outputs
    }

    /// Nodes that must run at least once.
    pub fn targets(&self) -> &[NodeId] {
        &self.parts.targets
    }

    /// The node that writes a storage.
    pub fn writer(&self, id: StorageId) -> NodeId {
        self.writer[id.index()]
    }

    /// The nodes that read a storage, ascending.
    pub fn readers(&self, id: StorageId) -> &[NodeId] {
        &self.readers[id.index()]
    }

    /// The node that overwrites a storage in place, if any.
    pub fn updater(&self, id: StorageId) -> Option<NodeId> {
        self.updater[id.index()]
    }

    /// The ids of all nodes, in the graph's own order.
    pub fn node_ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + ExactSizeIterator + use<> {
        (0..self.parts.nodes.len()).map(NodeId::new)
    }

    /// The ids of all storages.
    pub fn storage_ids(
        &self,
    ) -> impl DoubleEndedIterator<Item = StorageId> + ExactSizeIterator + use<> {
        (0..self.parts.storages.len()).map(StorageId::new)
    }

    /// The storages that inputs write: what is there when the training step begins.
    pub fn sources(&self) -> impl Iterator<Item = StorageId> + '_ {
        let inputs = self.nodes().iter().filter(|n| n.phase == Phase::Input);
        inputs.flat_map(|node| node.writes.iter().copied())
    }

    /// The natural order: every node that runs, once, in the graph's own order.
    pub fn natural_order(&self) -> Vec<NodeId> {
        self.node_ids().filter(|&n| self.node(n).phase != Phase::Input).collect()
    }

    /// What a person calls a storage: its writer's name, and which output where there are several.
    pub fn storage_name(&self, id: StorageId) -> String {
        let writer = self.node(self.writer(id));
        match writer.writes.iter().position(|&w| w == id) {
            Some(0) | None => writer.name.clone(),
            Some(k) => format!("{}:{k}", writer.name),
        }
    }

    /// [`Graph::storage_name`] as it stands in a message.
    pub fn shown_storage_name(&self, id: StorageId) -> String {
        one_line(&self.storage_name(id))
    }

    /// Takes the graph apart, to build another from it.
    pub fn into_parts(self) -> GraphParts {
        self.parts
    }

    /// A copy in which node `n` takes `times[n]`.
    ///
    /// # Errors
    /// If there are not as many times as nodes, or one is negative or not finite.
    pub fn with_times(&self, times: &[Micros]) -> Result<Graph, GraphError> {
        if times.len() != self.parts.nodes.len() {
            return Err(GraphError::WrongCount {
                what: "times",
                expected: self.parts.nodes.len(),
                found: times.len(),
            });
        }
        let mut parts = self.parts.clone();
        for (node, &time) in parts.nodes.iter_mut().zip(times) {
            node.time = time;
        }
        Graph::new(parts)
    }
}

/// Keeps the first of each id, in order.
fn merge_repeats<T: Copy + Ord>(ids: &mut Vec<T>) {
    if ids.len() < 2 {
        return;
    }
    let mut seen = std::collections::BTreeSet::new();
    ids.retain(|&id| seen.insert(id));
}
