//! The check of a rewritten graph against the graph and the plan that it was made from.
//!
//! Method, by induction over the nodes: the i-th run or transfer of the rewritten graph is the
//! plan's i-th run or transfer and is like it; each read of a run is a copy, in memory, of what its
//! origin reads. A copy holds what the original's writer made, until the original's updater runs on
//! it; a transfer hands on what it finds. So every run reads what the plain step reads there, and
//! computes what the plain step computes. `versions.rs` has that half.
//!
//! Roles say what outlives the step, so they decide what may be freed. The copy of a persistent
//! storage that the plan leaves in memory has the original's role; all others must go, as `other`.
//! A copy in the store is a token of no bytes; what the plan leaves in the store is a token among
//! the outputs. What is being moved is held by a `wait` until it has been: whoever frees after last
//! use frees nothing under a transfer.

use rekindle_graph::{
    Bytes, Effect, Graph, Micros, Node, NodeId, Origins, Phase, Plan, Role, Schedule, Step,
    Storage, StorageId, Transfer,
};

use crate::{Audit, Violation, Violations, verify, versions};

/// Checks `plan` against `graph`, and `rewritten` against both.
///
/// # Errors
/// Every violation of the plan, then those of the rewritten graph.
pub fn verify_rewritten(
    graph: &Graph,
    plan: &Plan,
    rewritten: &Graph,
    origins: Origins<'_>,
) -> Result<Audit, Violations> {
    let (audit, mut found) = match verify(graph, plan) {
        Ok(audit) => (Some(audit), Vec::new()),
        Err(Violations(found)) => (None, found),
    };
    let lives_there = lives_there(graph, &plan.schedule);
    let mut check = Check { graph, rewritten, origins, lives_there, is_token: Vec::new() };
    match check.origins() {
        Err(violation) => found.push(violation),
        Ok(()) => {
            check.is_token = check.tokens();
            check.runs(plan, &mut found);
            check.nodes(&mut found);
            check.sizes(&mut found);
            check.roles(&plan.schedule, &mut found);
            versions::check(&check, &mut found);
            check.ends(&mut found);
            check.frees(&mut found);
            check.peak(plan, &mut found);
        }
    }
    match audit {
        Some(audit) if found.is_empty() => Ok(audit),
        _ => Err(Violations(found)),
    }
}

pub(crate) struct Check<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) rewritten: &'a Graph,
    pub(crate) origins: Origins<'a>,
    /// Whether each storage of the graph is in the store between training steps.
    lives_there: Vec<bool>,
    /// Whether each storage of the rewritten graph is a copy in the store.
    is_token: Vec<bool>,
}

fn lives_there(graph: &Graph, schedule: &Schedule) -> Vec<bool> {
    let mut lives_there = vec![false; graph.storages().len()];
    for s in &schedule.stored_at_start {
        if let Some(lives_there) = lives_there.get_mut(s.index()) {
            *lives_there = true;
        }
    }
    lives_there
}

