//! A step that fits in a limit because what is idle is swapped out: Algorithm A of μ-TWO.
//!
//! In: a program, its graph and a limit in bytes. Out: a [`Swapped`] program, in which tensors
//! leave the arena (`offload`) and come back (`fetch`) as ordinary nodes, so that lifetimes,
//! placement and predicted peak need no rule of their own.
//!
//! Method: one walk along the natural order. Every activation is offloaded right after its last
//! forward use and fetched right before its first backward use. Where the limit is still exceeded,
//! the resident tensor whose next use is farthest away leaves too (Belady's rule), and comes back
//! before that use. What has been offloaded once is still in its slot, so it leaves a second time
//! without a copy.
//!
//! Invariant: at every node the persistent tensors, what the node needs and what else is resident
//! are within the limit. Limits: the limit bounds live bytes; what fragmentation adds is not seen
//! here.

use std::collections::BTreeSet;

use rekindle_analysis::Analysis;
use rekindle_graph::{Bytes, Graph, NodeId, StorageId};
use rekindle_program::op::{Fetch, Offload, Op, Transfer};
use rekindle_program::{Node, Program, Tensor};

use crate::ProfileError;

/// What a node of the swapped program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapNode {
    /// What this node of the plain program does.
    Node(NodeId),
    /// Copies this tensor of the plain program to the spill tier.
    Offload(StorageId),
    /// Copies this tensor of the plain program back.
    Fetch(StorageId),
}

/// A program that swaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Swapped {
    /// The program. The tensors of the plain program have the ids that they have there; those that
    /// come back follow.
    pub program: Program,
    /// What each of its nodes does; indexed by its nodes.
    pub origins: Vec<SwapNode>,
}

/// Lets `program`, whose graph is `graph`, swap so that its live bytes stay within `limit`.
///
/// # Errors
/// [`ProfileError::NodeDoesNotFit`] names the node that needs most if a node alone needs more.
pub fn swap(program: &Program, graph: &Graph, limit: Bytes) -> Result<Swapped, ProfileError> {
    let persistent = persistent_bytes(graph);
    check_every_node(graph, persistent, limit)?;
    let mut idle_after = vec![Vec::new(); graph.nodes().len()];
    for a in Analysis::new(graph).activations {
        idle_after[a.idle_after().index()].push(a.storage);
    }
    let mut walk = Walk::new(program, graph, persistent, limit);
    for id in graph.node_ids() {
        walk.run(id);
        for &storage in &idle_after[id.index()] {
            walk.evict(storage, id);
        }
    }
    Ok(walk.finish())
}

fn persistent_bytes(graph: &Graph) -> Bytes {
    let storages = graph.storages().iter();
    storages.filter(|s| s.role.is_persistent()).map(|s| s.bytes).sum()
}

/// What must be there while a node runs: the persistent storages, its operands, its scratch.
fn check_every_node(graph: &Graph, persistent: Bytes, limit: Bytes) -> Result<(), ProfileError> {
    let needed = |id: NodeId| {
        let node = graph.node(id);
        let operands = node.reads.iter().chain(&node.writes).map(|&s| graph.storage(s));
        let passing = operands.filter(|s| !s.role.is_persistent()).map(|s| s.bytes);
        persistent + passing.sum() + node.workspace
    };
    let order = graph.natural_order();
    match order.into_iter().max_by_key(|&id| (needed(id), std::cmp::Reverse(id))) {
        Some(id) if needed(id) > limit => Err(ProfileError::NodeDoesNotFit {
            node: graph.node(id).name.clone(),
            needed: needed(id),
            persistent,
            limit,
        }),
        _ => Ok(()),
    }
}

struct Walk<'a> {
    plain: &'a Program,
    graph: &'a Graph,
    limit: Bytes,
    /// The program as it grows.
    program: Program,
    origins: Vec<SwapNode>,
    /// The tensor that holds each storage, if it is resident; indexed by storage of the plain
    /// program.
    place: Vec<Option<StorageId>>,
    /// Where each storage is in the spill tier, if it ever was; indexed like `place`.
    slots: Vec<Option<usize>>,
    slot_count: usize,
    /// Resident storages that are not persistent.
    resident: BTreeSet<StorageId>,
    live: Bytes,
    is_output: Vec<bool>,
}

