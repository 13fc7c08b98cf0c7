//! What a plan can do wrong, by name.

use rekindle_graph::{Bytes, Micros, Role, StepId, StorageId, WrongGraph};

/// One broken rule.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum Violation {
    #[error(transparent)]
    WrongGraph(WrongGraph),
    #[error("{step}: there is no node {node}")]
    UnknownNode { step: StepId, node: u32 },
    #[error("{step}: there is no storage {storage}")]
    UnknownStorage { step: StepId, storage: StorageId },
    #[error("{step}: runs the input {node}; inputs are there from the start")]
    RunsInput { step: StepId, node: String },
    #[error("{step}: {node} runs again, but may run only once")]
    RunsAgain { step: StepId, node: String },
    #[error("{step}: {node} reads {storage} ({name}), which is not live")]
    ReadsDead { step: StepId, node: String, storage: StorageId, name: String },
    #[error("{step}: {node} reads {storage} ({name}) after {updater} has overwritten it")]
    ReadsUpdated { step: StepId, node: String, storage: StorageId, name: String, updater: String },
    #[error("{step}: frees {storage} ({name}), which is not live")]
    FreesDead { step: StepId, storage: StorageId, name: String },
    #[error(
        "{step}: frees {storage} ({name}), which is persistent and has no copy that is not stale"
    )]
    FreesPersistent { step: StepId, storage: StorageId, name: String },
    #[error("{step}: offloads {storage} ({name}), which is not live")]
    OffloadsDead { step: StepId, storage: StorageId, name: String },
    #[error("{step}: fetches {storage} ({name}), which is in memory")]
    FetchesLive { step: StepId, storage: StorageId, name: String },
    #[error("{step}: fetches {storage} ({name}), of which there is no copy")]
    FetchesWithoutCopy { step: StepId, storage: StorageId, name: String },
    #[error(
        "{step}: fetches {storage} ({name}), whose copy was made before {updater} overwrote it"
    )]
    FetchesStale { step: StepId, storage: StorageId, name: String, updater: String },
    #[error("{step}: moves {storage} ({name}), and there is no store that way")]
    NoChannel { step: StepId, storage: StorageId, name: String },
    #[error(
        "{step}: offloads {storage} ({name}), which is persistent; the store is for activations"
    )]
    OffloadsPersistent { step: StepId, storage: StorageId, name: String },
    #[error("stored at the start: there is no storage {storage}")]
    StoresUnknown { storage: StorageId },
    #[error(
        "{storage} ({name}) is {role:?}: only parameters, constants and optimizer state can live \
         in a store between training steps, if it is not for activations alone"
    )]
    CannotBeStored { storage: StorageId, name: String, role: Role },
    #[error("{storage} ({name}) lives in the store, and is in memory at the end")]
    StoredInMemory { storage: StorageId, name: String },
    #[error("{storage} ({name}) lives in the store, and its copy there is stale at the end")]
    StoredStale { storage: StorageId, name: String },
    #[error("persistent {storage} ({name}) is not in memory at the end")]
    PersistentGone { storage: StorageId, name: String },
    #[error("the store holds {held} bytes, {over} over its limit of {limit}",
        held = held.get(), over = held.get() - limit.get(), limit = limit.get())]
    StoreOverLimit { held: Bytes, limit: Bytes },
    #[error("output {storage} ({name}) is not live at the end")]
    OutputDead { storage: StorageId, name: String },
    #[error("output {storage} ({name}) does not hold what {updater} left in it")]
    OutputStale { storage: StorageId, name: String, updater: String },
    #[error("{node} must run and never does")]
    TargetNeverRan { node: String },
    #[error("{node} updates storages in place and never runs")]
    UpdateNeverRan { node: String },
    #[error("{step}: {bytes} bytes are live, {over} over the budget of {budget}",
        bytes = bytes.get(), over = bytes.get() - budget.get(), budget = budget.get())]
    OverBudget { step: StepId, bytes: Bytes, budget: Bytes },
    #[error("{bytes} bytes are live before the first step, over the budget of {budget}",
        bytes = bytes.get(), budget = budget.get())]
    StartOverBudget { bytes: Bytes, budget: Bytes },
    #[error("the plan says that its peak is {said} bytes, the replay finds {found}",
        said = said.get(), found = found.get())]
    PeakMisstated { said: Bytes, found: Bytes },
    #[error("the plan says that it takes {said}, the replay finds {found}")]
    TimeMisstated { said: Micros, found: Micros },
    #[error("rewritten graph: {what}: expected {expected} origins, found {found}")]
    OriginCount { what: &'static str, expected: usize, found: usize },
    #[error("rewritten graph: {node} stands for nothing in the graph")]
    NoOrigin { node: String },
    #[error("rewritten graph: storage {storage} is a copy of nothing in the graph")]
    NoStorageOrigin { storage: StorageId },
    #[error("rewritten graph: run {run} is {found}, the plan runs {expected} there")]
    WrongRun { run: usize, expected: String, found: String },
    #[error("rewritten graph: {runs} runs, the plan has {expected}")]
    RunCount { runs: usize, expected: usize },
    #[error("rewritten graph: {node} differs from {origin} in its {what}")]
    NodeChanged { node: String, origin: String, what: &'static str },
    #[error("rewritten graph: {node} {how} {storage} where {origin} {how} {expected}")]
    WrongWire {
        node: String,
        origin: String,
        how: &'static str,
        storage: StorageId,
        expected: StorageId,
    },
    #[error("rewritten graph: storage {storage} is not as large as {origin}")]
    SizeChanged { storage: StorageId, origin: StorageId },
    #[error(
        "rewritten graph: storage {storage}, a copy of {origin}, is {found:?} and must be \
         {expected:?}"
    )]
    RoleChanged { storage: StorageId, origin: StorageId, expected: Role, found: Role },
    #[error("rewritten graph: its {what} are not those of the graph")]
    ListChanged { what: &'static str },
    #[error(
        "rewritten graph: storage {storage} outlives the step, and {updater} has not updated it"
    )]
    CopyStale { storage: StorageId, updater: String },
    #[error("rewritten graph: {node} reads {storage}, which is in the store and not in memory")]
    ReadsStored { node: String, storage: StorageId },
    #[error("rewritten graph: {node} reads {storage}, which was overwritten before")]
    ReadsUpdatedCopy { node: String, storage: StorageId },
    #[error("rewritten graph: {node} reads no copy of {storage} in the store")]
    FetchesNoCopy { node: String, storage: StorageId },
    #[error("rewritten graph: {node} fetches a copy that was made before {updater} overwrote it")]
    FetchesStaleCopy { node: String, updater: String },
    #[error("rewritten graph: {node} is no transfer of {storage} and nothing else")]
    BadTransfer { node: String, storage: StorageId },
    #[error(
        "rewritten graph: {storage} is freed while it is moved; a wait for its transfers must be \
         its last use"
    )]
    FreedUnderTransfer { storage: StorageId },
    #[error("rewritten graph: {storage} lives in the store, and no output is its copy there")]
    NotStored { storage: StorageId },
    #[error("rewritten graph: its peak is {found} bytes, the plan promises {promised}",
        found = found.get(), promised = promised.get())]
    RewrittenPeak { promised: Bytes, found: Bytes },
}

/// Everything that is wrong with a plan; never empty. Its text names the first few.
#[derive(Clone, Debug, PartialEq)]
pub struct Violations(pub Vec<Violation>);

/// As many violations as a person reads; a long plan can have a million.
const NAMED: usize = 20;

impl std::fmt::Display for Violations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, violation) in self.0.iter().take(NAMED).enumerate() {
            let line = if i == 0 { "" } else { "\n" };
            write!(f, "{line}{violation}")?;
        }
        match self.0.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, "\n… and {more} more"),
        }
    }
}

impl std::error::Error for Violations {}
