//! The symbolic replay: which value each storage holds, and whether every read sees the right one.

use rekindle_graph::{
    Effect, Graph, NodeId, Phase, Rate, Schedule, Step, StepId, StorageId, Store,
};

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
    schedule: &'g Schedule,
    /// In memory; indexed by storage.
    holds: Vec<Holds>,
    /// In the store; indexed by storage.
    copy: Vec<Holds>,
    runs: Vec<u32>,
    found: Vec<(StepId, Violation)>,
}

/// How often each node ran, the violations by step, and those of the start and of the end.
pub(crate) struct ReplayedValues {
    pub(crate) runs: Vec<u32>,
    pub(crate) at_start: Vec<Violation>,
    pub(crate) at_steps: Vec<(StepId, Violation)>,
    pub(crate) at_end: Vec<Violation>,
}

pub(crate) fn replay(graph: &Graph, schedule: &Schedule) -> ReplayedValues {
    let mut values = Values::new(graph, schedule);
    let at_start = values.start();
    for (i, &step) in schedule.steps.iter().enumerate() {
        let id = StepId::new(i);
        match step {
            Step::Run(node) => values.run(id, node),
            Step::Free(s) => values.touch(id, s, Values::free),
            Step::Offload(s) => values.touch(id, s, Values::offload),
            Step::Fetch(s) => values.touch(id, s, Values::fetch),
        }
    }
    let at_end = values.end();
    ReplayedValues { runs: values.runs, at_start, at_steps: values.found, at_end }
}

impl<'g> Values<'g> {
    fn new(graph: &'g Graph, schedule: &'g Schedule) -> Self {
        let mut holds = vec![Holds::Nothing; graph.storages().len()];
        for s in graph.sources() {
            holds[s.index()] = Holds::Made;
        }
        Values {
            graph,
            schedule,
            copy: vec![Holds::Nothing; holds.len()],
            holds,
            runs: vec![0; graph.nodes().len()],
            found: Vec::new(),
        }
    }

    /// What is stored at the start is in the store, and not in memory.
    fn start(&mut self) -> Vec<Violation> {
        let mut found = Vec::new();
        for &storage in &self.schedule.stored_at_start {
            let Some(block) = self.graph.storages().get(storage.index()) else {
                found.push(Violation::StoresUnknown { storage });
                continue;
            };
            let store = self.schedule.store.as_ref();
            if !store.map_or(block.role.may_be_stored(), |store| store.keeps(block.role)) {
                found.push(Violation::CannotBeStored {
                    storage,
                    name: self.graph.shown_storage_name(storage),
                    role: block.role,
                });
            }
            self.holds[storage.index()] = Holds::Nothing;
            self.copy[storage.index()] = Holds::Made;
        }
        found
    }

    /// The node that has overwritten a storage, if it has run.
    fn overwritten(&self, storage: StorageId) -> Option<NodeId> {
        let updater = self.graph.updater(storage);
        updater.filter(|u| self.runs[u.index()] > 0)
    }

    /// Whether the store has what the storage holds, or would hold.
    fn is_copied(&self, storage: StorageId) -> bool {
        match self.copy[storage.index()] {
            Holds::Nothing => false,
            Holds::Made => self.overwritten(storage).is_none(),
            Holds::Updated => true,
        }
    }

