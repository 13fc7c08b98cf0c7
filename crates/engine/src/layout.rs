//! Layout: a program and the graph that runs → an address for everything, without any memory.
//!
//! The graph is the program's own ([`Layout::plain`]) or a rewritten one, each of whose nodes
//! stands for a node of the program or moves one of its tensors, and each of whose storages is a
//! copy of one of its tensors, in memory or, as a token without bytes, in the store. Nothing is
//! written twice in it, so one storage is one block of the arena: it lives from the run that writes
//! it until it is freed after its last use. Scratch is a block that lives for one run. A persistent
//! tensor that leaves in the middle of the step comes back to the place that it left, where the
//! next step finds it: one block with a gap.
//!
//! Invariant: every run does what its origin in the program does, on tensors of the same size, and
//! blocks that are live at the same time do not overlap.

use rekindle_graph::{Bytes, Graph, NodeId, Origins, Schedule, Step, StorageId, Transfer, replay};
use rekindle_program::{ALIGN, Program};

use crate::EngineError;
use crate::arena::Span;
use crate::dispatch::workspace;
use crate::moves::{Direction, Moves, PAGE, Walk, is_token};
use crate::placement::{Block, Placement, place, place_around};

/// The planner's view of `program` as this engine runs it with `threads` threads.
pub fn lower(program: &Program, threads: usize) -> Graph {
    program.graph(|op| workspace(op, threads))
}

/// Bytes at the peak of a training step, as predicted before it or as measured in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The largest sum of live bytes.
    pub live: Bytes,
    /// The end of the highest address in use: live bytes plus what fragmentation costs.
    pub arena: Bytes,
}

/// One thing to do, with its addresses. Each `after` names the moves that must have ended: a range
/// of [`Moves::waits`].
#[derive(Clone, Debug)]
pub(crate) enum Instruction {
    /// Compute a node of the graph. The ranges are of [`Layout::spans`].
    Run { node: NodeId, reads: [u32; 2], writes: [u32; 2], scratch: Span, after: [u32; 2] },
    /// Let a transfer begin, by its number.
    Move(u32),
    /// Stand still.
    Wait { node: NodeId, after: [u32; 2] },
    /// Give the bytes of a storage back.
    Free { span: Span, after: [u32; 2] },
}

/// Where a tensor is between training steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    Arena(Span),
    /// At this offset of the store.
    Store(u64),
}

/// A training step with an address for everything: what can be known without any memory.
#[derive(Clone, Debug)]
pub struct Layout {
    pub(crate) program: Program,
    pub(crate) graph: Graph,
    /// The step, on the program's own graph, that each node of the graph is.
    origins: Vec<Step>,
    /// The tensor of the program that each storage of the graph is a copy of.
    tensors: Vec<StorageId>,
    threads: usize,
    spans: Vec<Span>,
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) moves: Moves,
    /// Where each tensor of the program is between training steps, if anywhere.
    pub(crate) between: Vec<Option<Home>>,
    /// The end of the highest storage that is there from the start, and the sum of them all.
    pub(crate) resident: Peak,
    predicted: Peak,
    /// How large the arena is made: at least what is predicted.
    pub(crate) room: Bytes,
    /// The sources that a step beside another one must be given, since that one does not keep them.
    pub(crate) own_sources: Vec<StorageId>,
}

impl Layout {
    /// Places the plain step: every node of the program once, in the program's own order.
    pub fn plain(program: &Program, threads: usize) -> Layout {
        let graph = lower(program, threads);
        let nodes: Vec<Step> = graph.node_ids().map(Step::Run).collect();
        let storages: Vec<StorageId> = graph.storage_ids().collect();
        let origins = Origins { nodes: &nodes, storages: &storages };
        let placed = Layout::new(program, graph, origins, threads);
        placed.expect("a lowered program stands for itself")
    }

    /// Places a rewritten step.
    ///
    /// # Errors
    /// If a node does not do what its origin in the program does with that many threads.
    pub fn new(
        program: &Program,
        graph: Graph,
        origins: Origins<'_>,
        threads: usize,
    ) -> Result<Layout, EngineError> {
        Layout::placed(program, graph, origins, threads, |_, blocks| Ok(place(&blocks.all)))
    }

