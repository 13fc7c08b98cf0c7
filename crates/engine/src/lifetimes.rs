//! Lifetimes: a schedule → the blocks that must be placed, and who uses which.
//!
//! Each run of a node makes a new *instance* of every storage that it writes, which lives until the
//! storage is freed; a storage that is recomputed has several, at different places. Scratch, and
//! the copy of an output that is still live, are instances that live for one step.

use rekindle_graph::{Graph, Phase, Step, StorageId};

use rekindle_program::Program;

use crate::placement::Block;

/// An index into [`Lifetimes::blocks`].
pub(crate) type Instance = usize;

/// What one step of the schedule touches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Touch {
    /// A run: its operands' instances in the node's own order, and its scratch.
    Run {
        reads: Vec<Instance>,
        writes: Vec<Instance>,
        scratch: Option<Instance>,
        dropped: Vec<Instance>,
    },
    /// The instance that is given back.
    Free(Instance),
}

/// The lifetimes of a schedule.
pub(crate) struct Lifetimes {
    pub(crate) blocks: Vec<Block>,
    /// As long as the schedule.
    pub(crate) touches: Vec<Touch>,
    /// Instances that are live from the start, with their storages.
    pub(crate) start: Vec<(StorageId, Instance)>,
    /// Where each storage is after the last step, if anywhere; indexed by storage.
    pub(crate) end: Vec<Option<Instance>>,
}

impl Lifetimes {
    /// The lifetimes of `steps`, which have been replayed on `program`'s `graph` without error.
    pub(crate) fn new(program: &Program, graph: &Graph, steps: &[Step]) -> Lifetimes {
        let mut this = Lifetimes {
            blocks: Vec::new(),
            touches: Vec::with_capacity(steps.len()),
            start: Vec::new(),
            end: vec![None; graph.storages().len()],
        };
        for node in graph.nodes().iter().filter(|n| n.phase == Phase::Input) {
            for &w in &node.writes {
                let instance = this.begin(graph.storage(w).bytes.get(), 0);
                this.end[w.index()] = Some(instance);
                this.start.push((w, instance));
            }
        }
        for (at, &step) in steps.iter().enumerate() {
            let touch = this.touch(program, graph, at as u32, step);
            this.touches.push(touch);
        }
        this
    }

    fn begin(&mut self, bytes: u64, start: u32) -> Instance {
        self.blocks.push(Block {
            bytes,
            start,
            end: u32::MAX,
        });
        self.blocks.len() - 1
    }

    fn for_one_step(&mut self, bytes: u64, at: u32) -> Instance {
        self.blocks.push(Block {
            bytes,
            start: at,
            end: at + 1,
        });
        self.blocks.len() - 1
    }

    fn touch(&mut self, program: &Program, graph: &Graph, at: u32, step: Step) -> Touch {
        let live = "the schedule has been replayed";
        match step {
            Step::Free(s) => {
                let instance = self.end[s.index()].take().expect(live);
                self.blocks[instance].end = at;
                Touch::Free(instance)
            }
            Step::Offload(_) | Step::Fetch(_) => unreachable!("the engine has no store"),
            Step::Run(n) => {
                let node = graph.node(n);
                // The program's operands, where one tensor may stand twice; the graph merges those.
                let reads = program
                    .node(n)
                    .reads
                    .iter()
                    .map(|r| self.end[r.index()].expect(live))
                    .collect();
                let mut dropped = Vec::new();
                let mut writes = Vec::with_capacity(node.writes.len());
                for &w in &node.writes {
                    let bytes = graph.storage(w).bytes.get();
                    if self.end[w.index()].is_some() {
                        let copy = self.for_one_step(bytes, at);
                        dropped.push(copy);
                        writes.push(copy);
                    } else {
                        let instance = self.begin(bytes, at);
                        self.end[w.index()] = Some(instance);
                        writes.push(instance);
                    }
                }
                let workspace = node.workspace.get();
                let scratch = (workspace > 0).then(|| self.for_one_step(workspace, at));
                Touch::Run {
                    reads,
                    writes,
                    scratch,
                    dropped,
                }
            }
        }
    }
}
