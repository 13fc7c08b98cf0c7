//! What the report shows, as plain data. Field names are the names in the document's data.

use rekindle_analysis::gtype;
use rekindle_graph::Phase;
use serde::{Serialize, Serializer};

use super::training::TrainingRun;

/// Everything in one report.
#[derive(Clone, Debug, Serialize)]
pub struct Page {
    /// The document's title.
    pub title: String,
    /// Which version of the tool made it.
    pub version: String,
    /// The training steps, one tab each.
    pub steps: Vec<StepReport>,
    /// Measured comparisons, one row for each model and batch size.
    pub comparisons: Vec<Comparison>,
    /// The curves of training runs.
    pub training: Vec<TrainingRun>,
    /// What is not there, and how to make it.
    pub missing: Vec<Missing>,
}

/// A part of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// Live bytes over the step.
    Memory,
    /// Time against peak.
    Frontier,
    /// The table of activations.
    Activations,
    /// Statistics of the profile.
    Profile,
    /// Peak and latency against batch size.
    Batches,
}

/// Something that a section would show if it were there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Which part lacks it.
    pub section: Section,
    /// Of which step, by index; `None` if of all.
    pub step: Option<usize>,
    /// What is missing, as a phrase: `the frontier`.
    pub what: String,
    /// The command that makes it; `None` if none can.
    pub command: Option<String>,
}

/// One training step.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// What the tab says.
    pub name: String,
    /// The model's name, as comparisons have it.
    pub model: String,
    /// Samples in a batch, where known.
    pub batch: Option<usize>,
    /// In the order in which they run in the plain step; sources that never run included.
    pub nodes: Vec<NodeRow>,
    /// Names of the groups that bytes are stacked in, from the bottom to the top. Scratch belongs
    /// to the last.
    pub layers: Vec<String>,
    /// Everything that holds bytes.
    pub tensors: Vec<Tensor>,
    /// The plain step first, then the plans.
    pub schedules: Vec<DrawnSchedule>,
    /// Without a store. Ascending by peak.
    pub frontier: Vec<FrontierPoint>,
    /// The point of `frontier` below which less memory costs much; `None` where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knee: Option<usize>,
    /// With a store; `None` where there is none. Ascending by peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_frontier: Option<StoredFrontier>,
    /// Plans of other methods, to be shown beside the frontier.
    pub beside: Vec<Beside>,
    /// In the order in which they are made.
    pub activations: Vec<ActivationRow>,
}

/// A node of the step.
#[derive(Clone, Debug, Serialize)]
pub struct NodeRow {
    /// Its name.
    pub name: String,
    /// What it computes.
    pub op: String,
    /// Its part of the step; `None` where that is not known.
    #[serde(serialize_with = "phase_word")]
    pub phase: Option<Phase>,
    /// The seconds of one run.
    pub seconds: f64,
}

/// Writes the word for a phase.
fn phase_word<S: Serializer>(phase: &Option<Phase>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(if phase.is_some() { gtype(*phase) } else { "other" })
}

fn is_zero(times: &u32) -> bool {
    *times == 0
}

/// A block of bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Index in [`StepReport::layers`].
    pub layer: usize,
}

/// An order in which nodes run, and how long each tensor is live in it.
#[derive(Clone, Debug, Serialize)]
pub struct DrawnSchedule {
    /// What it is called: `plain`, or the plan's strategy and budget.
    pub name: String,
    /// What the step may use; `None` for the plain step.
    pub budget: Option<u64>,
    /// The highest bytes at any run.
    pub peak: u64,
    /// The first run that reaches them.
    pub peak_run: usize,
    /// How long the step takes.
    pub seconds: f64,
    /// The node of each run.
    pub runs: Vec<u32>,
    /// Whether each run is a recomputation.
    pub again: Vec<bool>,
    /// When each run begins, in seconds, and when all is done: one more than there are runs.
    pub start: Vec<f64>,
    /// The highest bytes during each run, and during what was fetched since the run before it.
    pub total: Vec<u64>,
    /// The same for each of [`StepReport::layers`]; they add up to `total`.
    pub layers: Vec<Vec<u64>>,
    /// Tensor, first run and last run in which it is live. A tensor that is made again has several.
    pub lives: Vec<[u32; 3]>,
    /// As long as [`StepReport::activations`], or empty for the plain step.
    pub decisions: Vec<DecisionRow>,
    /// What goes to a store and comes back; `None` where nothing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfers: Option<DrawnTransfers>,
}

