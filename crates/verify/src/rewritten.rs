//! The check of a rewritten graph against the graph and the plan that it was made from.
//!
//! Method, by induction over the runs: the i-th run of the rewritten graph stands for the node of
//! the plan's i-th run and is like it; each of its reads is a copy of what that node reads; a copy
//! is written once, by a run that stands for the original's writer. So every copy holds what the
//! original holds in the plain step, and every run computes what the plain step computes.
//!
//! Roles say what outlives the step, so they decide what may be freed. The first copy of a storage
//! has the original's role. A later copy has it too, unless that is persistent: then the first copy
//! is still there, and the later one must go, as `other`.

use rekindle_graph::{Bytes, Graph, Node, NodeId, Origins, Phase, Plan, Role, Storage, StorageId};

use crate::{Audit, Violation, Violations, verify};

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
    let check = Check { graph, rewritten, origins };
    match check.origins() {
        Err(violation) => found.push(violation),
        Ok(()) => {
            check.runs(plan, &mut found);
            check.nodes(&mut found);
            check.sizes(&mut found);
            check.roles(&mut found);
            check.ends(&mut found);
            check.peak(plan, &mut found);
        }
    }
    match audit {
        Some(audit) if found.is_empty() => Ok(audit),
        _ => Err(Violations(found)),
    }
}

struct Check<'a> {
    graph: &'a Graph,
    rewritten: &'a Graph,
    origins: Origins<'a>,
}

impl Check<'_> {
    fn node_origin(&self, id: NodeId) -> NodeId {
        self.origins.nodes[id.index()]
    }

    fn storage_origin(&self, id: StorageId) -> StorageId {
        self.origins.storages[id.index()]
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
        let mut nodes = self.rewritten.nodes().iter().zip(self.origins.nodes);
        if let Some((node, _)) = nodes.find(|(_, o)| o.index() >= self.graph.nodes().len()) {
            let node = node.name.clone();
            return Err(Violation::NoOrigin { node });
        }
        let mut storages = self.rewritten.storage_ids();
        let known = self.graph.storages().len();
        match storages.find(|s| self.storage_origin(*s).index() >= known) {
            Some(storage) => Err(Violation::NoStorageOrigin { storage }),
            None => Ok(()),
        }
    }

    /// The runs are the plan's runs, one by one; the inputs are the graph's inputs.
    fn runs(&self, plan: &Plan, found: &mut Vec<Violation>) {
        let runs = |graph: &Graph| graph.natural_order();
        let expected: Vec<NodeId> = plan.schedule.runs().collect();
        let actual = runs(self.rewritten);
        if actual.len() != expected.len() {
            found.push(Violation::RunCount { runs: actual.len(), expected: expected.len() });
        }
        let name = |id: NodeId| match self.graph.nodes().get(id.index()) {
            Some(node) => node.name.clone(),
            None => id.to_string(),
        };
        for (run, (&id, &expected)) in actual.iter().zip(&expected).enumerate() {
            if self.node_origin(id) != expected {
                found.push(Violation::WrongRun {
                    run,
                    expected: name(expected),
                    found: self.rewritten.node(id).name.clone(),
                });
            }
        }
        let inputs = |graph: &Graph| {
            let ids = graph.node_ids();
            let is_input = |id: &NodeId| graph.node(*id).phase == Phase::Input;
            ids.filter(is_input).collect::<Vec<_>>()
        };
        let kept = inputs(self.rewritten);
        if !kept.iter().map(|&id| self.node_origin(id)).eq(inputs(self.graph)) {
            found.push(Violation::ListChanged { what: "inputs" });
        }
    }

    /// Each node does the work of its origin, on copies of the same storages.
    fn nodes(&self, found: &mut Vec<Violation>) {
        for (id, node) in self.rewritten.node_ids().zip(self.rewritten.nodes()) {
            let origin = self.graph.node(self.node_origin(id));
            if let Some(what) = difference(node, origin) {
                found.push(Violation::NodeChanged {
                    node: node.name.clone(),
                    origin: origin.name.clone(),
                    what,
                });
                continue;
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
                            node: node.name.clone(),
                            origin: origin.name.clone(),
                            how,
                            storage,
                            expected,
                        });
                    }
                }
            }
        }
    }

    fn sizes(&self, found: &mut Vec<Violation>) {
        for storage in self.rewritten.storage_ids() {
            let origin = self.storage_origin(storage);
            if self.rewritten.storage(storage).bytes != self.graph.storage(origin).bytes {
                found.push(Violation::SizeChanged { storage, origin });
            }
        }
    }

    /// What outlives the step is what outlives it in the graph, once; the peak relies on it.
    fn roles(&self, found: &mut Vec<Violation>) {
        let mut is_copied = vec![false; self.graph.storages().len()];
        for &storage in self.rewritten.nodes().iter().flat_map(|n| &n.writes) {
            let origin = self.storage_origin(storage);
            let is_first = !std::mem::replace(&mut is_copied[origin.index()], true);
            let expected = match self.graph.storage(origin).role {
                role if role.is_persistent() && !is_first => Role::Other,
                role => role,
            };
            let role = self.rewritten.storage(storage).role;
            if role != expected {
                found.push(Violation::RoleChanged { storage, origin, expected, found: role });
            }
        }
    }

    /// Outputs and targets are those of the graph, and what outlives the step holds its updates.
    fn ends(&self, found: &mut Vec<Violation>) {
        let outputs = self.rewritten.outputs();
        let originals = outputs.iter().map(|&s| self.storage_origin(s));
        if !originals.eq(self.graph.outputs().iter().copied()) {
            found.push(Violation::ListChanged { what: "outputs" });
        }
        let targets = self.rewritten.targets().iter();
        let targets = targets.map(|&t| self.node_origin(t));
        if !targets.eq(self.graph.targets().iter().copied()) {
            found.push(Violation::ListChanged { what: "targets" });
        }
        let mut stays: Vec<bool> = self.rewritten.storages().iter().map(persists).collect();
        outputs.iter().for_each(|s| stays[s.index()] = true);
        for storage in self.rewritten.storage_ids().filter(|s| stays[s.index()]) {
            if let Some(updater) = self.graph.updater(self.storage_origin(storage))
                && self.rewritten.updater(storage).is_none()
            {
                found.push(Violation::CopyStale {
                    storage,
                    updater: self.graph.node(updater).name.clone(),
                });
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

fn persists(storage: &Storage) -> bool {
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
