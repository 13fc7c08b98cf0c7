//! A schedule as the page draws it: its runs, and from which run to which each storage is live.

use rekindle_graph::{Graph, ScheduleError, Step, StorageId, replay};
use rekindle_report::page::{DecisionRow, Schedule};

/// `schedule` on `graph`.
///
/// # Errors
/// If it cannot be replayed.
pub(super) fn schedule(
    name: String,
    graph: &Graph,
    schedule: &rekindle_graph::Schedule,
    budget: Option<u64>,
    decisions: Vec<DecisionRow>,
) -> Result<Schedule, ScheduleError> {
    let mut drawn = Drawn::new(graph);
    let timeline = replay(graph, schedule, |moment| {
        let at = drawn.runs.len() as u32;
        for &storage in moment.claimed {
            drawn.since[storage.index()] = Some(at);
        }
        match moment.step {
            Step::Run(node) => {
                drawn.runs.push(node.0);
                drawn.scratch.push(moment.scratch.get());
            }
            Step::Free(storage) => drawn.free(storage),
            Step::Offload(_) | Step::Fetch(_) => {}
        }
    })?;
    graph.storage_ids().for_each(|storage| drawn.free(storage));
    drawn.lives.sort_unstable();
    Ok(Schedule {
        name,
        budget,
        peak: timeline.peak.get(),
        seconds: timeline.time.seconds(),
        runs: drawn.runs,
        scratch: drawn.scratch,
        lives: drawn.lives,
        decisions,
    })
}

/// What has been drawn so far.
struct Drawn {
    runs: Vec<u32>,
    scratch: Vec<u64>,
    lives: Vec<[u32; 3]>,
    /// The run from which each storage is live now.
    since: Vec<Option<u32>>,
}

impl Drawn {
    fn new(graph: &Graph) -> Drawn {
        let mut since = vec![None; graph.storages().len()];
        for storage in graph.sources() {
            since[storage.index()] = Some(0);
        }
        Drawn {
            runs: Vec::new(),
            scratch: Vec::new(),
            lives: Vec::new(),
            since,
        }
    }

    fn free(&mut self, storage: StorageId) {
        let last = (self.runs.len() as u32).saturating_sub(1);
        if let Some(from) = self.since[storage.index()].take() {
            self.lives.push([storage.0, from, last]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_graph::NodeId;

    /// `f` makes s1 from the input s0 with 2 bytes of scratch, `b` reads both.
    const GRAPH: &str = r#"{"format": "remat.graph/1",
        "storages": [{"bytes": 1, "role": "input"}, {"bytes": 4, "role": "activation"},
                     {"bytes": 8, "role": "gradient"}],
        "nodes": [
        {"name": "x", "phase": "input", "time_us": 0, "reads": [], "writes": [0]},
        {"name": "f", "phase": "forward", "time_us": 1, "reads": [0], "writes": [1],
         "workspace_bytes": 2},
        {"name": "b", "phase": "backward", "time_us": 1, "reads": [0, 1], "writes": [2]}],
        "outputs": [2]}"#;

    #[test]
    fn lives_are_the_runs_between_making_and_freeing() {
        let graph = Graph::from_json(GRAPH).expect("a graph");
        let [f, b] = [1, 2].map(|n| Step::Run(NodeId(n)));
        let steps = vec![f, Step::Free(StorageId(1)), f, b, Step::Free(StorageId(1))];
        let schedule = schedule("s".into(), &graph, &steps.into(), None, Vec::new());
        let schedule = schedule.expect("it can be replayed");
        assert_eq!(schedule.runs, [1, 1, 2]);
        assert_eq!(schedule.scratch, [2, 2, 0]);
        assert_eq!(schedule.lives, [[0, 0, 2], [1, 0, 0], [1, 1, 2], [2, 2, 2]]);
        // At b: the input, the activation and the gradient.
        assert_eq!(schedule.peak, 1 + 4 + 8);
    }

    #[test]
    fn a_copy_of_what_is_live_is_scratch() {
        let graph = Graph::from_json(GRAPH).expect("a graph");
        let steps = [1, 1, 2].map(|n| Step::Run(NodeId(n))).to_vec();
        let schedule = schedule("s".into(), &graph, &steps.into(), None, Vec::new());
        let schedule = schedule.expect("it can be replayed");
        assert_eq!(schedule.scratch, [2, 2 + 4, 0]);
        assert_eq!(schedule.lives, [[0, 0, 2], [1, 0, 2], [2, 2, 2]]);
    }
}