impl Check<'_> {
    /// What a node is a run of, if it is one.
    fn run_of(&self, id: NodeId) -> Option<NodeId> {
        match self.origins.nodes[id.index()] {
            Step::Run(node) => Some(node),
            Step::Free(_) | Step::Offload(_) | Step::Fetch(_) => None,
        }
    }

    pub(crate) fn storage_origin(&self, id: StorageId) -> StorageId {
        self.origins.storages[id.index()]
    }

    pub(crate) fn is_token(&self, id: StorageId) -> bool {
        self.is_token[id.index()]
    }

    /// The nodes that are no inputs, in order.
    pub(crate) fn order(&self) -> Vec<NodeId> {
        self.rewritten.natural_order()
    }

    /// Everything has an origin that exists; the other checks rely on it.
    fn origins(&self) -> Result<(), Violation> {
        let count = |what, expected, found| match expected == found {
            true => Ok(()),
            false => Err(Violation::OriginCount { what, expected, found }),
        };
        count("nodes", self.rewritten.nodes().len(), self.origins.nodes.len())?;
        let storages = self.rewritten.storages().len();
        count("storages", storages, self.origins.storages.len())?;
        let (nodes, known) = (self.graph.nodes().len(), self.graph.storages().len());
        let exists = |step: &Step| match *step {
            Step::Run(node) => node.index() < nodes,
            Step::Free(s) | Step::Offload(s) | Step::Fetch(s) => s.index() < known,
        };
        let mut all = self.rewritten.nodes().iter().zip(self.origins.nodes);
        if let Some((node, _)) = all.find(|(_, origin)| !exists(origin)) {
            let node = node.shown_name();
            return Err(Violation::NoOrigin { node });
        }
        let mut storages = self.rewritten.storage_ids();
        match storages.find(|s| self.storage_origin(*s).index() >= known) {
            Some(storage) => Err(Violation::NoStorageOrigin { storage }),
            None => Ok(()),
        }
    }

    /// What an offload writes, and what an input writes that lives in the store.
    fn tokens(&self) -> Vec<bool> {
        let is_token = |s: StorageId| {
            let writer = self.rewritten.writer(s);
            match self.origins.nodes[writer.index()] {
                Step::Offload(_) => true,
                Step::Run(_) => {
                    let from_start = self.rewritten.node(writer).phase == Phase::Input;
                    from_start && self.lives_there[self.storage_origin(s).index()]
                }
                Step::Free(_) | Step::Fetch(_) => false,
            }
        };
        self.rewritten.storage_ids().map(is_token).collect()
    }

    /// Runs and transfers are the plan's, one by one; the inputs are the graph's inputs.
    fn runs(&self, plan: &Plan, found: &mut Vec<Violation>) {
        let is_free = |step: &Step| matches!(step, Step::Free(_));
        let expected: Vec<Step> =
            plan.schedule.steps.iter().copied().filter(|s| !is_free(s)).collect();
        let mut actual = self.order();
        actual.retain(|id| !is_free(&self.origins.nodes[id.index()]));
        if actual.len() != expected.len() {
            found.push(Violation::RunCount { runs: actual.len(), expected: expected.len() });
        }
        for (run, (&id, &expected)) in actual.iter().zip(&expected).enumerate() {
            if self.origins.nodes[id.index()] != expected {
                found.push(Violation::WrongRun {
                    run,
                    expected: self.step_name(expected),
                    found: self.rewritten.node(id).shown_name(),
                });
            }
        }
        let inputs = |graph: &Graph| {
            let ids = graph.node_ids();
            let is_input = |id: &NodeId| graph.node(*id).phase == Phase::Input;
            ids.filter(is_input).collect::<Vec<_>>()
        };
        let kept = inputs(self.rewritten);
        if !kept.iter().map(|&id| self.run_of(id)).eq(inputs(self.graph).into_iter().map(Some)) {
            found.push(Violation::ListChanged { what: "inputs" });
        }
    }

    fn step_name(&self, step: Step) -> String {
        let storage = |s: StorageId| match s.index() < self.graph.storages().len() {
            true => self.graph.shown_storage_name(s),
            false => s.to_string(),
        };
        match step {
            Step::Run(id) => match self.graph.nodes().get(id.index()) {
                Some(node) => node.shown_name(),
                None => id.to_string(),
            },
            Step::Free(s) => format!("wait {}", storage(s)),
            Step::Offload(s) => format!("offload {}", storage(s)),
            Step::Fetch(s) => format!("fetch {}", storage(s)),
        }
    }

    /// Each node does the work of its origin, on copies of the same storages.
    fn nodes(&self, found: &mut Vec<Violation>) {
        for (id, node) in self.rewritten.node_ids().zip(self.rewritten.nodes()) {
            match self.origins.nodes[id.index()] {
                Step::Run(origin) => self.run(node, self.graph.node(origin), found),
                Step::Offload(s) => self.transfer(node, Transfer::Offload, s, found),
                Step::Fetch(s) => self.transfer(node, Transfer::Fetch, s, found),
                Step::Free(s) => self.transfer(node, Transfer::Wait, s, found),
            }
        }
    }

    fn run(&self, node: &Node, origin: &Node, found: &mut Vec<Violation>) {
        if let Some(what) = difference(node, origin) {
            let (node, origin) = (node.shown_name(), origin.shown_name());
            found.push(Violation::NodeChanged { node, origin, what });
            return;
        }
        let wires = [
            ("reads", &node.reads, &origin.reads),
            ("writes", &node.writes, &origin.writes),
            ("updates", &node.updates, &origin.updates),
        ];
        for (how, copies, originals) in wires {
            for (&storage, &expected) in copies.iter().zip(originals) {
                if self.storage_origin(storage) != expected {
                    found.push(Violation::WrongWire {
                        node: node.shown_name(),
                        origin: origin.shown_name(),
                        how,
                        storage,
                        expected,
                    });
                }
            }
        }
        if let Some(&storage) = node.reads.iter().find(|&&s| self.is_token(s)) {
            found.push(Violation::ReadsStored { node: node.shown_name(), storage });
        }
    }

    /// A transfer reads and writes copies of its storage, in memory and in the store, and does
    /// nothing else.
    fn transfer(&self, node: &Node, transfer: Transfer, s: StorageId, found: &mut Vec<Violation>) {
        let is_copy = |id: &StorageId| self.storage_origin(*id) == s && !self.is_token(*id);
        let is_token = |id: &StorageId| self.storage_origin(*id) == s && self.is_token(*id);
        let name = || node.shown_name();
        let bare = node.op == transfer.op()
            && node.effect == Effect::Once
            && node.time == Micros::ZERO
            && node.workspace == Bytes::ZERO
            && node.updates.is_empty();
        let wired = match (transfer, &node.reads[..], &node.writes[..]) {
            (Transfer::Offload, [from], [to]) => is_copy(from) && is_token(to),
            (Transfer::Fetch, [from], [to]) if is_token(from) => is_copy(to),
            (Transfer::Fetch, ..) => {
                found.push(Violation::FetchesNoCopy { node: name(), storage: s });
                return;
            }
            (Transfer::Wait, [held], []) => is_copy(held),
            (Transfer::Wait, [held, token], []) => is_copy(held) && is_token(token),
            _ => false,
        };
        if !bare || !wired {
            found.push(Violation::BadTransfer { node: name(), storage: s });
        }
    }

    fn sizes(&self, found: &mut Vec<Violation>) {
        for storage in self.rewritten.storage_ids() {
            let origin = self.storage_origin(storage);
            let expected = match self.is_token(storage) {
                true => Bytes::ZERO,
                false => self.graph.storage(origin).bytes,
            };
            if self.rewritten.storage(storage).bytes != expected {
                found.push(Violation::SizeChanged { storage, origin });
            }
        }
    }

    /// What outlives the step in memory is what the plan leaves there, once; the peak relies on it.
    fn roles(&self, schedule: &Schedule, found: &mut Vec<Violation>) {
        let stays = self.copies_that_stay(schedule);
        let mut made = vec![0; self.graph.storages().len()];
        let copies = self.rewritten.nodes().iter().flat_map(|n| &n.writes);
        for &storage in copies {
            let origin = self.storage_origin(storage);
            let number = made[origin.index()];
            let expected = match self.graph.storage(origin).role {
                _ if self.is_token(storage) => Role::Other,
                role if role.is_persistent() && stays[origin.index()] != Some(number) => {
                    Role::Other
                }
                role => role,
            };
            made[origin.index()] += usize::from(!self.is_token(storage));
            let role = self.rewritten.storage(storage).role;
            if role != expected {
                found.push(Violation::RoleChanged { storage, origin, expected, found: role });
            }
        }
    }

    /// Which of the copies of each storage that come into memory is there at the end: what is there
    /// from the start comes first, then what each run and each fetch makes.
    fn copies_that_stay(&self, schedule: &Schedule) -> Vec<Option<usize>> {
        let count = self.graph.storages().len();
        let (mut made, mut live) = (vec![0; count], vec![None; count]);
        let mut make = |live: &mut Vec<Option<usize>>, s: StorageId| {
            live[s.index()] = live[s.index()].or(Some(made[s.index()]));
            made[s.index()] += 1;
        };
        for s in self.graph.sources().filter(|s| !self.lives_there[s.index()]) {
            make(&mut live, s);
        }
        for step in &schedule.steps {
            match *step {
                Step::Run(id) => {
                    let node = self.graph.nodes().get(id.index());
                    for &s in node.map_or(&[][..], |node| &node.writes) {
                        make(&mut live, s);
                    }
                }
                Step::Fetch(s) if s.index() < count => make(&mut live, s),
                Step::Free(s) if s.index() < count => live[s.index()] = None,
                Step::Free(_) | Step::Fetch(_) | Step::Offload(_) => {}
            }
        }
        live
    }

    /// Outputs and targets are those of the graph, and what lives in the store is there.
    fn ends(&self, found: &mut Vec<Violation>) {
        let outputs = self.rewritten.outputs();
        let (own, stored) = outputs.split_at(self.graph.outputs().len().min(outputs.len()));
        let originals = own.iter().map(|&s| self.storage_origin(s));
        let lives_there = |s: StorageId| self.lives_there[self.storage_origin(s).index()];
        // What lives in the store is there, and everything else is in memory.
        let mut misplaced = outputs.iter().filter(|&&s| self.is_token(s) != lives_there(s));
        if !originals.eq(self.graph.outputs().iter().copied())
            || misplaced.next().is_some()
            || stored.iter().any(|&s| !lives_there(s))
        {
            found.push(Violation::ListChanged { what: "outputs" });
        }
        let mut is_stored = vec![false; self.graph.storages().len()];
        for &s in outputs.iter().filter(|&&s| self.is_token(s)) {
            is_stored[self.storage_origin(s).index()] = true;
        }
        for storage in self.graph.storage_ids() {
            if self.lives_there[storage.index()] && !is_stored[storage.index()] {
                found.push(Violation::NotStored { storage });
            }
        }
        let targets = self.rewritten.targets().iter().map(|&t| self.run_of(t));
        if !targets.eq(self.graph.targets().iter().copied().map(Some)) {
            found.push(Violation::ListChanged { what: "targets" });
        }
    }

    /// What is being moved is held until it has been: its last use is a wait for it.
    fn frees(&self, found: &mut Vec<Violation>) {
        let mut stays: Vec<bool> = self.rewritten.storages().iter().map(persists).collect();
        self.rewritten.outputs().iter().for_each(|s| stays[s.index()] = true);
        let moved = |s: &StorageId| !stays[s.index()] && !self.is_token(*s);
        for storage in self.rewritten.storage_ids().filter(moved) {
            let origin_of = |id: NodeId| self.origins.nodes[id.index()];
            let readers = self.rewritten.readers(storage);
            let offload = readers.iter().rfind(|&&r| matches!(origin_of(r), Step::Offload(_)));
            let token = offload.and_then(|&o| self.rewritten.node(o).writes.first());
            let fetched = matches!(origin_of(self.rewritten.writer(storage)), Step::Fetch(_));
            let last = readers.last().copied();
            let waits = last.is_some_and(|r| matches!(origin_of(r), Step::Free(_)));
            let held = match (token, last) {
                (Some(token), Some(last)) => {
                    waits && self.rewritten.node(last).reads.contains(token)
                }
                // Whoever reads it waits for its arrival.
                _ => !fetched || last.is_some(),
            };
            if !held {
                found.push(Violation::FreedUnderTransfer { storage });
            }
        }
    }

    fn peak(&self, plan: &Plan, found: &mut Vec<Violation>) {
        let peak = peak_freeing_after_last_use(self.rewritten);
        if peak > plan.peak {
            found.push(Violation::RewrittenPeak { promised: plan.peak, found: peak });
        }
    }
}

