//! Reading and writing `remat.graph/1`, `remat.plan/1` and `remat.plan/2`.
//!
//! A plan is written as version 1 where nothing is moved, so that every reader of plans understands
//! it, and as version 2 otherwise. Unknown fields are ignored, so that newer files still load.
//! Fields that have their usual value are not written. Text that is read and written again gives an
//! equal value.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{
    Bytes, Effect, FileError, Graph, GraphError, GraphParts, Micros, Node, NodeId, Phase, Plan,
    PlanFileError, Rate, Role, Schedule, Step, StepId, Storage, StorageId, Store, one_line,
    read_text,
};

const GRAPH_FORMAT: &str = "remat.graph/1";
const PLAN_FORMATS: [&str; 2] = ["remat.plan/1", "remat.plan/2"];

#[derive(Serialize, Deserialize)]
struct GraphFile {
    format: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    origin: String,
    storages: Vec<StorageEntry>,
    nodes: Vec<NodeEntry>,
    outputs: Vec<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    targets: Vec<i64>,
}

#[derive(Serialize, Deserialize)]
struct StorageEntry {
    bytes: serde_json::Number,
    role: RoleName,
}

#[derive(Serialize, Deserialize)]
struct NodeEntry {
    name: String,
    #[serde(default)]
    op: String,
    phase: PhaseName,
    time_us: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    flops: Option<u64>,
    reads: Vec<i64>,
    writes: Vec<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    updates: Vec<i64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    workspace_bytes: u64,
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    recompute: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    random: bool,
}

fn yes() -> bool {
    true
}
fn is_true(value: &bool) -> bool {
    *value
}
fn is_false(value: &bool) -> bool {
    !*value
}
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Declares a lowercase name for each variant of an enum of the IR.
macro_rules! names {
    ($file:ident for $ir:ident { $($variant:ident),* }) => {
        #[derive(Clone, Copy, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum $file { $($variant),* }
        impl From<$file> for $ir {
            fn from(name: $file) -> $ir { match name { $($file::$variant => $ir::$variant),* } }
        }
        impl From<$ir> for $file {
            fn from(value: $ir) -> $file { match value { $($ir::$variant => $file::$variant),* } }
        }
    };
}
names!(RoleName for Role {
    Parameter, Input, Constant, Tangent, OptimizerState, Activation, Gradient, Other
});
names!(PhaseName for Phase { Input, Forward, Backward, Optimizer });

/// All that is read of a file that is not what it should be.
#[derive(Deserialize)]
struct Tagged {
    format: String,
}

/// Why text is not what it should be.
enum Bad {
    /// It says that it is something else.
    Format(String),
    /// It is what it says, or nothing at all, and broken.
    Syntax(serde_json::Error),
}

/// Reads text whose format, which `format_of` finds in the file, must be one of these. A file of
/// another kind or version lacks fields; its format is the better reason. A byte order mark at the
/// start, as some editors leave it, is skipped.
fn parse<T: DeserializeOwned>(
    text: &str,
    formats: &[&str],
    format_of: fn(&T) -> &str,
) -> Result<T, Bad> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let file = serde_json::from_str::<T>(text);
    let found = match &file {
        Ok(file) => Some(format_of(file).to_owned()),
        Err(_) => serde_json::from_str(text).ok().map(|Tagged { format }| format),
    };
    match found.filter(|found| !formats.contains(&found.as_str())) {
        Some(other) => Err(Bad::Format(other)),
        None => file.map_err(Bad::Syntax),
    }
}

impl Graph {
    /// Reads `remat.graph/1` text.
    ///
    /// # Errors
    /// What is wrong with the text or with the graph in it.
    pub fn from_json(text: &str) -> Result<Graph, GraphError> {
        let file =
            parse(text, &[GRAPH_FORMAT], |f: &GraphFile| &f.format).map_err(|bad| match bad {
                Bad::Format(found) => GraphError::Format { found },
                Bad::Syntax(e) => GraphError::Syntax(format!("not a graph: {e}")),
            })?;
        let storages = file.storages.iter().enumerate().map(|(i, s)| read_storage(i, s));
        let storages = storages.collect::<Result<Vec<_>, _>>()?;
        let nodes = file.nodes.into_iter().enumerate();
        let nodes = nodes.map(|(i, n)| read_node(NodeId::new(i), n, storages.len()));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let outputs = read_list("outputs", "storage", &file.outputs, storages.len())?;
        let targets = read_list("targets", "node", &file.targets, nodes.len())?;
        Graph::new(GraphParts {
            name: file.name,
            origin: file.origin,
            storages,
            nodes,
            outputs: outputs.into_iter().map(StorageId).collect(),
            targets: targets.into_iter().map(NodeId).collect(),
        })
    }

