//! A schedule as the page draws it: what runs when, in how many bytes, and from which run to which
//! each storage is live.

use rekindle_analysis::LAYERS;
use rekindle_graph::{Graph, Moment, ScheduleError, Step, StorageId, replay};
use rekindle_report::page::{DecisionRow, DrawnSchedule, Tensor};

/// `schedule` on `graph`, whose storages are `tensors`.
///
/// # Errors
/// If it cannot be replayed.
pub(super) fn schedule(
    name: String,
    graph: &Graph,
    tensors: &[Tensor],
    schedule: &rekindle_graph::Schedule,
    budget: Option<u64>,
    decisions: Vec<DecisionRow>,
) -> Result<DrawnSchedule, ScheduleError> {
    let page = DrawnSchedule {
        name,
        budget,
        peak: 0,
        peak_run: 0,
        seconds: 0.0,
        runs: Vec::new(),
        again: Vec::new(),
        start: Vec::new(),
        total: Vec::new(),
        layers: vec![Vec::new(); LAYERS.len()],
        lives: Vec::new(),
        decisions,
    };
    let mut drawn = Drawn::new(graph, tensors, page);
    let timeline = replay(graph, schedule, |moment| drawn.step(moment))?;
    graph.storage_ids().for_each(|storage| drawn.free(storage));
    let mut page = drawn.page;
    page.lives.sort_unstable();
    page.seconds = timeline.time.seconds();
    page.start.push(page.seconds);
    page.peak = timeline.peak.get();
    page.peak_run = page.total.iter().position(|&bytes| bytes == page.peak).unwrap_or(0);
    Ok(page)
}

/// What has been drawn so far.
struct Drawn<'t> {
    tensors: &'t [Tensor],
    page: DrawnSchedule,
    /// The run from which each storage is live now.
    since: Vec<Option<u32>>,
    /// The bytes of each layer now.
    now: Vec<u64>,
    ran: Vec<bool>,
}

impl<'t> Drawn<'t> {
    fn new(graph: &Graph, tensors: &'t [Tensor], page: DrawnSchedule) -> Drawn<'t> {
        let mut drawn = Drawn {
            tensors,
            page,
            since: vec![None; graph.storages().len()],
            now: vec![0; LAYERS.len()],
            ran: vec![false; graph.nodes().len()],
        };
        graph.sources().for_each(|storage| drawn.claim(storage));
        drawn
    }

    fn step(&mut self, moment: &Moment<'_>) {
        moment.claimed.iter().for_each(|&storage| self.claim(storage));
        match moment.step {
            Step::Run(node) => {
                let page = &mut self.page;
                page.runs.push(node.0);
                page.again.push(std::mem::replace(&mut self.ran[node.index()], true));
                page.start.push(moment.span.began.seconds());
                page.total.push(moment.during.get());
                for (layer, &now) in page.layers.iter_mut().zip(&self.now) {
                    layer.push(now);
                }
                // Scratch belongs to the last.
                if let Some(bytes) = page.layers.last_mut().and_then(|layer| layer.last_mut()) {
                    *bytes += moment.scratch.get();
                }
            }
            Step::Free(storage) => self.free(storage),
            Step::Offload(_) | Step::Fetch(_) => {}
        }
    }

    fn claim(&mut self, storage: StorageId) {
        self.since[storage.index()] = Some(self.page.runs.len() as u32);
        let tensor = &self.tensors[storage.index()];
        self.now[tensor.layer] += tensor.bytes;
    }

    fn free(&mut self, storage: StorageId) {
        let last = (self.page.runs.len() as u32).saturating_sub(1);
        if let Some(from) = self.since[storage.index()].take() {
            self.page.lives.push([storage.0, from, last]);
            let tensor = &self.tensors[storage.index()];
            self.now[tensor.layer] -= tensor.bytes;
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

    fn drawn(steps: Vec<Step>) -> DrawnSchedule {
        let graph = Graph::from_json(GRAPH).expect("a graph");
        let tensor = |id: StorageId| Tensor {
            name: graph.storage_name(id),
            bytes: graph.storage(id).bytes.get(),
            layer: id.index(),
        };
        let tensors: Vec<Tensor> = graph.storage_ids().map(tensor).collect();
        let drawn = schedule("s".into(), &graph, &tensors, &steps.into(), None, Vec::new());
        drawn.expect("it can be replayed")
    }

    #[test]
    fn lives_are_the_runs_between_making_and_freeing() {
        let [f, b] = [1, 2].map(|n| Step::Run(NodeId(n)));
        let steps = vec![f, Step::Free(StorageId(1)), f, b, Step::Free(StorageId(1))];
        let schedule = drawn(steps);
        assert_eq!(schedule.runs, [1, 1, 2]);
        assert_eq!(schedule.again, [false, true, false]);
        assert_eq!(schedule.start, [0.0, 1e-6, 2e-6, 3e-6]);
        assert_eq!(schedule.layers[..3], [[1, 1, 1], [4, 4, 4], [0, 0, 8]]);
        assert_eq!(schedule.layers[LAYERS.len() - 1], [2, 2, 0]);
        assert_eq!((schedule.total, schedule.peak_run), (vec![7, 7, 13], 2));
        assert_eq!(schedule.lives, [[0, 0, 2], [1, 0, 0], [1, 1, 2], [2, 2, 2]]);
        // At b: the input, the activation and the gradient.
        assert_eq!(schedule.peak, 1 + 4 + 8);
    }

    #[test]
    fn a_copy_of_what_is_live_is_scratch() {
        let steps = [1, 1, 2].map(|n| Step::Run(NodeId(n))).to_vec();
        let schedule = drawn(steps);
        assert_eq!(schedule.total, [7, 7 + 4, 13]);
        assert_eq!(schedule.lives, [[0, 0, 2], [1, 0, 2], [2, 2, 2]]);
    }
}