pub(crate) fn persists(storage: &Storage) -> bool {
    storage.role.is_persistent()
}

/// What differs between a node and the one that it stands for, beside names and wires.
fn difference(node: &Node, origin: &Node) -> Option<&'static str> {
    let counts = |n: &Node| (n.reads.len(), n.writes.len(), n.updates.len());
    let differences = [
        ("operation", node.op != origin.op),
        ("time", node.time != origin.time),
        ("scratch", node.workspace != origin.workspace),
        ("effect", node.effect != origin.effect),
        ("number of storages", counts(node) != counts(origin)),
    ];
    let mut found = differences.into_iter().filter(|&(_, differs)| differs);
    found.next().map(|(what, _)| what)
}

/// The peak of the graph's own order under an executor that frees after last use, and at once what
/// has no use.
fn peak_freeing_after_last_use(graph: &Graph) -> Bytes {
    let size = |s: &StorageId| graph.storage(*s).bytes;
    let order = graph.natural_order();
    let mut last_use = vec![None; graph.storages().len()];
    for (at, &id) in order.iter().enumerate() {
        let node = graph.node(id);
        for s in node.reads.iter().chain(&node.writes) {
            last_use[s.index()] = Some(at);
        }
    }
    let stay = graph.storage_ids().filter(|&s| persists(graph.storage(s)));
    for s in stay.chain(graph.outputs().iter().copied()) {
        last_use[s.index()] = Some(usize::MAX);
    }
    let inputs = graph.nodes().iter().filter(|n| n.phase == Phase::Input);
    let inputs = inputs.flat_map(|n| &n.writes);
    let mut now: Bytes = inputs.clone().map(size).sum();
    let mut peak = now;
    now -= inputs.filter(|s| last_use[s.index()].is_none()).map(size).sum();
    for (at, &id) in order.iter().enumerate() {
        let node = graph.node(id);
        now += node.writes.iter().map(size).sum();
        peak = peak.max(now + node.workspace);
        for s in node.reads.iter().chain(&node.writes) {
            if last_use[s.index()] == Some(at) {
                now -= size(s);
            }
        }
    }
    peak
}