    /// Places a step as `place` does with its blocks.
    fn placed(
        program: &Program,
        graph: Graph,
        origins: Origins<'_>,
        threads: usize,
        place: impl FnOnce(&Graph, &Blocks) -> Result<Placement, EngineError>,
    ) -> Result<Layout, EngineError> {
        let operands = operands(program, &graph, origins, threads)?;
        let schedule = Schedule::plain(&graph);
        let (blocks, live) = Blocks::new(&graph, &schedule, &homes(program, &graph, origins));
        let placement = place(&graph, &blocks)?;
        let span = |block: usize| Span {
            offset: placement.offsets[block] as usize,
            bytes: blocks.all[block].bytes as usize,
        };
        let span_of = |s: StorageId| span(blocks.of_storage[s.index()]);
        let mut spans = Vec::new();
        let mut range = |storages: &[StorageId]| {
            let from = spans.len() as u32;
            spans.extend(storages.iter().map(|&s| span_of(s)));
            [from, spans.len() as u32]
        };
        let mut walk = Walk::new(program, &graph, &schedule, origins.storages);
        let instruction = |step| match step {
            Step::Free(s) => Instruction::Free { span: span_of(s), after: walk.release(s) },
            Step::Run(node) => match graph.node(node).transfer() {
                _ if matches!(origins.nodes[node.index()], Step::Run(_)) => Instruction::Run {
                    node,
                    reads: range(&operands[node.index()]),
                    writes: range(&graph.node(node).writes),
                    scratch: blocks.scratch[node.index()].map_or(Span::default(), span),
                    after: walk.run(node),
                },
                Some(Transfer::Offload) => {
                    let from = graph.node(node).reads[0];
                    Instruction::Move(walk.transfer(node, Direction::Out, from, span_of(from)))
                }
                Some(Transfer::Fetch) => {
                    let to = graph.node(node).writes[0];
                    Instruction::Move(walk.transfer(node, Direction::In, to, span_of(to)))
                }
                Some(Transfer::Wait) | None => {
                    let after = walk.release(graph.node(node).reads[0]);
                    Instruction::Wait { node, after }
                }
            },
            Step::Offload(_) | Step::Fetch(_) => unreachable!("an order of runs moves nothing"),
        };
        let instructions = schedule.steps.into_iter().map(instruction).collect();
        let moves = walk.finish();
        let mut between = vec![None; program.tensors.len()];
        let persistent = graph.storage_ids();
        let persistent = persistent.filter(|&s| graph.storage(s).role.is_persistent());
        for storage in persistent.chain(graph.outputs().iter().copied()) {
            let tensor = origins.storages[storage.index()].index();
            between[tensor] = match is_token(&graph, storage) {
                true => moves.slots[tensor].map(Home::Store),
                false => Some(Home::Arena(span_of(storage))),
            };
        }
        if let Some(lost) = lost(program, &between) {
            return Err(EngineError::OtherProgram { node: lost, program: program.name.clone() });
        }
        let start: Vec<Span> = graph.sources().map(span_of).collect();
        Ok(Layout {
            resident: Peak {
                live: Bytes(start.iter().map(|s| s.bytes as u64).sum()),
                arena: Bytes(start.iter().map(|s| s.end() as u64).max().unwrap_or(0)),
            },
            predicted: Peak { live, arena: placement.size },
            room: placement.size,
            own_sources: Vec::new(),
            program: program.clone(),
            origins: origins.nodes.to_vec(),
            tensors: origins.storages.to_vec(),
            graph,
            threads,
            spans,
            instructions,
            moves,
            between,
        })
    }

    /// Places the plain step of another program, such as the one that evaluates a model, in
    /// the memory of this one between its runs: what is persistent here keeps its place, and
    /// what is persistent in both, by name, is shared.
    ///
    /// # Errors
    /// If the other program has a parameter that is not here, or one that is in a store.
    pub fn beside(&self, program: &Program) -> Result<Layout, EngineError> {
        let graph = lower(program, self.threads);
        let nodes: Vec<Step> = graph.node_ids().map(Step::Run).collect();
        let storages: Vec<StorageId> = graph.storage_ids().collect();
        let origins = Origins { nodes: &nodes, storages: &storages };
        let mut own_sources = Vec::new();
        let place = |graph: &Graph, blocks: &Blocks| {
            let mut fixed = vec![None; blocks.all.len()];
            for source in graph.sources() {
                match self.shared_span(program, source)? {
                    Some(span) => {
                        fixed[blocks.of_storage[source.index()]] = Some(span.offset as u64)
                    }
                    None => own_sources.push(source),
                }
            }
            Ok(place_around(&blocks.all, &fixed, &self.persistent_ranges()))
        };
        let mut layout = Layout::placed(program, graph, origins, self.threads, place)?;
        layout.own_sources = own_sources;
        Ok(layout)
    }

    /// Where this step keeps what is `source` in another program; nothing if it has no such tensor.
    fn shared_span(&self, other: &Program, source: StorageId) -> Result<Option<Span>, EngineError> {
        let theirs = other.tensor(source);
        let tensors = self.program.tensors.iter().zip(&self.between);
        let mut same = tensors.filter(|(ours, _)| ours.role.is_persistent());
        let found = same.find(|(ours, _)| ours.name == theirs.name);
        match found {
            Some((ours, Some(Home::Arena(span))))
                if ours.shape == theirs.shape && ours.dtype == theirs.dtype =>
            {
                Ok(Some(*span))
            }
            None if theirs.role != rekindle_graph::Role::Parameter => Ok(None),
            _ => Err(EngineError::NotBeside {
                name: theirs.name.clone(),
                program: self.program.name.clone(),
            }),
        }
    }

