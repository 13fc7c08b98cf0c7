//! The replay in bytes: what is live before, during and after each step.

use rekindle_graph::{Bytes, Graph, Micros, Phase, Step, StepId};

use crate::Violation;

/// What the replay in bytes measured.
pub(crate) struct Measured {
    pub(crate) peak: Bytes,
    /// The first step that reaches the peak; `None` if what is there from the start does.
    pub(crate) peak_step: Option<StepId>,
    pub(crate) time: Micros,
    pub(crate) over_budget: Vec<(StepId, Violation)>,
}

/// Replays `steps`. Steps that cannot be done as written count as far as they can be: the replay of
/// values reports them.
pub(crate) fn measure(graph: &Graph, steps: &[Step], budget: Bytes) -> Measured {
    let size = |s: usize| u128::from(graph.storages()[s].bytes.get());
    let mut live = vec![false; graph.storages().len()];
    // Sums of a damaged plan may pass 64 bits; 128 always hold them.
    let mut now: u128 = 0;
    for node in graph.nodes().iter().filter(|n| n.phase == Phase::Input) {
        for w in &node.writes {
            live[w.index()] = true;
            now += size(w.index());
        }
    }
    let (mut peak, mut peak_step, mut time) = (now, None, 0.0);
    let mut over_budget = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        let during = match *step {
            Step::Run(id) => {
                let Some(node) = graph.nodes().get(id.index()) else {
                    continue;
                };
                let mut scratch = u128::from(node.workspace.get());
                for w in &node.writes {
                    if live[w.index()] {
                        scratch += size(w.index());
                    } else {
                        live[w.index()] = true;
                        now += size(w.index());
                    }
                }
                time += node.time.get();
                now + scratch
            }
            Step::Free(storage) => {
                let before = now;
                if live.get(storage.index()) == Some(&true) {
                    live[storage.index()] = false;
                    now -= size(storage.index());
                }
                before
            }
            Step::Offload(_) | Step::Fetch(_) => continue,
        };
        let step = StepId::new(i);
        if during > peak {
            (peak, peak_step) = (during, Some(step));
        }
        // A free cannot raise memory: what it finds was reported at the run before it.
        if during > u128::from(budget.get()) && matches!(steps[i], Step::Run(_)) {
            let bytes = saturate(during);
            over_budget.push((
                step,
                Violation::OverBudget {
                    step,
                    bytes,
                    budget,
                },
            ));
        }
    }
    Measured {
        peak: saturate(peak),
        peak_step,
        time: Micros(time),
        over_budget,
    }
}

fn saturate(bytes: u128) -> Bytes {
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}
