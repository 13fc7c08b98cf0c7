//! The symbolic replay: which value each storage holds, and whether every read sees the right one.

use rekindle_graph::{Effect, Graph, NodeId, Phase, Step, StepId, StorageId};

use crate::Violation;

/// What a storage holds.
#[derive(Clone, Copy, PartialEq)]
enum Holds {
    Nothing,
    /// What its writer made.
    Made,
    /// What its updater left.
    Updated,
}

struct Values<'g> {
    graph: &'g Graph,
    holds: Vec<Holds>,
    runs: Vec<u32>,
    found: Vec<(StepId, Violation)>,
}

/// How often each node ran, the violations by step, and those that show only at the end.
pub(crate) struct Replayed {
    pub(crate) runs: Vec<u32>,
    pub(crate) at_steps: Vec<(StepId, Violation)>,
    pub(crate) at_end: Vec<Violation>,
}

pub(crate) fn replay(graph: &Graph, steps: &[Step]) -> Replayed {
    let mut values = Values::new(graph);
    for (i, &step) in steps.iter().enumerate() {
        match step {
            Step::Run(node) => values.run(StepId::new(i), node),
            Step::Free(storage) => values.free(StepId::new(i), storage),
            Step::Offload(storage) | Step::Fetch(storage) => {
                let step = StepId::new(i);
                let transfer = Violation::Transfer { step, storage };
                values.found.push((step, transfer));
            }
        }
    }
    let at_end = values.end();
    Replayed {
        runs: values.runs,
        at_steps: values.found,
        at_end,
    }
}

impl<'g> Values<'g> {
    fn new(graph: &'g Graph) -> Self {
        let from_start = |s| graph.node(graph.writer(s)).phase == Phase::Input;
        let holds = graph.storage_ids().map(|s| match from_start(s) {
            true => Holds::Made,
            false => Holds::Nothing,
        });
        Values {
            graph,
            holds: holds.collect(),
            runs: vec![0; graph.nodes().len()],
            found: Vec::new(),
        }
    }

    fn run(&mut self, step: StepId, id: NodeId) {
        let graph = self.graph;
        let Some(node) = graph.nodes().get(id.index()) else {
            let node = id.0;
            self.found
                .push((step, Violation::UnknownNode { step, node }));
            return;
        };
        let name = || node.name.clone();
        if node.phase == Phase::Input {
            self.found
                .push((step, Violation::RunsInput { step, node: name() }));
            return;
        }
        if node.effect == Effect::Once && self.runs[id.index()] > 0 {
            self.found
                .push((step, Violation::RunsAgain { step, node: name() }));
        }
        for &storage in &node.reads {
            self.read(step, id, storage);
        }
        for &storage in &node.writes {
            // What is live already keeps its value: the second copy is dropped.
            if self.holds[storage.index()] == Holds::Nothing {
                self.holds[storage.index()] = Holds::Made;
            }
        }
        for &storage in &node.updates {
            self.holds[storage.index()] = Holds::Updated;
        }
        self.runs[id.index()] += 1;
    }

    fn read(&mut self, step: StepId, reader: NodeId, storage: StorageId) {
        let graph = self.graph;
        let node = || graph.node(reader).name.clone();
        let name = || graph.storage_name(storage);
        // Once the updater has run, the plain step reads the storage no more: a reader that runs
        // afterwards is wrong even if the storage has been made anew in between.
        let overwritten = graph
            .updater(storage)
            .filter(|u| self.runs[u.index()] > 0 && *u != reader);
        let violation = match (self.holds[storage.index()], overwritten) {
            (Holds::Nothing, _) => Violation::ReadsDead {
                step,
                node: node(),
                storage,
                name: name(),
            },
            (_, Some(updater)) => Violation::ReadsUpdated {
                step,
                node: node(),
                storage,
                name: name(),
                updater: graph.node(updater).name.clone(),
            },
            _ => return,
        };
        self.found.push((step, violation));
    }

    fn free(&mut self, step: StepId, storage: StorageId) {
        let Some(block) = self.graph.storages().get(storage.index()) else {
            self.found
                .push((step, Violation::UnknownStorage { step, storage }));
            return;
        };
        let name = || self.graph.storage_name(storage);
        if block.role.is_persistent() {
            self.found.push((
                step,
                Violation::FreesPersistent {
                    step,
                    storage,
                    name: name(),
                },
            ));
        } else if self.holds[storage.index()] == Holds::Nothing {
            self.found.push((
                step,
                Violation::FreesDead {
                    step,
                    storage,
                    name: name(),
                },
            ));
        } else {
            self.holds[storage.index()] = Holds::Nothing;
        }
    }

    fn end(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for &storage in self.graph.outputs() {
            let name = || self.graph.storage_name(storage);
            let updater = self.graph.updater(storage);
            match (self.holds[storage.index()], updater) {
                (Holds::Nothing, _) => found.push(Violation::OutputDead {
                    storage,
                    name: name(),
                }),
                // If the updater never ran, that is the fault to report.
                (Holds::Made, Some(u)) if self.runs[u.index()] > 0 => {
                    found.push(Violation::OutputStale {
                        storage,
                        name: name(),
                        updater: self.graph.node(u).name.clone(),
                    });
                }
                _ => {}
            }
        }
        let never = |id: &NodeId| self.runs[id.index()] == 0;
        let name = |id: NodeId| self.graph.node(id).name.clone();
        let targets = self.graph.targets();
        for id in targets.iter().copied().filter(never) {
            found.push(Violation::TargetNeverRan { node: name(id) });
        }
        for id in self.graph.node_ids().filter(never) {
            if !self.graph.node(id).updates.is_empty() && !targets.contains(&id) {
                found.push(Violation::UpdateNeverRan { node: name(id) });
            }
        }
        found
    }
}