    fn run(&mut self, step: StepId, id: NodeId) {
        let graph = self.graph;
        let Some(node) = graph.nodes().get(id.index()) else {
            let node = id.0;
            self.found.push((step, Violation::UnknownNode { step, node }));
            return;
        };
        let name = || node.shown_name();
        if node.phase == Phase::Input {
            self.found.push((step, Violation::RunsInput { step, node: name() }));
            return;
        }
        if node.effect == Effect::Once && self.runs[id.index()] > 0 {
            self.found.push((step, Violation::RunsAgain { step, node: name() }));
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
        let node = || graph.node(reader).shown_name();
        let name = || graph.shown_storage_name(storage);
        // Once the updater has run, the plain step reads the storage no more: a reader that runs
        // afterwards is wrong even if the storage has been made anew in between.
        let overwritten = self.overwritten(storage).filter(|u| *u != reader);
        let violation = match (self.holds[storage.index()], overwritten) {
            (Holds::Nothing, _) => {
                Violation::ReadsDead { step, node: node(), storage, name: name() }
            }
            (_, Some(updater)) => Violation::ReadsUpdated {
                step,
                node: node(),
                storage,
                name: name(),
                updater: graph.node(updater).shown_name(),
            },
            _ => return,
        };
        self.found.push((step, violation));
    }

    /// Does a step with a storage if there is such a storage.
    fn touch(
        &mut self,
        step: StepId,
        storage: StorageId,
        act: fn(&mut Self, StepId, StorageId, String) -> Option<Violation>,
    ) {
        let violation = match storage.index() < self.holds.len() {
            true => act(self, step, storage, self.graph.shown_storage_name(storage)),
            false => Some(Violation::UnknownStorage { step, storage }),
        };
        self.found.extend(violation.map(|violation| (step, violation)));
    }

    fn free(&mut self, step: StepId, storage: StorageId, name: String) -> Option<Violation> {
        let is_persistent = self.graph.storage(storage).role.is_persistent();
        if is_persistent && !self.is_copied(storage) {
            return Some(Violation::FreesPersistent { step, storage, name });
        }
        match std::mem::replace(&mut self.holds[storage.index()], Holds::Nothing) {
            Holds::Nothing => Some(Violation::FreesDead { step, storage, name }),
            Holds::Made | Holds::Updated => None,
        }
    }

    fn offload(&mut self, step: StepId, storage: StorageId, name: String) -> Option<Violation> {
        if !self.has_channel(|store| store.out_rate) {
            return Some(Violation::NoChannel { step, storage, name });
        }
        let role = self.graph.storage(storage).role;
        if self.schedule.store.as_ref().is_some_and(|store| !store.takes(role)) {
            return Some(Violation::OffloadsPersistent { step, storage, name });
        }
        match self.holds[storage.index()] {
            Holds::Nothing => Some(Violation::OffloadsDead { step, storage, name }),
            held => {
                self.copy[storage.index()] = held;
                None
            }
        }
    }

    fn fetch(&mut self, step: StepId, storage: StorageId, name: String) -> Option<Violation> {
        if !self.has_channel(|store| store.in_rate) {
            return Some(Violation::NoChannel { step, storage, name });
        }
        if self.holds[storage.index()] != Holds::Nothing {
            return Some(Violation::FetchesLive { step, storage, name });
        }
        let copy = self.copy[storage.index()];
        // As if it were right, so that one fault is reported once.
        self.holds[storage.index()] = match copy {
            Holds::Nothing => Holds::Made,
            copy => copy,
        };
        match (copy, self.overwritten(storage)) {
            (Holds::Nothing, _) => Some(Violation::FetchesWithoutCopy { step, storage, name }),
            (Holds::Made, Some(updater)) => Some(Violation::FetchesStale {
                step,
                storage,
                name,
                updater: self.graph.node(updater).shown_name(),
            }),
            _ => None,
        }
    }

    fn has_channel(&self, rate: fn(&Store) -> Rate) -> bool {
        let store = self.schedule.store.as_ref();
        store.is_some_and(|store| rate(store).get() > 0.0)
    }

    fn end(&self) -> Vec<Violation> {
        let mut found = self.places_at_end();
        for &storage in self.graph.outputs() {
            if self.schedule.stored_at_start.contains(&storage) {
                continue;
            }
            let name = || self.graph.shown_storage_name(storage);
            let updater = self.graph.updater(storage);
            match (self.holds[storage.index()], updater) {
                (Holds::Nothing, _) => found.push(Violation::OutputDead { storage, name: name() }),
                // If the updater never ran, that is the fault to report.
                (Holds::Made, Some(u)) if self.runs[u.index()] > 0 => {
                    found.push(Violation::OutputStale {
                        storage,
                        name: name(),
                        updater: self.graph.node(u).shown_name(),
                    });
                }
                _ => {}
            }
        }
        let never = |id: &NodeId| self.runs[id.index()] == 0;
        let name = |id: NodeId| self.graph.node(id).shown_name();
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

    /// What is persistent is where it was at the start.
    fn places_at_end(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut is_stored = vec![false; self.holds.len()];
        let known = |s: &&StorageId| s.index() < self.holds.len();
        for &storage in self.schedule.stored_at_start.iter().filter(known) {
            let name = || self.graph.shown_storage_name(storage);
            is_stored[storage.index()] = true;
            if self.holds[storage.index()] != Holds::Nothing {
                let name = name();
                found.push(Violation::StoredInMemory { storage, name });
            }
            if !self.is_copied(storage) {
                let name = name();
                found.push(Violation::StoredStale { storage, name });
            }
        }
        let persistent = |s: &StorageId| self.graph.storage(*s).role.is_persistent();
        for storage in self.graph.sources().filter(persistent) {
            if !is_stored[storage.index()] && self.holds[storage.index()] == Holds::Nothing {
                let name = self.graph.shown_storage_name(storage);
                found.push(Violation::PersistentGone { storage, name });
            }
        }
        found
    }
}