    /// Writes `remat.graph/1` text.
    pub fn to_json(&self) -> String {
        let ids = |list: &[StorageId]| list.iter().map(|s| i64::from(s.0)).collect();
        let file = GraphFile {
            format: GRAPH_FORMAT.into(),
            name: self.name().into(),
            origin: self.origin().into(),
            storages: self
                .storages()
                .iter()
                .map(|s| StorageEntry { bytes: s.bytes.get().into(), role: s.role.into() })
                .collect(),
            nodes: self
                .nodes()
                .iter()
                .map(|n| NodeEntry {
                    name: n.name.clone(),
                    op: n.op.clone(),
                    phase: n.phase.into(),
                    time_us: n.time.get(),
                    flops: n.flops,
                    reads: ids(&n.reads),
                    writes: ids(&n.writes),
                    updates: ids(&n.updates),
                    workspace_bytes: n.workspace.get(),
                    recompute: n.effect != Effect::Once,
                    random: n.effect == Effect::Random,
                })
                .collect(),
            outputs: ids(self.outputs()),
            targets: self.targets().iter().map(|n| i64::from(n.0)).collect(),
        };
        serde_json::to_string(&file).expect("plain data has a JSON form")
    }
}

fn read_storage(index: usize, entry: &StorageEntry) -> Result<Storage, GraphError> {
    let bytes = entry
        .bytes
        .as_u64()
        .ok_or_else(|| GraphError::Size { storage: index, text: entry.bytes.to_string() })?;
    Ok(Storage { bytes: Bytes(bytes), role: entry.role.into() })
}

fn read_node(id: NodeId, entry: NodeEntry, storages: usize) -> Result<Node, GraphError> {
    let ids = |how, list: &[i64]| -> Result<Vec<StorageId>, GraphError> {
        let valid = |&i: &i64| u32::try_from(i).ok().filter(|&i| (i as usize) < storages);
        list.iter()
            .map(|i| {
                valid(i).map(StorageId).ok_or_else(|| GraphError::DanglingStorage {
                    id,
                    name: one_line(&entry.name),
                    how,
                    storage: *i,
                    count: storages,
                })
            })
            .collect()
    };
    Ok(Node {
        reads: ids("reads", &entry.reads)?,
        writes: ids("writes", &entry.writes)?,
        updates: ids("updates", &entry.updates)?,
        op: entry.op,
        phase: entry.phase.into(),
        time: Micros(entry.time_us),
        flops: entry.flops,
        workspace: Bytes(entry.workspace_bytes),
        effect: match (entry.recompute, entry.random) {
            (false, _) => Effect::Once,
            (true, true) => Effect::Random,
            (true, false) => Effect::Pure,
        },
        name: entry.name,
    })
}

fn read_list(
    list: &'static str,
    what: &'static str,
    entries: &[i64],
    count: usize,
) -> Result<Vec<u32>, GraphError> {
    let valid = |i: i64| u32::try_from(i).ok().filter(|&i| (i as usize) < count);
    let dangling = |index| GraphError::DanglingEntry { list, what, index, count };
    entries.iter().map(|&i| valid(i).ok_or_else(|| dangling(i))).collect()
}

#[derive(Serialize, Deserialize)]
struct PlanFile {
    format: String,
    #[serde(default)]
    graph: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    graph_digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    strategy: Option<String>,
    budget_bytes: u64,
    peak_bytes: u64,
    time_us: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store: Option<StoreEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    stored_at_start: Vec<i64>,
    steps: Vec<StepEntry>,
}

#[derive(Serialize, Deserialize)]
struct StoreEntry {
    #[serde(default)]
    out_bytes_per_us: f64,
    #[serde(default)]
    in_bytes_per_us: f64,
    #[serde(default)]
    latency_us: f64,
    #[serde(default = "yes")]
    duplex: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    budget_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "is_false")]
    activations_only: bool,
}

#[derive(Default, Serialize, Deserialize)]
struct StepEntry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    free: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offload: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fetch: Option<i64>,
}

