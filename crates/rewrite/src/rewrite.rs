//! The walk along the plan that gives every run a node and every copy a storage.

use std::collections::{BTreeMap, BTreeSet};

use rekindle_graph::{
    Bytes, Effect, Graph, GraphError, GraphParts, Node, NodeId, Origins, Phase, Plan, Role,
    ScheduleError, Step, Storage, StorageId, Timeline, Transfer, WrongGraph,
};

use crate::Extraction;
use crate::extract::extractions;

/// A plan as an ordinary graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Rewritten {
    /// Its own order is the plan's order of runs and transfers, after the inputs.
    pub graph: Graph,
    /// The step that each node of `graph` is, on the graph that was rewritten; an input is a run of
    /// itself, and a `wait` is a free.
    pub node_origin: Vec<Step>,
    /// The storage that each storage of `graph` is a copy of, in memory or as a token.
    pub storage_origin: Vec<StorageId>,
    /// Whether each node of `graph` is a recomputation.
    pub is_clone: Vec<bool>,
    /// What is made again, in the order in which it is needed.
    pub extractions: Vec<Extraction>,
}

impl Rewritten {
    /// What each node and storage of `graph` stands for.
    pub fn origins(&self) -> Origins<'_> {
        Origins { nodes: &self.node_origin, storages: &self.storage_origin }
    }
}

