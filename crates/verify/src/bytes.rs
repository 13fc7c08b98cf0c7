//! The replay in bytes: what is live before, during and after each step, and what the store holds.

use rekindle_graph::{Bytes, Graph, Schedule, Step, StepId};

use crate::Violation;

/// What the replay in bytes measured.
pub(crate) struct CountedBytes {
    pub(crate) peak: Bytes,
    /// The first step that reaches the peak; `None` if what is there from the start does.
    pub(crate) peak_step: Option<StepId>,
    /// The most that the store held.
    pub(crate) store_peak: Bytes,
    pub(crate) over_budget: Vec<(StepId, Violation)>,
}

/// Replays `schedule`. Steps that cannot be done as written count as far as they can be: the replay
/// of values reports them.
pub(crate) fn measure(graph: &Graph, schedule: &Schedule, budget: Bytes) -> CountedBytes {
    let size = |s: usize| u128::from(graph.storages()[s].bytes.get());
    let count = graph.storages().len();
    // Sums of a damaged plan may pass 64 bits; 128 always hold them.
    let (mut now, mut held) = (0u128, 0u128);
    let mut lives_there = vec![false; count];
    for s in schedule.stored_at_start.iter().map(|s| s.index()) {
        if s < count && !std::mem::replace(&mut lives_there[s], true) {
            held += size(s);
        }
    }
    let mut stored = lives_there.clone();
    let mut live = vec![false; count];
    for s in graph.sources().map(|s| s.index()) {
        if !lives_there[s] {
            live[s] = true;
            now += size(s);
        }
    }
    let (mut peak, mut peak_step, mut most_held) = (now, None, held);
    let mut fetches = fetches(schedule, count);
    let mut over_budget = Vec::new();
    for (i, step) in schedule.steps.iter().enumerate() {
        let mut during = now;
        match *step {
            Step::Run(id) => {
                let Some(node) = graph.nodes().get(id.index()) else {
                    continue;
                };
                let mut scratch = u128::from(node.workspace.get());
                for w in node.writes.iter().map(|w| w.index()) {
                    match std::mem::replace(&mut live[w], true) {
                        true => scratch += size(w),
                        false => now += size(w),
                    }
                }
                // What was copied is not what it is now: the room in the store is free again.
                for u in node.updates.iter().map(|u| u.index()) {
                    if stored[u] && !lives_there[u] {
                        stored[u] = false;
                        held -= size(u);
                    }
                }
                during = now + scratch;
            }
            Step::Free(storage) => {
                let s = storage.index();
                if live.get(s) == Some(&true) {
                    live[s] = false;
                    now -= size(s);
                    if stored[s] && !lives_there[s] && fetches[s] == 0 {
                        stored[s] = false;
                        held -= size(s);
                    }
                }
            }
            Step::Offload(storage) => {
                let s = storage.index();
                if live.get(s) == Some(&true) && !std::mem::replace(&mut stored[s], true) {
                    held += size(s);
                    most_held = most_held.max(held);
                }
            }
            Step::Fetch(storage) => {
                let s = storage.index();
                if let Some(live) = live.get_mut(s) {
                    fetches[s] -= 1;
                    if !std::mem::replace(live, true) {
                        now += size(s);
                    }
                }
                during = now;
            }
        }
        let step = StepId::new(i);
        if during > peak {
            (peak, peak_step) = (during, Some(step));
        }
        // A free and an offload cannot raise memory: what they find was reported before them.
        let raises = matches!(schedule.steps[i], Step::Run(_) | Step::Fetch(_));
        if during > u128::from(budget.get()) && raises {
            let bytes = saturate(during);
            over_budget.push((step, Violation::OverBudget { step, bytes, budget }));
        }
    }
    CountedBytes { peak: saturate(peak), peak_step, store_peak: saturate(most_held), over_budget }
}

/// How often each storage is fetched.
fn fetches(schedule: &Schedule, count: usize) -> Vec<u32> {
    let mut fetches = vec![0; count];
    for step in &schedule.steps {
        if let Step::Fetch(storage) = step
            && let Some(fetches) = fetches.get_mut(storage.index())
        {
            *fetches += 1;
        }
    }
    fetches
}

fn saturate(bytes: u128) -> Bytes {
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}