impl Plan {
    /// Reads `remat.plan/1` or `remat.plan/2` text.
    ///
    /// # Errors
    /// What is wrong with the text. Whether the plan is valid for a graph is not checked here.
    pub fn from_json(text: &str) -> Result<Plan, PlanFileError> {
        let file =
            parse(text, &PLAN_FORMATS, |f: &PlanFile| &f.format).map_err(|bad| match bad {
                Bad::Format(found) => PlanFileError::Format { found },
                Bad::Syntax(e) => PlanFileError::Syntax(format!("not a plan: {e}")),
            })?;
        if !file.time_us.is_finite() || file.time_us < 0.0 {
            return Err(PlanFileError::Time { text: file.time_us.to_string() });
        }
        let steps = file.steps.iter().enumerate();
        let steps = steps.map(|(i, s)| read_step(StepId::new(i), s));
        let stored = file.stored_at_start.iter().map(|&index| {
            let id = u32::try_from(index).map_err(|_| PlanFileError::Stored { index });
            id.map(StorageId)
        });
        Ok(Plan {
            graph: file.graph,
            digest: file.graph_digest.map(|text| text.parse()).transpose()?,
            strategy: file.strategy,
            budget: Bytes(file.budget_bytes),
            peak: Bytes(file.peak_bytes),
            time: Micros(file.time_us),
            schedule: Schedule {
                steps: steps.collect::<Result<_, _>>()?,
                store: file.store.as_ref().map(read_store).transpose()?,
                stored_at_start: stored.collect::<Result<_, _>>()?,
            },
        })
    }

    /// Writes `remat.plan/1` text, or `remat.plan/2` where something is moved.
    pub fn to_json(&self) -> String {
        let schedule = &self.schedule;
        let file = PlanFile {
            format: PLAN_FORMATS[usize::from(schedule.has_transfers())].into(),
            graph: self.graph.clone(),
            graph_digest: self.digest.map(|digest| digest.to_string()),
            strategy: self.strategy.clone(),
            budget_bytes: self.budget.get(),
            peak_bytes: self.peak.get(),
            time_us: self.time.get(),
            store: schedule.store.as_ref().map(write_store),
            stored_at_start: schedule.stored_at_start.iter().map(|s| s.0.into()).collect(),
            steps: schedule.steps.iter().map(write_step).collect(),
        };
        serde_json::to_string(&file).expect("plain data has a JSON form")
    }
}

fn read_store(entry: &StoreEntry) -> Result<Store, PlanFileError> {
    let store = Store {
        out_rate: Rate(entry.out_bytes_per_us),
        in_rate: Rate(entry.in_bytes_per_us),
        latency: Micros(entry.latency_us),
        duplex: entry.duplex,
        limit: entry.budget_bytes.map(Bytes),
        activations_only: entry.activations_only,
    };
    store.check().map_err(PlanFileError::Store)?;
    Ok(store)
}

fn write_store(store: &Store) -> StoreEntry {
    StoreEntry {
        out_bytes_per_us: store.out_rate.get(),
        in_bytes_per_us: store.in_rate.get(),
        latency_us: store.latency.get(),
        duplex: store.duplex,
        budget_bytes: store.limit.map(Bytes::get),
        activations_only: store.activations_only,
    }
}

fn read_step(step: StepId, entry: &StepEntry) -> Result<Step, PlanFileError> {
    let id = |i: i64| u32::try_from(i).map_err(|_| PlanFileError::Index { step, index: i });
    match (entry.run, entry.free, entry.offload, entry.fetch) {
        (Some(n), None, None, None) => Ok(Step::Run(NodeId(id(n)?))),
        (None, Some(s), None, None) => Ok(Step::Free(StorageId(id(s)?))),
        (None, None, Some(s), None) => Ok(Step::Offload(StorageId(id(s)?))),
        (None, None, None, Some(s)) => Ok(Step::Fetch(StorageId(id(s)?))),
        _ => Err(PlanFileError::Step { step }),
    }
}

fn write_step(step: &Step) -> StepEntry {
    let mut entry = StepEntry::default();
    match *step {
        Step::Run(n) => entry.run = Some(n.0.into()),
        Step::Free(s) => entry.free = Some(s.0.into()),
        Step::Offload(s) => entry.offload = Some(s.0.into()),
        Step::Fetch(s) => entry.fetch = Some(s.0.into()),
    }
    entry
}

/// Reads a graph file.
///
/// # Errors
/// Names the file and what is wrong.
pub fn read_graph(path: &Path) -> Result<Graph, FileError> {
    Graph::from_json(&read_text(path)?)
        .map_err(|source| FileError::Graph { path: path.to_owned(), source })
}

/// Reads a plan file.
///
/// # Errors
/// Names the file and what is wrong.
pub fn read_plan(path: &Path) -> Result<Plan, FileError> {
    Plan::from_json(&read_text(path)?)
        .map_err(|source| FileError::Plan { path: path.to_owned(), source })
}
