//! A schedule as the page draws it: its runs, and from which run to which each storage is live.

use rekindle_graph::{Graph, Phase, Step, Timeline};
use rekindle_report::page::{DecisionRow, Schedule};

/// `steps` on `graph`. They must be replayable, as `timeline` shows.
pub(super) fn schedule(
    name: String,
    graph: &Graph,
    steps: &[Step],
    timeline: &Timeline,
    budget: Option<u64>,
    decisions: Vec<DecisionRow>,
) -> Schedule {
    let mut lives = Lives::new(graph);
    for step in steps {
        match *step {
            Step::Run(node) => lives.run(node),
            Step::Free(storage) => lives.free(storage.0),
        }
    }
    let lives = lives.finish();
    Schedule {
        name,
        budget,
        peak: timeline.peak.get(),
        seconds: timeline.time.seconds(),
        runs: lives.runs,
        scratch: lives.scratch,
        lives: lives.lives,
        decisions,
    }
}

/// The replay on its way.
struct Lives<'g> {
    graph: &'g Graph,
    runs: Vec<u32>,
    scratch: Vec<u64>,
    lives: Vec<[u32; 3]>,
    /// The run from which each storage is live now.
    since: Vec<Option<u32>>,
}

impl<'g> Lives<'g> {
    fn new(graph: &'g Graph) -> Lives<'g> {
        let mut since = vec![None; graph.storages().len()];
        let sources = graph.nodes().iter().filter(|n| n.phase == Phase::Input);
        for storage in sources.flat_map(|n| &n.writes) {
            since[storage.index()] = Some(0);
        }
        Lives {
            graph,
            runs: Vec::new(),
            scratch: Vec::new(),
            lives: Vec::new(),
            since,
        }
    }

    fn run(&mut self, id: rekindle_graph::NodeId) {
        let at = self.runs.len() as u32;
        let node = self.graph.node(id);
        // What is live already is written to scratch and dropped.
        let mut scratch = node.workspace;
        for &storage in &node.writes {
            match &mut self.since[storage.index()] {
                Some(_) => scratch += self.graph.storage(storage).bytes,
                none => *none = Some(at),
            }
        }
        self.runs.push(id.0);
        self.scratch.push(scratch.get());
    }

    fn free(&mut self, storage: u32) {
        let last = (self.runs.len() as u32).saturating_sub(1);
        if let Some(from) = self.since[storage as usize].take() {
            self.lives.push([storage, from, last]);
        }
    }

    fn finish(mut self) -> Self {
        for storage in 0..self.since.len() as u32 {
            self.free(storage);
        }
        self.lives.sort_unstable();
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_graph::{NodeId, StorageId};

    /// `f` makes s1 from the input s0 with 2 bytes of scratch, `b` reads both.
    const GRAPH: &str = r#"{"format": "remat.graph/1",
        "storages": [{"bytes": 1, "role": "input"}, {"bytes": 4, "role": "activation"}, {"bytes": 8, "role": "gradient"}],
        "nodes": [
        {"name": "x", "phase": "input", "time_us": 0, "reads": [], "writes": [0]},
        {"name": "f", "phase": "forward", "time_us": 1, "reads": [0], "writes": [1], "workspace_bytes": 2},
        {"name": "b", "phase": "backward", "time_us": 1, "reads": [0, 1], "writes": [2]}],
        "outputs": [2]}"#;

    #[test]
    fn lives_are_the_runs_between_making_and_freeing() {
        let graph = Graph::from_json(GRAPH).expect("a graph");
        let [f, b] = [1, 2].map(|n| Step::Run(NodeId(n)));
        let steps = [f, Step::Free(StorageId(1)), f, b, Step::Free(StorageId(1))];
        let timeline = Timeline::new(&graph, &steps).expect("it can be replayed");
        let schedule = schedule("s".into(), &graph, &steps, &timeline, None, Vec::new());
        assert_eq!(schedule.runs, [1, 1, 2]);
        assert_eq!(schedule.scratch, [2, 2, 0]);
        assert_eq!(schedule.lives, [[0, 0, 2], [1, 0, 0], [1, 1, 2], [2, 2, 2]]);
        // At b: the input, the activation and the gradient.
        assert_eq!(schedule.peak, 1 + 4 + 8);
    }

    #[test]
    fn a_copy_of_what_is_live_is_scratch() {
        let graph = Graph::from_json(GRAPH).expect("a graph");
        let steps = [1, 1, 2].map(|n| Step::Run(NodeId(n)));
        let timeline = Timeline::new(&graph, &steps).expect("it can be replayed");
        let schedule = schedule("s".into(), &graph, &steps, &timeline, None, Vec::new());
        assert_eq!(schedule.scratch, [2, 2 + 4, 0]);
        assert_eq!(schedule.lives, [[0, 0, 2], [1, 0, 2], [2, 2, 2]]);
    }
}