/// Why a plan cannot be rewritten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum RewriteError {
    #[error(transparent)]
    WrongGraph(#[from] WrongGraph),
    #[error("the plan is not valid for this graph: {0}")]
    Plan(#[from] ScheduleError),
    #[error("the rewritten graph does not fit in the format: {0}")]
    Graph(#[from] GraphError),
}

/// Rewrites `graph` as `plan` says.
///
/// # Errors
/// If the plan is not valid for the graph.
pub fn rewrite(graph: &Graph, plan: &Plan) -> Result<Rewritten, RewriteError> {
    plan.check_graph(graph)?;
    let runs = Timeline::new(graph, &plan.schedule)?.runs;
    let stored = &plan.schedule.stored_at_start;
    let mut walk = Walk::new(graph, &runs, stored);
    for step in &plan.schedule.steps {
        match *step {
            Step::Run(id) => walk.run(id),
            Step::Free(storage) => walk.free(storage),
            Step::Offload(storage) => walk.offload(storage),
            Step::Fetch(storage) => walk.fetch(storage),
        }
    }
    walk.finish(stored)
}

/// What is under way with a storage that is in memory.
#[derive(Clone, Copy, Default)]
enum UnderWay {
    /// Nothing that a free would have to wait for.
    #[default]
    Nothing,
    /// It has been fetched, and nobody has read it yet.
    Arriving,
    /// It has been offloaded, to this token, since it came into memory.
    Leaving(StorageId),
}

/// A copy in the store takes no memory.
const TOKEN: Storage = Storage { bytes: Bytes::ZERO, role: Role::Other };

struct Walk<'g> {
    graph: &'g Graph,
    names: BTreeSet<String>,
    /// Below which number every `base@number` is taken, for each base that has a clone.
    numbers: BTreeMap<String, u64>,
    /// The live copy of each storage, as a storage of the new graph.
    latest: Vec<Option<StorageId>>,
    /// The token of the copy in the store that is not stale, likewise.
    stored: Vec<Option<StorageId>>,
    /// What is under way with the live copy of each storage.
    under_way: Vec<UnderWay>,
    /// The storage of the new graph that the first run of the writer makes.
    first: Vec<Option<StorageId>>,
    /// The node of the new graph that is the first run of each node.
    first_run: Vec<Option<NodeId>>,
    storages: Vec<Storage>,
    nodes: Vec<Node>,
    node_origin: Vec<Step>,
    storage_origin: Vec<StorageId>,
    is_clone: Vec<bool>,
}

impl<'g> Walk<'g> {
    /// What no run makes is left out; the other storages keep their order, so if everything runs
    /// they keep their ids too. Inputs come first; what is stored at the start is a token.
    fn new(graph: &'g Graph, runs: &[u32], stored: &[StorageId]) -> Self {
        let is_input = |id: NodeId| graph.node(id).phase == Phase::Input;
        let mut walk = Walk {
            graph,
            names: graph.nodes().iter().map(|n| n.name.clone()).collect(),
            numbers: BTreeMap::new(),
            latest: vec![None; graph.storages().len()],
            stored: vec![None; graph.storages().len()],
            under_way: vec![UnderWay::Nothing; graph.storages().len()],
            first: vec![None; graph.storages().len()],
            first_run: vec![None; graph.nodes().len()],
            storages: Vec::new(),
            nodes: Vec::new(),
            node_origin: Vec::new(),
            storage_origin: Vec::new(),
            is_clone: Vec::new(),
        };
        for s in graph.storage_ids() {
            let writer = graph.writer(s);
            if is_input(writer) || runs[writer.index()] > 0 {
                walk.first[s.index()] = Some(walk.add_copy(s));
            }
        }
        for id in graph.node_ids().filter(|&id| is_input(id)) {
            walk.run(id);
        }
        for s in stored.iter().map(|s| s.index()) {
            // Without a role of its own: it may be listed twice.
            if let Some(token) = walk.latest[s].take() {
                walk.storages[token.index()] = TOKEN;
                walk.stored[s] = Some(token);
            }
        }
        walk
    }

    /// A copy in memory. Which of the copies outlives the step is known at the end; until then none
    /// is persistent.
    fn add_copy(&mut self, origin: StorageId) -> StorageId {
        let Storage { bytes, role } = *self.graph.storage(origin);
        let role = if role.is_persistent() { Role::Other } else { role };
        self.add_storage(origin, Storage { bytes, role })
    }

    fn add_storage(&mut self, origin: StorageId, storage: Storage) -> StorageId {
        self.storages.push(storage);
        self.storage_origin.push(origin);
        StorageId::new(self.storages.len() - 1)
    }

    fn run(&mut self, id: NodeId) {
        let graph = self.graph;
        let is_clone = self.first_run[id.index()].is_some();
        let live = |s: &StorageId| self.latest[s.index()].expect("the timeline saw it live");
        let mut node = Node {
            reads: graph.node(id).reads.iter().map(live).collect(),
            updates: graph.node(id).updates.iter().map(live).collect(),
            writes: Vec::new(),
            ..graph.node(id).clone()
        };
        for &s in &graph.node(id).writes {
            let copy = match is_clone {
                true => self.add_copy(s),
                false => self.first[s.index()].expect("its writer runs"),
            };
            // A storage that is still live stays the one to read.
            self.latest[s.index()].get_or_insert(copy);
            node.writes.push(copy);
        }
        for r in &graph.node(id).reads {
            let under_way = &mut self.under_way[r.index()];
            if let UnderWay::Arriving = under_way {
                *under_way = UnderWay::Nothing;
            }
        }
        for u in &graph.node(id).updates {
            self.stored[u.index()] = None;
        }
        if is_clone {
            node.name = self.clone_name(&node.name);
        }
        self.first_run[id.index()].get_or_insert(NodeId::new(self.nodes.len()));
        self.nodes.push(node);
        self.node_origin.push(Step::Run(id));
        self.is_clone.push(is_clone);
    }

    fn offload(&mut self, s: StorageId) {
        let copy = self.latest[s.index()].expect("the timeline saw it live");
        let token = self.add_storage(s, TOKEN);
        self.transfer(Transfer::Offload, Step::Offload(s), s, vec![copy], vec![token]);
        self.stored[s.index()] = Some(token);
        self.under_way[s.index()] = UnderWay::Leaving(token);
    }

    fn fetch(&mut self, s: StorageId) {
        let token = self.stored[s.index()].expect("the timeline saw a copy that is not stale");
        let copy = self.add_copy(s);
        self.transfer(Transfer::Fetch, Step::Fetch(s), s, vec![token], vec![copy]);
        self.latest[s.index()] = Some(copy);
        self.under_way[s.index()] = UnderWay::Arriving;
    }

    /// Whatever frees after last use frees here what nothing is under way with. What is being moved
    /// has its last use here.
    fn free(&mut self, s: StorageId) {
        let copy = self.latest[s.index()].take().expect("the timeline saw it live");
        let reads = match std::mem::take(&mut self.under_way[s.index()]) {
            UnderWay::Nothing => return,
            UnderWay::Arriving => vec![copy],
            UnderWay::Leaving(token) => vec![copy, token],
        };
        self.transfer(Transfer::Wait, Step::Free(s), s, reads, vec![]);
    }

    fn transfer(
        &mut self,
        transfer: Transfer,
        step: Step,
        s: StorageId,
        reads: Vec<StorageId>,
        writes: Vec<StorageId>,
    ) {
        let name = format!("{} {}", transfer.op(), self.graph.storage_name(s));
        let name = match self.names.insert(name.clone()) {
            true => name,
            false => self.clone_name(&name),
        };
        // Where no run follows, that of the last one.
        let last = self.nodes.last().map(|node| node.phase);
        let phase = last.filter(|&phase| phase != Phase::Input).unwrap_or(Phase::Forward);
        self.nodes.push(Node {
            op: transfer.op().into(),
            reads,
            writes,
            effect: Effect::Once,
            ..Node::new(&name, phase, 0.0, &[], &[])
        });
        self.node_origin.push(step);
        self.is_clone.push(false);
    }

    /// `conv@1`, or the next number that is free; a clone of `conv@1` is not called `conv@1@1`.
    fn clone_name(&mut self, name: &str) -> String {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let base = match name.rsplit_once('@') {
            Some((base, number)) if is_number(number) => base,
            _ => name,
        };
        // Names are never given back, so what was taken once need not be tried again.
        let number = self.numbers.entry(base.into()).or_insert(1);
        loop {
            let name = format!("{base}@{number}");
            *number += 1;
            if self.names.insert(name.clone()) {
                return name;
            }
        }
    }

    fn finish(mut self, stored: &[StorageId]) -> Result<Rewritten, RewriteError> {
        // What the plan never frees is held until the end of the step.
        let mut stays = vec![false; self.graph.storages().len()];
        self.graph.outputs().iter().for_each(|s| stays[s.index()] = true);
        for s in self.graph.storage_ids() {
            let stays = stays[s.index()] || self.graph.storage(s).role.is_persistent();
            if self.latest[s.index()].is_some() && !stays {
                self.free(s);
            }
        }
        self.set_phases();
        for s in self.graph.storage_ids() {
            let role = self.graph.storage(s).role;
            if let Some(copy) = self.latest[s.index()].filter(|_| role.is_persistent()) {
                self.storages[copy.index()].role = role;
            }
        }
        // What lives in the store is there at the end, and so is its token.
        let at_end = |s: &StorageId| self.latest[s.index()].or(self.stored[s.index()]);
        let outputs = self.graph.outputs().iter().chain(stored).map(at_end);
        let outputs = outputs.map(|s| s.expect("the timeline saw it in its place"));
        let targets = self.graph.targets().iter();
        let targets = targets.map(|t| self.first_run[t.index()].expect("the timeline saw it run"));
        let graph = Graph::new(GraphParts {
            name: self.graph.name().into(),
            origin: self.graph.origin().into(),
            outputs: outputs.collect(),
            targets: targets.collect(),
            storages: self.storages,
            nodes: self.nodes,
        })?;
        Ok(Rewritten {
            extractions: extractions(&graph, &self.is_clone),
            graph,
            node_origin: self.node_origin,
            storage_origin: self.storage_origin,
            is_clone: self.is_clone,
        })
    }

    /// A clone or a transfer belongs to the part of the step in which it runs: that of the next
    /// node that is neither. Otherwise the forward pass would seem to go on through the backward
    /// pass.
    fn set_phases(&mut self) {
        let mut phase = None;
        for (node, &is_clone) in self.nodes.iter_mut().zip(&self.is_clone).rev() {
            match (is_clone || node.transfer().is_some(), phase) {
                (false, _) => phase = Some(node.phase),
                (true, Some(phase)) => node.phase = phase,
                (true, None) => {}
            }
        }
    }
}
