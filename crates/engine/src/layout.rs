//! Layout: a program and the graph that runs → an address for everything, without any memory.
//!
//! The graph is the program's own ([`Layout::plain`]) or a rewritten one, each of whose nodes
//! stands for a node of the program and each of whose storages is a copy of one of its tensors.
//! Nothing is written twice in it, so one storage is one block of the arena: it lives from the run
//! that writes it until it is freed after its last use. Scratch is a block that lives for one run.
//!
//! Invariant: every run does what its origin in the program does, on tensors of the same size, and
//! blocks that are live at the same time do not overlap.

use rekindle_graph::{Bytes, Graph, NodeId, Origins, Schedule, Step, StorageId, replay};
use rekindle_program::Program;

use crate::EngineError;
use crate::arena::Span;
use crate::dispatch::workspace;
use crate::placement::{Block, place};

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

/// One thing to do, with its addresses.
#[derive(Clone, Debug)]
pub(crate) enum Instruction {
    /// Compute a node of the graph. The ranges are of [`Layout::spans`].
    Run { node: NodeId, reads: [u32; 2], writes: [u32; 2], scratch: Span },
    /// Give the bytes of a storage back.
    Free(Span),
}

/// A training step with an address for everything: what can be known without any memory.
#[derive(Clone, Debug)]
pub struct Layout {
    pub(crate) program: Program,
    pub(crate) graph: Graph,
    /// The node of the program that each node of the graph stands for.
    origins: Vec<NodeId>,
    threads: usize,
    spans: Vec<Span>,
    pub(crate) instructions: Vec<Instruction>,
    /// Where each tensor of the program is between training steps, if anywhere.
    pub(crate) between: Vec<Option<Span>>,
    /// The end of the highest storage that is there from the start, and the sum of them all.
    pub(crate) resident: Peak,
    predicted: Peak,
}

impl Layout {
    /// Places the plain step: every node of the program once, in the program's own order.
    pub fn plain(program: &Program, threads: usize) -> Layout {
        let graph = lower(program, threads);
        let nodes: Vec<NodeId> = graph.node_ids().collect();
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
        let operands = operands(program, &graph, origins, threads)?;
        let schedule = Schedule::plain(&graph);
        let (blocks, live) = Blocks::new(&graph, &schedule);
        let placement = place(&blocks.all);
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
        let instruction = |step| match step {
            Step::Free(storage) => Instruction::Free(span_of(storage)),
            Step::Run(node) => Instruction::Run {
                node,
                reads: range(&operands[node.index()]),
                writes: range(&graph.node(node).writes),
                scratch: blocks.scratch[node.index()].map_or(Span::default(), span),
            },
            Step::Offload(_) | Step::Fetch(_) => unreachable!("an order of runs moves nothing"),
        };
        let instructions = schedule.steps.into_iter().map(instruction).collect();
        let mut between = vec![None; program.tensors.len()];
        let persistent = graph.storage_ids();
        let persistent = persistent.filter(|&s| graph.storage(s).role.is_persistent());
        for storage in persistent.chain(graph.outputs().iter().copied()) {
            between[origins.storages[storage.index()].index()] = Some(span_of(storage));
        }
        let start: Vec<Span> = graph.sources().map(span_of).collect();
        Ok(Layout {
            resident: Peak {
                live: Bytes(start.iter().map(|s| s.bytes as u64).sum()),
                arena: Bytes(start.iter().map(|s| s.end() as u64).max().unwrap_or(0)),
            },
            predicted: Peak { live, arena: placement.size },
            program: program.clone(),
            origins: origins.nodes.to_vec(),
            graph,
            threads,
            spans,
            instructions,
            between,
        })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The graph that runs; of the plain step, the planner's view of the program.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The node of the program that a node of the graph stands for.
    pub fn origin(&self, node: NodeId) -> NodeId {
        self.origins[node.index()]
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
    let operands_of = |id: NodeId| {
        let node = graph.node(id);
        let ours = program.nodes.get(origins.nodes.get(id.index())?.index())?;
        let mut writes = node.writes.iter().zip(&ours.writes);
        let alike = node.op == ours.op.name()
            && node.workspace == workspace(&ours.op, threads)
            && node.writes.len() == ours.writes.len()
            && writes.all(|(&s, &tensor)| is_copy(s, tensor));
        let copy_of = |&tensor: &StorageId| {
            let mut reads = node.reads.iter().copied();
            reads.find(|&s| is_copy(s, tensor))
        };
        ours.reads.iter().map(copy_of).collect::<Option<Vec<_>>>().filter(|_| alike)
    };
    let nodes = graph.node_ids().map(|id| {
        operands_of(id).ok_or_else(|| EngineError::OtherProgram {
            node: graph.node(id).name.clone(),
            program: program.name.clone(),
        })
    });
    nodes.collect()
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
    fn new(graph: &Graph, schedule: &Schedule) -> (Blocks, Bytes) {
        let mut this = Blocks {
            all: Vec::new(),
            of_storage: vec![usize::MAX; graph.storages().len()],
            scratch: vec![None; graph.nodes().len()],
        };
        graph.sources().for_each(|s| this.begin(graph, s, 0));
        let replayed = replay(graph, schedule, |moment| {
            let at = moment.id.0;
            moment.claimed.iter().for_each(|&s| this.begin(graph, s, at));
            match moment.step {
                Step::Run(id) if moment.scratch > Bytes::ZERO => {
                    this.scratch[id.index()] = Some(this.all.len());
                    this.all.push(Block { bytes: moment.scratch.get(), start: at, end: at + 1 });
                }
                Step::Free(s) => this.all[this.of_storage[s.index()]].end = at,
                Step::Run(_) | Step::Offload(_) | Step::Fetch(_) => {}
            }
        });
        let replayed = replayed.expect("a checked graph's own order can be replayed");
        (this, replayed.peak)
    }

    /// A storage comes into being; it stays until it is freed.
    fn begin(&mut self, graph: &Graph, storage: StorageId, start: u32) {
        self.of_storage[storage.index()] = self.all.len();
        self.all.push(Block { bytes: graph.storage(storage).bytes.get(), start, end: u32::MAX });
    }
}