impl<'a> Walk<'a> {
    fn new(plain: &'a Program, graph: &'a Graph, persistent: Bytes, limit: Bytes) -> Walk<'a> {
        let mut is_output = vec![false; graph.storages().len()];
        for s in graph.outputs() {
            is_output[s.index()] = true;
        }
        Walk {
            plain,
            graph,
            limit,
            program: Program { nodes: Vec::new(), ..plain.clone() },
            origins: Vec::new(),
            place: graph.storage_ids().map(Some).collect(),
            slots: vec![None; graph.storages().len()],
            slot_count: 0,
            resident: BTreeSet::new(),
            live: persistent,
            is_output,
        }
    }

    /// Makes room, brings back what the node reads, and runs it.
    fn run(&mut self, id: NodeId) {
        let node = self.graph.node(id);
        let away = |s: &&StorageId| self.place[s.index()].is_none();
        let back: Vec<StorageId> = node.reads.iter().filter(away).copied().collect();
        let made = node.writes.iter().copied().filter(|&w| !self.is_persistent(w));
        let made: Vec<StorageId> = made.collect();
        let incoming = self.bytes(&back) + self.bytes(&made) + node.workspace;
        self.make_room(incoming, id);
        for storage in back {
            self.fetch(storage);
        }
        let mut copy = self.plain.node(id).clone();
        for read in &mut copy.reads {
            *read = self.place[read.index()].expect("it is there or was fetched");
        }
        self.program.nodes.push(copy);
        self.origins.push(SwapNode::Node(id));
        self.live += self.bytes(&made);
        self.resident.extend(made);
        self.free_dead(id);
    }

    /// Lets the resident storages whose next use is farthest leave until `incoming` bytes fit.
    fn make_room(&mut self, incoming: Bytes, at: NodeId) {
        while self.live + incoming > self.limit {
            let reads = &self.graph.node(at).reads;
            let mut idle = self.resident.iter().filter(|s| !reads.contains(s));
            let first = idle.next().expect("a node alone fits");
            // An output without a further use is needed at the very end.
            let next_use = |&s: &StorageId| self.next_use(s, at).unwrap_or(NodeId(u32::MAX));
            let farthest =
                idle.fold(*first, |best, &s| if next_use(&s) > next_use(&best) { s } else { best });
            self.evict(farthest, at);
        }
    }

    /// Lets a storage leave after `at` has run, or while room is made for it.
    fn evict(&mut self, storage: StorageId, at: NodeId) {
        if !self.resident.remove(&storage) {
            return;
        }
        self.live -= self.bytes(&[storage]);
        let tensor = self.place[storage.index()].take().expect("it is resident");
        let needed_again = self.next_use(storage, at).is_some() || self.is_output[storage.index()];
        if needed_again && self.slots[storage.index()].is_none() {
            self.slots[storage.index()] = Some(self.slot_count);
            self.slot_count += 1;
            let op = Offload(self.transfer(storage)).into();
            self.push_transfer(op, SwapNode::Offload(storage), vec![tensor], vec![]);
        }
    }

    fn fetch(&mut self, storage: StorageId) {
        let tensor = self.plain.tensor(storage);
        let id = StorageId::new(self.program.tensors.len());
        self.program
            .tensors
            .push(Tensor { name: format!("{}@{}", tensor.name, id.0), ..tensor.clone() });
        self.program.init.push(None);
        let op = Fetch(self.transfer(storage)).into();
        self.push_transfer(op, SwapNode::Fetch(storage), vec![], vec![id]);
        self.place[storage.index()] = Some(id);
        self.resident.insert(storage);
        self.live += self.bytes(&[storage]);
    }

    fn transfer(&self, storage: StorageId) -> Transfer {
        Transfer {
            slot: self.slots[storage.index()].expect("it was offloaded"),
            bytes: self.plain.tensor(storage).bytes().get() as usize,
        }
    }

    fn push_transfer(
        &mut self,
        op: Op,
        origin: SwapNode,
        reads: Vec<StorageId>,
        writes: Vec<StorageId>,
    ) {
        let (verb, storage) = match origin {
            SwapNode::Offload(s) => ("offload", s),
            SwapNode::Fetch(s) => ("fetch", s),
            SwapNode::Node(_) => unreachable!("a node is no transfer"),
        };
        // Several fetches of one tensor are told apart by their place.
        let at = self.program.nodes.len();
        self.program.nodes.push(Node {
            name: format!("{verb} {}@{at}", self.plain.tensor(storage).name),
            op,
            phase: self.graph.node(self.graph.writer(storage)).phase,
            reads,
            writes,
        });
        self.origins.push(origin);
    }

    /// What nobody needs after `at` is gone; the frees themselves follow from the order of the
    /// nodes.
    fn free_dead(&mut self, at: NodeId) {
        let node = self.graph.node(at);
        for &s in node.reads.iter().chain(&node.writes) {
            let needed = self.next_use(s, at).is_some() || self.is_output[s.index()];
            if !needed && self.resident.remove(&s) {
                self.place[s.index()] = None;
                self.live -= self.bytes(&[s]);
            }
        }
    }

    fn finish(mut self) -> Swapped {
        let outputs = self.graph.outputs().to_vec();
        for &storage in &outputs {
            if self.place[storage.index()].is_none() {
                self.fetch(storage);
            }
        }
        let place = |s: &StorageId| self.place[s.index()].expect("outputs are there");
        self.program.outputs = outputs.iter().map(place).collect();
        Swapped { program: self.program, origins: self.origins }
    }

    /// The first reader after `at`.
    fn next_use(&self, storage: StorageId, at: NodeId) -> Option<NodeId> {
        let readers = self.graph.readers(storage);
        readers.get(readers.partition_point(|&r| r <= at)).copied()
    }

    fn is_persistent(&self, storage: StorageId) -> bool {
        self.graph.storage(storage).role.is_persistent()
    }

    fn bytes(&self, storages: &[StorageId]) -> Bytes {
        storages.iter().map(|&s| self.graph.storage(s).bytes).sum()
    }
}
