//! What can be wrong with a graph, a schedule or a file, in words for the person who reads them.

use std::path::PathBuf;

use crate::{Bytes, NodeId, Role, StepId, StorageId};

/// Why some parts do not make a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum GraphError {
    #[error("{0}")]
    Syntax(String),
    #[error("{}", wrong_format(found, "graph"))]
    Format { found: String },
    #[error("{what}: expected {expected}, found {found}")]
    WrongCount { what: &'static str, expected: usize, found: usize },
    #[error("storage {storage}: size {text} is not a whole number of bytes below 2^64")]
    Size { storage: usize, text: String },
    #[error(
        "the sizes of all storages and scratch add up to more than 2^61 bytes (at {at}), storages \
         counted twice"
    )]
    SizeOverflow { at: String },
    #[error(
        "node {id} ({name}) {how} storage {storage}, but there are only {count} storages (0 to {})",
        count.saturating_sub(1)
    )]
    DanglingStorage { id: NodeId, name: String, how: &'static str, storage: i64, count: usize },
    #[error("`{list}` names {what} {index}, but there are only {count}")]
    DanglingEntry { list: &'static str, what: &'static str, index: i64, count: usize },
    #[error("node {id} ({name}): time {text} is not a finite number of microseconds, zero or more")]
    Time { id: NodeId, name: String, text: String },
    #[error(
        "the times of all nodes add up to more than 1e300 microseconds (at node {id} ({name}), \
         whose time is {text}); give times that can be"
    )]
    TimeOverflow { id: NodeId, name: String, text: String },
    #[error(
        "storage {storage} has two writers: node {first} ({first_name}) and node {second} \
         ({second_name}); give each its own storage, or list the storage under `updates`"
    )]
    TwoWriters {
        storage: StorageId,
        first: NodeId,
        first_name: String,
        second: NodeId,
        second_name: String,
    },
    #[error("storage {storage} is written by no node")]
    NoWriter { storage: StorageId },
    #[error(
        "node {id} ({name}) reads storage {storage} before it is written by node {writer} \
         ({writer_name}); list the nodes in an order in which they can run"
    )]
    ReadBeforeWrite {
        id: NodeId,
        name: String,
        storage: StorageId,
        writer: NodeId,
        writer_name: String,
    },
    #[error("the nodes form a cycle: {}", path.join(" -> "))]
    Cycle { path: Vec<String> },
    #[error(
        "node {id} ({name}) reads and writes storage {storage}; an in-place update goes under \
         `updates`"
    )]
    ReadsOwnWrite { id: NodeId, name: String, storage: StorageId },
    #[error("input node {id} ({name}) {how}, but inputs never run")]
    InputRuns { id: NodeId, name: String, how: &'static str },
    #[error("node {id} ({name}) updates storage {storage}, but {why}")]
    BadUpdate { id: NodeId, name: String, storage: StorageId, why: String },
}

/// What to say of a file that is none of that kind, or of a version that is not read.
fn wrong_format(found: &str, kind: &str) -> String {
    let is_a = |kind: &str| found.starts_with(&format!("remat.{kind}/"));
    let expected = match kind {
        "plan" => "\"remat.plan/1\" or \"remat.plan/2\"",
        _ => "\"remat.graph/1\"",
    };
    let formats = format!("format is \"{found}\", expected {expected}");
    match kind {
        _ if is_a(kind) => format!("{formats}; another version of Rekindle wrote it"),
        "graph" if is_a("plan") => format!("it is a plan and no graph: {formats}"),
        "plan" if is_a("graph") => format!("it is a graph and no plan: {formats}"),
        _ => formats,
    }
}

/// Why a schedule cannot be replayed on a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ScheduleError {
    #[error("{step}: node {node} does not exist")]
    UnknownNode { step: StepId, node: NodeId },
    #[error("{step}: storage {storage} does not exist")]
    UnknownStorage { step: StepId, storage: StorageId },
    #[error("{step}: runs the input {name}")]
    RunsInput { step: StepId, name: String },
    #[error("{step}: {name} may run only once")]
    RunsAgain { step: StepId, name: String },
    #[error("{step}: {name} reads storage {storage}, which is not live")]
    ReadsDead { step: StepId, name: String, storage: StorageId },
    #[error("{step}: {name} reads storage {storage} after {updater} has overwritten it")]
    ReadsUpdated { step: StepId, name: String, storage: StorageId, updater: String },
    #[error("{step}: frees storage {storage}, which is not live")]
    FreesDead { step: StepId, storage: StorageId },
    #[error("{step}: frees storage {storage}, which is persistent and has no copy in a store")]
    FreesPersistent { step: StepId, storage: StorageId },
    #[error("{step}: offloads storage {storage}, which is not live")]
    OffloadsDead { step: StepId, storage: StorageId },
    #[error(
        "{step}: offloads storage {storage}, which is persistent; the store is for activations"
    )]
    OffloadsPersistent { step: StepId, storage: StorageId },
    #[error("{step}: fetches storage {storage}, which is live")]
    FetchesLive { step: StepId, storage: StorageId },
    #[error("{step}: fetches storage {storage}, of which there is no copy, or only a stale one")]
    FetchesWithoutCopy { step: StepId, storage: StorageId },
    #[error("{step}: moves storage {storage}, but the store has no channel that way")]
    NoChannel { step: StepId, storage: StorageId },
    #[error("a store's {what} is {text}, and must be a finite number, zero or more")]
    BadStore { what: &'static str, text: String },
    #[error("storage {storage} is stored at the start, but does not exist")]
    StoresUnknown { storage: StorageId },
    #[error(
        "storage {storage} cannot live in the store between training steps: it is {role:?}, and \
         only parameters, constants and optimizer state can, in a store that is not for \
         activations alone"
    )]
    CannotBeStored { storage: StorageId, role: Role },
    #[error("storage {storage} lives in the store, and is in memory at the end")]
    StoredInMemory { storage: StorageId },
    #[error("storage {storage} lives in the store, and its copy there is stale at the end")]
    StoredStale { storage: StorageId },
    #[error("persistent storage {storage} is not in memory at the end")]
    PersistentGone { storage: StorageId },
    #[error("the store holds {held} ({} bytes), over its limit of {limit}", held.get())]
    StoreOverLimit { held: Bytes, limit: Bytes },
    #[error("output storage {storage} is not live at the end")]
    OutputDead { storage: StorageId },
    #[error("{name} must run and never does")]
    TargetNeverRan { name: String },
}

/// Why a plan cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum PlanFileError {
    #[error("{0}")]
    Syntax(String),
    #[error("{}", wrong_format(found, "plan"))]
    Format { found: String },
    #[error(
        "{step}: a step is one of {{\"run\": node}}, {{\"free\": storage}}, \
         {{\"offload\": storage}} and {{\"fetch\": storage}}"
    )]
    Step { step: StepId },
    #[error("`stored_at_start`: {index} is not an id")]
    Stored { index: i64 },
    #[error("`graph_digest` is \"{text}\", and must be \"sha256:\" and 64 hexadecimal digits")]
    Digest { text: String },
    #[error(transparent)]
    Store(ScheduleError),
    #[error("{step}: {index} is not an id")]
    Index { step: StepId, index: i64 },
    #[error("time {text} is not a finite number of microseconds, zero or more")]
    Time { text: String },
}

/// An error with the file that it is about.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum FileError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{}: {source}", path.display())]
    Graph { path: PathBuf, source: GraphError },
    #[error("{}: {source}", path.display())]
    Plan { path: PathBuf, source: PlanFileError },
}