    /// Offset and end of everything that is there between two runs.
    fn persistent_ranges(&self) -> Vec<[u64; 2]> {
        let tensors = self.program.tensors.iter().zip(&self.between);
        let kept = tensors.filter_map(|(tensor, home)| match home {
            Some(Home::Arena(span)) if tensor.role.is_persistent() => {
                Some([span.offset as u64, span.end() as u64])
            }
            _ => None,
        });
        kept.collect()
    }

    /// The same with an arena of at least `room`, for what runs beside it.
    #[must_use]
    pub fn with_room(mut self, room: Bytes) -> Layout {
        self.room = self.room.max(room);
        self
    }

    /// How large its arena is made: what is predicted, or the room that was asked for.
    pub fn room(&self) -> Bytes {
        self.room
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The graph that runs; of the plain step, the planner's view of the program.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The step, on the program's own graph, that a node of the graph is.
    pub fn origin(&self, node: NodeId) -> Step {
        self.origins[node.index()]
    }

    /// The node of the program that a node of the graph is a run of; `None` for transfers.
    pub fn run_of(&self, node: NodeId) -> Option<NodeId> {
        match self.origin(node) {
            Step::Run(origin) => Some(origin),
            Step::Free(_) | Step::Offload(_) | Step::Fetch(_) => None,
        }
    }

    /// The tensor of the program that a storage of the graph is a copy of.
    pub fn tensor_of(&self, storage: StorageId) -> StorageId {
        self.tensors[storage.index()]
    }

    /// How many bytes its store must hold; zero if it moves nothing.
    pub fn store_bytes(&self) -> Bytes {
        self.moves.store_bytes
    }

    /// How many threads run a kernel.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The peak that every training step will have.
    pub fn predicted(&self) -> Peak {
        self.predicted
    }

    /// A range of spans, as an instruction has it.
    pub(crate) fn range(&self, [from, to]: [u32; 2]) -> &[Span] {
        &self.spans[from as usize..to as usize]
    }
}

/// What each node of the graph reads, in the order in which its origin's op wants it. There one
/// tensor may stand twice; the graph merges those.
///
/// # Errors
/// If a node does not do what its origin does, on copies of the same tensors.
fn operands(
    program: &Program,
    graph: &Graph,
    origins: Origins<'_>,
    threads: usize,
) -> Result<Vec<Vec<StorageId>>, EngineError> {
    let origin = |s: StorageId| origins.storages.get(s.index()).copied();
    let is_copy = |s: StorageId, tensor: StorageId| {
        let bytes = program.tensor(tensor).bytes();
        origin(s) == Some(tensor) && graph.storage(s).bytes == bytes
    };
    // What an input writes that is in the store.
    let is_stored = |s: StorageId, tensor: StorageId| {
        let from_start = graph.node(graph.writer(s)).phase == rekindle_graph::Phase::Input;
        origin(s) == Some(tensor) && from_start && is_token(graph, s)
    };
    let run = |id: NodeId, ours: NodeId| {
        let (node, ours) = (graph.node(id), program.nodes.get(ours.index())?);
        let mut writes = node.writes.iter().zip(&ours.writes);
        let alike = node.op == ours.op.name()
            && node.workspace == workspace(&ours.op, threads)
            && node.writes.len() == ours.writes.len()
            && writes.all(|(&s, &tensor)| is_copy(s, tensor) || is_stored(s, tensor));
        let copy_of = |&tensor: &StorageId| {
            let mut reads = node.reads.iter().copied();
            reads.find(|&s| is_copy(s, tensor))
        };
        ours.reads.iter().map(copy_of).collect::<Option<Vec<_>>>().filter(|_| alike)
    };
    let transfer = |id: NodeId, transfer: Transfer, tensor: StorageId| {
        let node = graph.node(id);
        let is_token = |s: StorageId| origin(s) == Some(tensor) && is_token(graph, s);
        let known = tensor.index() < program.tensors.len();
        let wired = known
            && match (transfer, &node.reads[..], &node.writes[..]) {
                (Transfer::Offload, &[from], &[to]) => is_copy(from, tensor) && is_token(to),
                (Transfer::Fetch, &[from], &[to]) => is_token(from) && is_copy(to, tensor),
                (Transfer::Wait, &[held, ..], &[]) => is_copy(held, tensor),
                _ => false,
            };
        (wired && node.transfer() == Some(transfer)).then(Vec::new)
    };
    let nodes = graph.node_ids().map(|id| {
        let operands = match origins.nodes.get(id.index()) {
            Some(&Step::Run(ours)) => run(id, ours),
            Some(&Step::Offload(tensor)) => transfer(id, Transfer::Offload, tensor),
            Some(&Step::Fetch(tensor)) => transfer(id, Transfer::Fetch, tensor),
            Some(&Step::Free(tensor)) => transfer(id, Transfer::Wait, tensor),
            None => None,
        };
        operands.ok_or_else(|| EngineError::OtherProgram {
            node: graph.node(id).name.clone(),
            program: program.name.clone(),
        })
    });
    nodes.collect()
}

/// For each storage that is persistent at the end, the one that was at its place at the start.
fn homes(program: &Program, graph: &Graph, origins: Origins<'_>) -> Vec<Option<StorageId>> {
    let mut at_start = vec![None; program.tensors.len()];
    for s in graph.sources().filter(|&s| !is_token(graph, s)) {
        at_start[origins.storages[s.index()].index()] = Some(s);
    }
    let home = |s: StorageId| {
        let is_persistent = graph.storage(s).role.is_persistent();
        let first = at_start[origins.storages[s.index()].index()];
        first.filter(|&first| is_persistent && first != s)
    };
    graph.storage_ids().map(home).collect()
}

/// The first tensor that the next training step would not find.
fn lost(program: &Program, between: &[Option<Home>]) -> Option<String> {
    let tensors = program.tensors.iter().zip(&program.init).zip(between);
    let mut lost = tensors.filter(|((tensor, init), home)| {
        init.is_some() && tensor.role.is_persistent() && home.is_none()
    });
    lost.next().map(|((tensor, _), _)| tensor.name.clone())
}

/// The blocks that must be placed, in the order in which they come into being.
struct Blocks {
    all: Vec<Block>,
    /// The block of each storage.
    of_storage: Vec<usize>,
    /// The block of each node's scratch, if it has any.
    scratch: Vec<Option<usize>>,
}

impl Blocks {
    /// The blocks of a schedule that can be replayed, and its peak of live bytes.
    fn new(graph: &Graph, schedule: &Schedule, homes: &[Option<StorageId>]) -> (Blocks, Bytes) {
        let mut this = Blocks {
            all: Vec::new(),
            of_storage: vec![usize::MAX; graph.storages().len()],
            scratch: vec![None; graph.nodes().len()],
        };
        let is_moved = moved(graph);
        let begin = |this: &mut Blocks, s: StorageId, at: u32| match homes[s.index()] {
            Some(home) => this.come_back(s, home, at),
            None => this.begin(graph, s, is_moved[s.index()], at),
        };
        graph.sources().for_each(|s| begin(&mut this, s, 0));
        let replayed = replay(graph, schedule, |moment| {
            let at = moment.id.0;
            moment.claimed.iter().for_each(|&s| begin(&mut this, s, at));
            match moment.step {
                Step::Run(id) if moment.scratch > Bytes::ZERO => {
                    this.scratch[id.index()] = Some(this.all.len());
                    this.all.push(Block::new(moment.scratch.get(), ALIGN, at, at + 1));
                }
                Step::Free(s) => this.all[this.of_storage[s.index()]].end = at,
                Step::Run(_) | Step::Offload(_) | Step::Fetch(_) => {}
            }
        });
        let replayed = replayed.expect("a checked graph's own order can be replayed");
        (this, replayed.peak)
    }

    /// A storage comes into being; it stays until it is freed.
    fn begin(&mut self, graph: &Graph, storage: StorageId, is_moved: bool, start: u32) {
        self.of_storage[storage.index()] = self.all.len();
        let bytes = graph.storage(storage).bytes.get();
        let align = if is_moved { PAGE } else { ALIGN };
        self.all.push(Block::new(bytes, align, start, u32::MAX));
    }

    /// A storage comes back to the place of `home`, and stays there.
    fn come_back(&mut self, storage: StorageId, home: StorageId, at: u32) {
        let index = self.of_storage[home.index()];
        self.of_storage[storage.index()] = index;
        let block = &mut self.all[index];
        block.gap = Some([block.end.min(at), at]);
        block.end = u32::MAX;
    }
}

/// Whether each storage is copied to the store or from it.
fn moved(graph: &Graph) -> Vec<bool> {
    let mut moved = vec![false; graph.storages().len()];
    for node in graph.nodes() {
        let storage = match node.transfer() {
            Some(Transfer::Offload) => node.reads.first(),
            Some(Transfer::Fetch) => node.writes.first(),
            Some(Transfer::Wait) | None => None,
        };
        if let Some(storage) = storage {
            moved[storage.index()] = true;
        }
    }
    moved
}
