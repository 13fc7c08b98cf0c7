//! The check itself: the three replays, and what the plan says about itself.

use rekindle_graph::{Bytes, Graph, Micros, Plan, StepId};

use crate::{Violation, Violations, bytes, times, values};

/// How far a stated time may lie from the replayed one, as a share of it: sums of floats depend on
/// their order, and another program may have rounded its own.
const TIME_TOLERANCE: f64 = 1e-6;

/// What the replay of a valid plan measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    /// The highest sum of live bytes, scratch and persistent storages included.
    pub peak: Bytes,
    /// The first step that reaches the peak; `None` if what is there from the start does.
    pub peak_step: Option<StepId>,
    /// When everything is over, transfers included.
    pub time: Micros,
    /// The most that the store held.
    pub store_peak: Bytes,
    /// How often each node ran; indexed by node.
    pub runs: Vec<u32>,
    /// How many runs were recomputations.
    pub recomputed: usize,
}

/// Whether a plan that says that it takes `said` may be the one whose replay takes `found`.
pub fn times_agree(said: Micros, found: Micros) -> bool {
    // False where a time is not a number.
    (said - found).get().abs() <= TIME_TOLERANCE * found.get()
}

/// Checks `plan` against `graph`.
///
/// # Errors
/// Every violation: by step, then those of the end of the step, then false statements.
pub fn verify(graph: &Graph, plan: &Plan) -> Result<Audit, Violations> {
    let replayed = values::replay(graph, &plan.schedule);
    let measured = bytes::measure(graph, &plan.schedule, plan.budget);
    let time = times::measure(graph, &plan.schedule);

    let mut by_step = replayed.at_steps;
    by_step.extend(measured.over_budget);
    by_step.sort_by_key(|&(step, _)| step);

    let mut found = Vec::new();
    if let Err(wrong) = plan.check_graph(graph) {
        found.push(Violation::WrongGraph(wrong));
    }
    if measured.peak_step.is_none() && measured.peak > plan.budget {
        found.push(Violation::StartOverBudget { bytes: measured.peak, budget: plan.budget });
    }
    found.extend(replayed.at_start);
    found.extend(by_step.into_iter().map(|(_, violation)| violation));
    found.extend(replayed.at_end);
    let limit = plan.schedule.store.and_then(|store| store.limit);
    if let Some(limit) = limit.filter(|&limit| measured.store_peak > limit) {
        let held = measured.store_peak;
        found.push(Violation::StoreOverLimit { held, limit });
    }
    if plan.peak != measured.peak {
        found.push(Violation::PeakMisstated { said: plan.peak, found: measured.peak });
    }
    if !times_agree(plan.time, time) {
        found.push(Violation::TimeMisstated { said: plan.time, found: time });
    }
    if !found.is_empty() {
        return Err(Violations(found));
    }
    let again = |&runs: &u32| runs.saturating_sub(1) as usize;
    Ok(Audit {
        peak: measured.peak,
        peak_step: measured.peak_step,
        store_peak: measured.store_peak,
        time,
        recomputed: replayed.runs.iter().map(again).sum(),
        runs: replayed.runs,
    })
}
