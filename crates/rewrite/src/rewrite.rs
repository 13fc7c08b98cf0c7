//! The walk along the plan that gives every run a node and every copy a storage.

use std::collections::{BTreeMap, BTreeSet};

use rekindle_graph::{
    Graph, GraphError, GraphParts, Node, NodeId, Origins, Phase, Plan, Role, ScheduleError, Step,
    StepId, Storage, StorageId, Timeline, WrongGraph,
};

use crate::Extraction;
use crate::extract::extractions;

/// A plan as an ordinary graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Rewritten {
    /// Its own order is the plan's order of runs, after the inputs.
    pub graph: Graph,
    /// The node that each node of `graph` stands for, in the graph that was rewritten.
    pub node_origin: Vec<NodeId>,
    /// The storage that each storage of `graph` is a copy of.
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
    #[error("{0}: the plan moves storages to a store, and only runs and frees can be rewritten")]
    Transfer(StepId),
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
    let mut walk = Walk::new(graph, &runs);
    for (at, step) in plan.schedule.steps.iter().enumerate() {
        match *step {
            Step::Run(id) => walk.run(id),
            Step::Free(storage) => walk.latest[storage.index()] = None,
            Step::Offload(_) | Step::Fetch(_) => {
                return Err(RewriteError::Transfer(StepId::new(at)));
            }
        }
    }
    walk.finish()
}

struct Walk<'g> {
    graph: &'g Graph,
    names: BTreeSet<String>,
    /// Below which number every `base@number` is taken, for each base that has a clone.
    numbers: BTreeMap<String, u64>,
    /// The live copy of each storage, as a storage of the new graph.
    latest: Vec<Option<StorageId>>,
    /// The storage of the new graph that the first run of the writer makes.
    first: Vec<Option<StorageId>>,
    /// The node of the new graph that is the first run of each node.
    first_run: Vec<Option<NodeId>>,
    storages: Vec<Storage>,
    nodes: Vec<Node>,
    node_origin: Vec<NodeId>,
    storage_origin: Vec<StorageId>,
    is_clone: Vec<bool>,
}

impl<'g> Walk<'g> {
    /// What no run makes is left out; the other storages keep their order, so if everything runs
    /// they keep their ids too. Inputs come first.
    fn new(graph: &'g Graph, runs: &[u32]) -> Self {
        let is_input = |id: NodeId| graph.node(id).phase == Phase::Input;
        let mut walk = Walk {
            graph,
            names: graph.nodes().iter().map(|n| n.name.clone()).collect(),
            numbers: BTreeMap::new(),
            latest: vec![None; graph.storages().len()],
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
                walk.first[s.index()] = Some(walk.add_storage(s, *graph.storage(s)));
            }
        }
        for id in graph.node_ids().filter(|&id| is_input(id)) {
            walk.run(id);
        }
        walk
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
                true => self.write_again(s),
                false => self.first[s.index()].expect("its writer runs"),
            };
            // A storage that is still live stays the one to read.
            self.latest[s.index()].get_or_insert(copy);
            node.writes.push(copy);
        }
        if is_clone {
            node.name = self.clone_name(&node.name);
        }
        self.first_run[id.index()].get_or_insert(NodeId::new(self.nodes.len()));
        self.nodes.push(node);
        self.node_origin.push(id);
        self.is_clone.push(is_clone);
    }

    /// The storage that a clone writes in place of `s`.
    fn write_again(&mut self, s: StorageId) -> StorageId {
        let mut storage = *self.graph.storage(s);
        if storage.role.is_persistent() {
            // The original is live for good; this copy must go.
            storage.role = Role::Other;
        }
        self.add_storage(s, storage)
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

    fn finish(mut self) -> Result<Rewritten, RewriteError> {
        self.set_clone_phases();
        let outputs = self.graph.outputs().iter();
        let outputs = outputs.map(|s| self.latest[s.index()].expect("the timeline saw it live"));
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

    /// A clone belongs to the part of the step in which it runs: that of the next node that is no
    /// clone. Otherwise the forward pass would seem to go on through the backward pass.
    fn set_clone_phases(&mut self) {
        let mut phase = None;
        for (node, &is_clone) in self.nodes.iter_mut().zip(&self.is_clone).rev() {
            match (is_clone, phase) {
                (false, _) => phase = Some(node.phase),
                (true, Some(phase)) => node.phase = phase,
                (true, None) => {}
            }
        }
    }
}
