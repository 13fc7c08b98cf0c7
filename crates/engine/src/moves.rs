//! Moves: the transfers of a graph → a place in the store for each tensor that leaves the arena,
//! and what must wait for which transfer.
//!
//! Every tensor has one slot of the store, from its first offload to its last fetch, or for good if
//! it lives there; slots are placed like the blocks of an arena. Moves are numbered in the order in
//! which compute comes to them.
//!
//! Invariants. A move begins after the move before it of the same tensor has ended, and, if it is
//! the first to use its slot, after the last move of whoever had that room before. A run begins
//! after what it reads has arrived, and after what it updates in place has been copied. Room in the
//! arena is given back after the storage's own moves have ended. So no two parties ever use the
//! same bytes at the same time, of the arena or of the store, unless both only read.

use rekindle_graph::{Bytes, Graph, NodeId, Schedule, Step, StorageId, Transfer};
use rekindle_program::Program;

use crate::arena::Span;
use crate::placement::{Block, place};

/// Whatever is moved begins at a multiple of this many bytes, in the arena and in the store: what
/// direct input and output asks for.
pub(crate) const PAGE: u64 = 4096;

/// Which way a tensor is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the arena to the store.
    Out,
    /// From the store to the arena.
    In,
}

impl Direction {
    /// What is done to the store, for messages.
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Direction::Out => "write to",
            Direction::In => "read from",
        }
    }
}

/// One transfer between the arena and the store.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    /// The node that asks for it.
    pub(crate) node: NodeId,
    pub(crate) direction: Direction,
    /// Where it is in the arena.
    pub(crate) span: Span,
    /// Where it is in the store.
    pub(crate) slot: u64,
    /// The moves that must have ended: a range of [`Moves::waits`].
    pub(crate) after: [u32; 2],
}

/// All transfers of a training step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moves {
    pub(crate) all: Vec<Move>,
    /// Lists of moves that somebody waits for.
    pub(crate) waits: Vec<u32>,
    /// Where each tensor of the program is in the store, if it ever is.
    pub(crate) slots: Vec<Option<u64>>,
    /// How many bytes the store must hold.
    pub(crate) store_bytes: Bytes,
}

impl Moves {
    /// The moves that `range` names.
    pub(crate) fn waits(&self, [from, to]: [u32; 2]) -> &[u32] {
        &self.waits[from as usize..to as usize]
    }
}

/// Walks a schedule, and says of each step what it waits for.
pub(crate) struct Walk<'a> {
    graph: &'a Graph,
    origins: &'a [StorageId],
    slots: Vec<Option<Block>>,
    moves: Moves,
    /// The last move of each tensor of the program.
    last: Vec<Option<u32>>,
    /// The move that brought each storage of the graph.
    fetched: Vec<Option<u32>>,
    /// The last move that copied each storage of the graph.
    offloaded: Vec<Option<u32>>,
}

