//! A schedule as the page draws it: what runs when, in how many bytes, from which run to which each
//! storage is live, and what goes to a store and back meanwhile.

use rekindle_analysis::{Awaiting, Direction, LAYERS, Transfers, transfers};
use rekindle_graph::{Graph, Moment, ScheduleError, Step, StorageId, replay};
use rekindle_report::page::{
    DecisionRow, DrawnCopy, DrawnSchedule, DrawnTransfers, DrawnWait, Tensor,
};

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
        transfers: drawn_transfers(graph, tensors, schedule)?,
    };
    let mut drawn = Drawn::new(graph, tensors, schedule, page);
    let timeline = replay(graph, schedule, |moment| drawn.step(moment))?;
    drawn.end();
    let mut page = drawn.page;
    page.lives.sort_unstable();
    page.seconds = timeline.time.seconds();
    page.start.push(page.seconds);
    page.peak = timeline.peak.get();
    page.peak_run = page.total.iter().position(|&bytes| bytes == page.peak).unwrap_or(0);
    Ok(page)
}

/// What `schedule` moves; `None` if nothing.
fn drawn_transfers(
    graph: &Graph,
    tensors: &[Tensor],
    schedule: &rekindle_graph::Schedule,
) -> Result<Option<DrawnTransfers>, ScheduleError> {
    let Some(found) = transfers(graph, schedule)? else {
        return Ok(None);
    };
    let name = |storage: StorageId| &tensors[storage.index()].name;
    let about = |before: Awaiting| match before {
        Awaiting::Run(node) => {
            format!("{} waits for what it reads or updates", graph.node(node).name)
        }
        Awaiting::Free(storage) => format!("the bytes of {} are still being copied", name(storage)),
        Awaiting::End => "everything has run; the last copies end".into(),
    };
    let wait = |wait: &rekindle_analysis::Wait| DrawnWait {
        began: wait.span.began.seconds(),
        ended: wait.span.ended.seconds(),
        about: about(wait.before),
    };
    Ok(Some(DrawnTransfers {
        store: schedule.store.map_or_else(String::new, |store| store.to_string()),
        moved_out: found.moved_out.get(),
        moved_in: found.moved_in.get(),
        store_peak: found.store_peak.get(),
        stored_at_start: found.stored_at_start.get(),
        hidden_seconds: found.hidden.seconds(),
        waited_seconds: found.waited.seconds(),
        out: copies(&found, Direction::Out),
        back: copies(&found, Direction::In),
        waits: found.waits.iter().map(wait).collect(),
    }))
}

fn copies(found: &Transfers, direction: Direction) -> Vec<DrawnCopy> {
    let copies = found.copies.iter().filter(|copy| copy.direction == direction);
    let drawn = copies.map(|copy| DrawnCopy {
        tensor: copy.storage.0,
        began: copy.span.began.seconds(),
        ended: copy.span.ended.seconds(),
    });
    drawn.collect()
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
    /// The highest bytes after a fetch since the last run, in all and of each layer.
    fetched: Option<(u64, Vec<u64>)>,
}

