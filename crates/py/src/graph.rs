//! The graph: built, read, written, changed and taken apart; and budgets for it.

use pyo3::prelude::*;
use rekindle_graph::{
    Bytes, Effect, GraphParts, Micros, NodeId, Phase, Role, Storage, StorageId, Timeline,
};

use crate::error::invalid;

pub(crate) const ROLES: [(&str, Role); 8] = [
    ("parameter", Role::Parameter),
    ("input", Role::Input),
    ("constant", Role::Constant),
    ("tangent", Role::Tangent),
    ("optimizer_state", Role::OptimizerState),
    ("activation", Role::Activation),
    ("gradient", Role::Gradient),
    ("other", Role::Other),
];
const PHASES: [(&str, Phase); 4] = [
    ("input", Phase::Input),
    ("forward", Phase::Forward),
    ("backward", Phase::Backward),
    ("optimizer", Phase::Optimizer),
];
const EFFECTS: [(&str, Effect); 3] =
    [("pure", Effect::Pure), ("random", Effect::Random), ("once", Effect::Once)];

/// The value of that name, or an error that lists the names.
fn named<T: Copy>(py: Python<'_>, what: &str, table: &[(&str, T)], given: &str) -> PyResult<T> {
    let found = table.iter().find(|(name, _)| *name == given);
    found.map(|&(_, value)| value).ok_or_else(|| {
        let names: Vec<_> = table.iter().map(|&(name, _)| name).collect();
        invalid(py, format!("{what} is one of {}, not \"{given}\"", names.join(", ")))
    })
}

pub(crate) fn name_of<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    let found = table.iter().find(|(_, known)| known == value);
    found.expect("every value has a name").0
}

fn storage_ids(indices: Vec<u32>) -> Vec<StorageId> {
    indices.into_iter().map(StorageId).collect()
}

fn indices(ids: &[StorageId]) -> Vec<u32> {
    ids.iter().map(|id| id.0).collect()
}

/// A piece of work: what it reads and writes, and whether it may run again.
#[pyclass(frozen, module = "rekindle")]
pub(crate) struct Node {
    node: rekindle_graph::Node,
}

#[pymethods]
impl Node {
    #[new]
    #[pyo3(signature = (
        name, op, phase, *, reads, writes, updates = vec![], effect = "pure", time = 0.0,
        workspace = 0, flops = None
    ))]
    fn new(
        py: Python<'_>,
        name: String,
        op: String,
        phase: &str,
        reads: Vec<u32>,
        writes: Vec<u32>,
        updates: Vec<u32>,
        effect: &str,
        time: f64,
        workspace: u64,
        flops: Option<u64>,
    ) -> PyResult<Node> {
        let node = rekindle_graph::Node {
            name,
            op,
            phase: named(py, "a phase", &PHASES, phase)?,
            time: Micros(time),
            flops,
            reads: storage_ids(reads),
            writes: storage_ids(writes),
            updates: storage_ids(updates),
            workspace: Bytes(workspace),
            effect: named(py, "an effect", &EFFECTS, effect)?,
        };
        Ok(Node { node })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.node.name
    }

    #[getter]
    fn op(&self) -> &str {
        &self.node.op
    }

    #[getter]
    fn phase(&self) -> &'static str {
        name_of(&PHASES, &self.node.phase)
    }

    #[getter]
    fn reads(&self) -> Vec<u32> {
        indices(&self.node.reads)
    }

    #[getter]
    fn writes(&self) -> Vec<u32> {
        indices(&self.node.writes)
    }

    #[getter]
    fn updates(&self) -> Vec<u32> {
        indices(&self.node.updates)
    }

    #[getter]
    fn effect(&self) -> &'static str {
        name_of(&EFFECTS, &self.node.effect)
    }

    #[getter]
    fn time(&self) -> f64 {
        self.node.time.get()
    }

    #[getter]
    fn workspace(&self) -> u64 {
        self.node.workspace.get()
    }

    #[getter]
    fn flops(&self) -> Option<u64> {
        self.node.flops
    }
}

/// A checked training step.
#[pyclass(frozen, eq, module = "rekindle")]
#[derive(PartialEq)]
pub(crate) struct Graph {
    pub(crate) graph: rekindle_graph::Graph,
    /// Of the plain step.
    timeline: Timeline,
}

impl Graph {
    /// Wraps a graph that has been checked, or says what is wrong with it.
    pub(crate) fn checked<E: std::fmt::Display>(
        py: Python<'_>,
        graph: Result<rekindle_graph::Graph, E>,
    ) -> PyResult<Graph> {
        let graph = graph.map_err(|error| invalid(py, error))?;
        let timeline = Timeline::natural(&graph);
        Ok(Graph { graph, timeline })
    }
}