impl<'a> Walk<'a> {
    /// `origins` names the tensor of the program that each storage of the graph is a copy of.
    pub(crate) fn new(
        program: &Program,
        graph: &'a Graph,
        schedule: &Schedule,
        origins: &'a [StorageId],
    ) -> Walk<'a> {
        let slots = slots(program, graph, schedule, origins);
        let blocks: Vec<Block> = slots.iter().flatten().copied().collect();
        let placement = place(&blocks);
        let mut offsets = placement.offsets.into_iter();
        let mut offset = |slot: &Option<Block>| slot.as_ref().and_then(|_| offsets.next());
        let moves = Moves {
            slots: slots.iter().map(&mut offset).collect(),
            store_bytes: placement.size,
            ..Moves::default()
        };
        let count = graph.storages().len();
        Walk {
            graph,
            origins,
            slots,
            moves,
            last: vec![None; program.tensors.len()],
            fetched: vec![None; count],
            offloaded: vec![None; count],
        }
    }

    /// What a run waits for: the arrival of what it reads, and the copies of what it updates.
    pub(crate) fn run(&mut self, node: NodeId) -> [u32; 2] {
        let node = self.graph.node(node);
        let arrivals = node.reads.iter().map(|r| self.fetched[r.index()]);
        let copies = node.updates.iter().map(|u| self.offloaded[u.index()]);
        let list: Vec<u32> = arrivals.chain(copies).flatten().collect();
        self.list(&list)
    }

    /// What giving the bytes of a storage back waits for: its own moves.
    pub(crate) fn release(&mut self, storage: StorageId) -> [u32; 2] {
        let moves = [self.fetched[storage.index()], self.offloaded[storage.index()]];
        let list: Vec<u32> = moves.into_iter().flatten().collect();
        self.list(&list)
    }

    /// A transfer of `storage`, which is at `span`. Gives its number.
    pub(crate) fn transfer(
        &mut self,
        node: NodeId,
        direction: Direction,
        storage: StorageId,
        span: Span,
    ) -> u32 {
        let tensor = self.origins[storage.index()].index();
        let before = match self.last[tensor] {
            Some(last) => vec![last],
            None => self.had_the_room(tensor),
        };
        let number = self.moves.all.len() as u32;
        let after = self.list(&before);
        let slot = self.moves.slots[tensor].expect("what is moved has a slot");
        self.moves.all.push(Move { node, direction, span, slot, after });
        self.last[tensor] = Some(number);
        match direction {
            Direction::Out => self.offloaded[storage.index()] = Some(number),
            Direction::In => self.fetched[storage.index()] = Some(number),
        }
        number
    }

    /// The last moves of the tensors whose room in the store `tensor` takes over.
    fn had_the_room(&self, tensor: usize) -> Vec<u32> {
        let range = |t: usize| {
            let (block, offset) = (self.slots[t]?, self.moves.slots[t]?);
            Some((offset, offset + block.bytes))
        };
        let Some((from, to)) = range(tensor) else { return Vec::new() };
        let others = (0..self.slots.len()).filter(|&t| t != tensor);
        let met = others.filter(|&t| range(t).is_some_and(|(a, b)| a < to && from < b));
        met.filter_map(|t| self.last[t]).collect()
    }

    fn list(&mut self, moves: &[u32]) -> [u32; 2] {
        let from = self.moves.waits.len() as u32;
        self.moves.waits.extend_from_slice(moves);
        [from, self.moves.waits.len() as u32]
    }

    pub(crate) fn finish(self) -> Moves {
        self.moves
    }
}

/// Whether a storage is a copy in the store: an offload writes it, or it is there from the start
/// and takes no bytes of the arena.
pub(crate) fn is_token(graph: &Graph, storage: StorageId) -> bool {
    let writer = graph.node(graph.writer(storage));
    writer.transfer() == Some(Transfer::Offload)
        || writer.transfer().is_none() && graph.storage(storage).bytes == Bytes::ZERO
}

/// For how long, in steps of the schedule, each tensor is in the store.
fn slots(
    program: &Program,
    graph: &Graph,
    schedule: &Schedule,
    origins: &[StorageId],
) -> Vec<Option<Block>> {
    let mut slots: Vec<Option<Block>> = vec![None; program.tensors.len()];
    let slot = |tensor: StorageId, start: u32, end: u32| {
        let bytes = program.tensor(tensor).bytes().get();
        Block::new(bytes.next_multiple_of(PAGE), PAGE, start, end)
    };
    for source in graph.sources().filter(|&s| is_token(graph, s)) {
        let tensor = origins[source.index()];
        slots[tensor.index()] = Some(slot(tensor, 0, u32::MAX));
    }
    for (at, step) in (0..).zip(&schedule.steps) {
        let Step::Run(id) = *step else { continue };
        let node = graph.node(id);
        let storage = match node.transfer() {
            Some(Transfer::Offload) => node.reads[0],
            Some(Transfer::Fetch) => node.writes[0],
            Some(Transfer::Wait) | None => continue,
        };
        let tensor = origins[storage.index()];
        let block = slots[tensor.index()].get_or_insert_with(|| slot(tensor, at, at));
        block.end = block.end.max(at + 1);
    }
    slots
}