impl<'t> Drawn<'t> {
    fn new(
        graph: &Graph,
        tensors: &'t [Tensor],
        schedule: &rekindle_graph::Schedule,
        page: DrawnSchedule,
    ) -> Drawn<'t> {
        let mut drawn = Drawn {
            tensors,
            page,
            since: vec![None; graph.storages().len()],
            now: vec![0; LAYERS.len()],
            ran: vec![false; graph.nodes().len()],
            fetched: None,
        };
        let mut stored = vec![false; graph.storages().len()];
        schedule.stored_at_start.iter().for_each(|storage| stored[storage.index()] = true);
        let in_memory = |storage: &StorageId| !stored[storage.index()];
        graph.sources().filter(in_memory).for_each(|storage| drawn.claim(storage));
        drawn
    }

    /// What is live now is live to the end.
    fn end(&mut self) {
        let last = self.page.runs.len().saturating_sub(1);
        self.count_fetched(last);
        (0..self.since.len()).for_each(|storage| self.free(StorageId::new(storage)));
    }

    /// Counts what was fetched since the run before as part of `run`, where that is more.
    fn count_fetched(&mut self, run: usize) {
        let page = &mut self.page;
        if let Some((total, layers)) = self.fetched.take()
            && page.total.get(run).is_some_and(|&bytes| bytes < total)
        {
            page.total[run] = total;
            for (layer, bytes) in page.layers.iter_mut().zip(layers) {
                layer[run] = bytes;
            }
        }
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
                let run = page.runs.len() - 1;
                self.count_fetched(run);
            }
            Step::Free(storage) => self.free(storage),
            Step::Fetch(_) => {
                let bytes = moment.during.get();
                if self.fetched.as_ref().is_none_or(|(most, _)| *most < bytes) {
                    self.fetched = Some((bytes, self.now.clone()));
                }
            }
            Step::Offload(_) => {}
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
    use rekindle_graph::{NodeId, Schedule};

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
        drawn_of(GRAPH, &steps.into())
    }

    fn drawn_of(graph: &str, of: &Schedule) -> DrawnSchedule {
        let graph = Graph::from_json(graph).expect("a graph");
        let tensor = |id: StorageId| Tensor {
            name: graph.storage_name(id),
            bytes: graph.storage(id).bytes.get(),
            layer: id.index(),
        };
        let tensors: Vec<Tensor> = graph.storage_ids().map(tensor).collect();
        let drawn = schedule("s".into(), &graph, &tensors, of, None, Vec::new());
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
    fn what_is_moved_is_live_again_from_its_fetch() {
        let [f, b] = [1, 2].map(|n| Step::Run(NodeId(n)));
        let s1 = StorageId(1);
        let steps = vec![f, Step::Offload(s1), Step::Free(s1), Step::Fetch(s1), b];
        let store = rekindle_graph::parse_store("out=2MB/s,in=4MB/s").expect("a store");
        let moving = Schedule { steps, store: Some(store), stored_at_start: Vec::new() };
        let schedule = drawn_of(GRAPH, &moving);
        // Out from 1 to 3, while nothing runs; back from 3 to 4, which b waits for.
        assert_eq!(schedule.start, [0.0, 4e-6, 5e-6]);
        assert_eq!(schedule.lives, [[0, 0, 1], [1, 0, 0], [1, 1, 1], [2, 1, 1]]);
        let transfers = schedule.transfers.expect("it moves");
        assert_eq!(transfers.out, [DrawnCopy { tensor: 1, began: 1e-6, ended: 3e-6 }]);
        assert_eq!(transfers.back, [DrawnCopy { tensor: 1, began: 3e-6, ended: 4e-6 }]);
        assert_eq!(transfers.waits.len(), 2);
        assert!(transfers.waits[1].about.starts_with("b waits"), "{:?}", transfers.waits[1]);
        assert_eq!((transfers.moved_out, transfers.moved_in), (4, 4));
    }

    #[test]
    fn what_is_fetched_and_freed_between_two_runs_counts_as_part_of_the_next() {
        // A parameter of 100 bytes lives in the store, and comes by without being read.
        let graph = GRAPH
            .replace(
                r#""role": "gradient"}"#,
                r#""role": "gradient"}, {"bytes": 100,
                     "role": "parameter"}"#,
            )
            .replace(r#""writes": [0]}"#, r#""writes": [0, 3]}"#);
        let [f, b] = [1, 2].map(|n| Step::Run(NodeId(n)));
        let w = StorageId(3);
        let steps = vec![f, Step::Fetch(w), Step::Free(w), b];
        let store = rekindle_graph::parse_store("out=2MB/s,in=4MB/s").expect("a store");
        let moving = Schedule { steps, store: Some(store), stored_at_start: vec![w] };
        let schedule = drawn_of(&graph, &moving);
        assert_eq!(schedule.total, [7, 1 + 4 + 100]);
        assert_eq!(schedule.layers[3], [0, 100]);
        assert_eq!((schedule.peak, schedule.peak_run), (105, 1));
        assert_eq!(schedule.transfers.expect("it moves").stored_at_start, 100);
    }

    #[test]
    fn a_copy_of_what_is_live_is_scratch() {
        let steps = [1, 1, 2].map(|n| Step::Run(NodeId(n))).to_vec();
        let schedule = drawn(steps);
        assert_eq!(schedule.total, [7, 7 + 4, 13]);
        assert_eq!(schedule.lives, [[0, 0, 2], [1, 0, 2], [2, 2, 2]]);
    }
}