/// What a schedule moves to a store and back, and when. Times are seconds since the step began.
#[derive(Clone, Debug, Serialize)]
pub struct DrawnTransfers {
    /// The store, as it is typed.
    pub store: String,
    /// Bytes that go out.
    pub moved_out: u64,
    /// Bytes that come back.
    pub moved_in: u64,
    /// The most that the store holds.
    pub store_peak: u64,
    /// Bytes that live in the store between training steps.
    pub stored_at_start: u64,
    /// How long something is copied while nodes run.
    pub hidden_seconds: f64,
    /// How long something is copied while nothing runs.
    pub waited_seconds: f64,
    /// In the order of time; one after another.
    pub out: Vec<DrawnCopy>,
    /// In the order of time; one after another.
    #[serde(rename = "in")]
    pub back: Vec<DrawnCopy>,
    /// When nothing runs, in the order of time.
    pub waits: Vec<DrawnWait>,
}

/// One copy of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DrawnCopy {
    /// Index in [`StepReport::tensors`].
    pub tensor: u32,
    /// When it begins.
    pub began: f64,
    /// When it ends.
    pub ended: f64,
}

/// A time in which nothing runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DrawnWait {
    /// When it begins.
    pub began: f64,
    /// When it ends.
    pub ended: f64,
    /// What is waited for, as a sentence.
    pub about: String,
}

/// A point of the trade-off between peak and time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FrontierPoint {
    /// What was asked for.
    pub budget: u64,
    /// What was reached.
    pub peak: u64,
    /// Of the step, in seconds.
    pub seconds: f64,
    /// No plan under the budget is faster.
    pub bound_seconds: f64,
    /// How many runs are recomputations.
    pub recomputed: u64,
    /// Bytes that are moved out and in; `None` where there is no store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved: Option<u64>,
}

/// The trade-off where storages can be moved, too.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoredFrontier {
    /// The store, as it is typed.
    pub store: String,
    /// Ascending by peak.
    pub points: Vec<FrontierPoint>,
    /// As [`StepReport::knee`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knee: Option<usize>,
}

/// A plan of another method.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    /// The method.
    pub name: String,
    /// What it is, in a sentence.
    pub about: String,
    /// Its peak.
    pub peak: u64,
    /// Of the step, in seconds.
    pub seconds: f64,
}

/// An activation and the numbers that decide about it.
#[derive(Clone, Debug, Serialize)]
pub struct ActivationRow {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Rank of its maker.
    pub created: u32,
    /// Rank of its first backward use.
    pub first_backward: Option<u32>,
    /// From its last forward to its first backward use.
    pub inactive_seconds: Option<f64>,
    /// To make it again from what is kept; `None` where it cannot be.
    pub recompute_seconds: Option<f64>,
    /// To copy it out of the way and back.
    pub swap_seconds: Option<f64>,
}

/// What a plan does with an activation.
#[derive(Clone, Debug, Serialize)]
pub struct DecisionRow {
    /// How often it is made again; 0 if it is kept or moved.
    pub recomputed: u32,
    /// How often it comes back from the store; 0 if it is not moved.
    #[serde(skip_serializing_if = "is_zero")]
    pub moved: u32,
    /// Why.
    pub reason: String,
    /// Time that the plan spends on making it again.
    pub spent_seconds: f64,
}

/// The plain step and the planned one at one batch size, measured.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The model's name.
    pub model: String,
    /// Samples in a batch.
    pub batch: usize,
    /// What the planned step could use.
    pub budget: u64,
    /// The plain step's.
    pub plain_peak: u64,
    /// The planned step's, predicted before it ran.
    pub predicted_peak: Option<u64>,
    /// The planned step's, measured.
    pub planned_peak: Option<u64>,
    /// Of a plain step.
    pub plain_seconds: Option<f64>,
    /// Of a planned step.
    pub planned_seconds: Option<f64>,
    /// What the plan predicted, as a share of the plain step's time.
    pub predicted_overhead: Option<f64>,
    /// Whether every number was compared with the plain step's and had the same bits.
    pub bit_equal: bool,
    /// What a reader must know beside the numbers.
    pub remark: String,
}