#[pymethods]
impl Graph {
    #[new]
    #[pyo3(signature = (
        name, *, storages, nodes, outputs, targets = vec![], origin = String::new()
    ))]
    fn new(
        py: Python<'_>,
        name: String,
        storages: Vec<(u64, String)>,
        nodes: Vec<PyRef<'_, Node>>,
        outputs: Vec<u32>,
        targets: Vec<u32>,
        origin: String,
    ) -> PyResult<Graph> {
        let storage = |(bytes, role): (u64, String)| {
            let role = named(py, "a role", &ROLES, &role)?;
            let bytes = Bytes(bytes);
            Ok(Storage { bytes, role })
        };
        let parts = GraphParts {
            name,
            origin,
            storages: storages.into_iter().map(storage).collect::<PyResult<_>>()?,
            nodes: nodes.iter().map(|node| node.node.clone()).collect(),
            outputs: storage_ids(outputs),
            targets: targets.into_iter().map(NodeId).collect(),
        };
        Graph::checked(py, rekindle_graph::Graph::new(parts))
    }

    /// Reads `remat.graph/1`.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Graph> {
        Graph::checked(py, rekindle_graph::Graph::from_json(text))
    }

    /// Writes `remat.graph/1`.
    fn to_json(&self) -> String {
        self.graph.to_json()
    }

    /// The graph's own name.
    #[getter]
    fn name(&self) -> &str {
        self.graph.name()
    }

    /// How many nodes it has.
    fn __len__(&self) -> usize {
        self.graph.nodes().len()
    }

    /// Its nodes, in its own order.
    #[getter]
    fn nodes(&self) -> Vec<Node> {
        let nodes = self.graph.nodes().iter();
        nodes.map(|node| Node { node: node.clone() }).collect()
    }

    /// The bytes and the role of each storage.
    #[getter]
    fn storages(&self) -> Vec<(u64, &'static str)> {
        let storages = self.graph.storages().iter();
        storages.map(|s| (s.bytes.get(), name_of(&ROLES, &s.role))).collect()
    }

    /// Storages that must be live at the end.
    #[getter]
    fn outputs(&self) -> Vec<u32> {
        indices(self.graph.outputs())
    }

    /// Equal for graphs that are the same, times and their own names aside.
    #[getter]
    fn digest(&self) -> String {
        self.graph.digest().to_string()
    }

    /// A copy in which node `n` takes `times[n]` microseconds.
    fn with_times(&self, py: Python<'_>, times: Vec<f64>) -> PyResult<Graph> {
        let times: Vec<Micros> = times.into_iter().map(Micros).collect();
        Graph::checked(py, self.graph.with_times(&times))
    }

    /// A copy in which node `n` takes `bytes[n]` of scratch while it runs.
    fn with_workspaces(&self, py: Python<'_>, bytes: Vec<u64>) -> PyResult<Graph> {
        let mut parts = self.graph.clone().into_parts();
        if bytes.len() != parts.nodes.len() {
            let (found, expected) = (bytes.len(), parts.nodes.len());
            return Err(invalid(py, format!("{found} scratches for {expected} nodes")));
        }
        for (node, bytes) in parts.nodes.iter_mut().zip(bytes) {
            node.workspace = Bytes(bytes);
        }
        Graph::checked(py, rekindle_graph::Graph::new(parts))
    }

    /// A copy in which one node has so many bytes of scratch.
    fn with_workspace(&self, py: Python<'_>, node: usize, bytes: u64) -> PyResult<Graph> {
        let mut parts = self.graph.clone().into_parts();
        let Some(node) = parts.nodes.get_mut(node) else {
            return Err(invalid(py, format!("there is no node {node}")));
        };
        node.workspace = Bytes(bytes);
        Graph::checked(py, rekindle_graph::Graph::new(parts))
    }

    /// The plain step's peak, in bytes.
    #[getter]
    fn peak(&self) -> u64 {
        self.timeline.peak.get()
    }

    /// The plain step's time, in microseconds.
    #[getter]
    fn time(&self) -> f64 {
        self.timeline.time.get()
    }

    /// Below this many bytes no plan can go.
    #[getter]
    fn floor(&self) -> u64 {
        rekindle_plan::floor(&self.graph).bytes.get()
    }

    /// The highest bytes while each node of the plain step runs, in order.
    fn timeline(&self) -> Vec<u64> {
        runs(&rekindle_graph::Schedule::plain(&self.graph), &self.timeline)
    }

    fn __repr__(&self) -> String {
        format!(
            "<rekindle.Graph {:?}: {} nodes, peak {}>",
            self.graph.name(),
            self.graph.nodes().len(),
            self.timeline.peak
        )
    }
}

/// The bytes during each run of a schedule, without the frees between them.
pub(crate) fn runs(schedule: &rekindle_graph::Schedule, timeline: &Timeline) -> Vec<u64> {
    let during = schedule.steps.iter().zip(&timeline.during);
    let runs = during.filter(|(step, _)| matches!(step, rekindle_graph::Step::Run(_)));
    runs.map(|(_, bytes)| bytes.get()).collect()
}

/// The bytes that `text` allows: `3GiB`, `800MiB`, plain bytes, or `60%` of `plain_peak`.
#[pyfunction]
#[pyo3(signature = (text, plain_peak = None))]
pub(crate) fn parse_budget(py: Python<'_>, text: &str, plain_peak: Option<u64>) -> PyResult<u64> {
    let why = match (rekindle_graph::parse_budget(text), plain_peak) {
        (Ok(rekindle_graph::Budget::Bytes(bytes)), _) => return Ok(bytes.get()),
        (Ok(share), Some(peak)) => return Ok(share.resolve(Bytes(peak)).get()),
        (Ok(rekindle_graph::Budget::Share(_)), None) => {
            "is a share, and needs the plain step's peak: give plain_peak, or bytes such as 3GiB"
                .into()
        }
        (Err(why), _) => why,
    };
    Err(invalid(py, format!("the budget \"{text}\" {why}")))
}
