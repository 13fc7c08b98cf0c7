//! The byte timeline: how many bytes are live at each step of a schedule.

use crate::{Bytes, Effect, Graph, Micros, NodeId, Phase, ScheduleError, Step, StepId, StorageId};

/// The replay of a schedule on a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Highest bytes during each step, scratch included. As long as the schedule.
    pub during: Vec<Bytes>,
    /// Bytes live after each step. As long as the schedule.
    pub after: Vec<Bytes>,
    /// Bytes live before the first step.
    pub start: Bytes,
    /// The highest of `start` and `during`.
    pub peak: Bytes,
    /// The first step that reaches the peak; `None` if `start` does.
    pub peak_step: Option<StepId>,
    /// The sum of the times of all runs, in schedule order.
    pub time: Micros,
    /// How often each node ran; indexed by node.
    pub runs: Vec<u32>,
}

impl Timeline {
    /// Replays `steps`.
    ///
    /// # Errors
    /// The first step that cannot be done, or what is missing at the end.
    pub fn new(graph: &Graph, steps: &[Step]) -> Result<Timeline, ScheduleError> {
        let mut replay = Replay::new(graph, steps.len());
        for (i, &step) in steps.iter().enumerate() {
            match step {
                Step::Run(node) => replay.run(StepId::new(i), node)?,
                Step::Free(storage) => replay.free(StepId::new(i), storage)?,
            }
        }
        replay.finish()
    }

    /// The timeline of the plain step: every node once, in the graph's own order.
    pub fn natural(graph: &Graph) -> Timeline {
        Timeline::new(graph, &crate::with_frees(graph, &graph.natural_order()))
            .expect("a checked graph's own order can be replayed")
    }

    /// How many runs were recomputations.
    pub fn recomputed(&self) -> usize {
        self.runs
            .iter()
            .map(|&r| r.saturating_sub(1) as usize)
            .sum()
    }
}

struct Replay<'g> {
    graph: &'g Graph,
    live: Vec<bool>,
    now: Bytes,
    timeline: Timeline,
}

impl<'g> Replay<'g> {
    fn new(graph: &'g Graph, steps: usize) -> Replay<'g> {
        let mut live = vec![false; graph.storages().len()];
        let mut now = Bytes::ZERO;
        for node in graph.nodes().iter().filter(|n| n.phase == Phase::Input) {
            for w in &node.writes {
                live[w.index()] = true;
                now += graph.storage(*w).bytes;
            }
        }
        let timeline = Timeline {
            during: Vec::with_capacity(steps),
            after: Vec::with_capacity(steps),
            start: now,
            peak: now,
            peak_step: None,
            time: Micros::ZERO,
            runs: vec![0; graph.nodes().len()],
        };
        Replay {
            graph,
            live,
            now,
            timeline,
        }
    }

    fn run(&mut self, step: StepId, id: NodeId) -> Result<(), ScheduleError> {
        let Some(node) = self.graph.nodes().get(id.index()) else {
            return Err(ScheduleError::UnknownNode { step, node: id });
        };
        let name = || node.name.clone();
        if node.phase == Phase::Input {
            return Err(ScheduleError::RunsInput { step, name: name() });
        }
        if node.effect == Effect::Once && self.timeline.runs[id.index()] > 0 {
            return Err(ScheduleError::RunsAgain { step, name: name() });
        }
        for &storage in &node.reads {
            if !self.live[storage.index()] {
                return Err(ScheduleError::ReadsDead {
                    step,
                    name: name(),
                    storage,
                });
            }
            if let Some(updater) = self.graph.updater(storage)
                && self.timeline.runs[updater.index()] > 0
            {
                let updater = self.graph.node(updater).name.clone();
                return Err(ScheduleError::ReadsUpdated {
                    step,
                    name: name(),
                    storage,
                    updater,
                });
            }
        }
        // An output that is still live is written to scratch and dropped.
        let mut scratch = node.workspace;
        for &w in &node.writes {
            let bytes = self.graph.storage(w).bytes;
            if std::mem::replace(&mut self.live[w.index()], true) {
                scratch += bytes;
            } else {
                self.now += bytes;
            }
        }
        self.timeline.runs[id.index()] += 1;
        self.timeline.time += node.time;
        self.record(step, self.now + scratch);
        Ok(())
    }

    fn free(&mut self, step: StepId, storage: StorageId) -> Result<(), ScheduleError> {
        let Some(block) = self.graph.storages().get(storage.index()) else {
            return Err(ScheduleError::UnknownStorage { step, storage });
        };
        if !self.live[storage.index()] {
            return Err(ScheduleError::FreesDead { step, storage });
        }
        if block.role.is_persistent() {
            return Err(ScheduleError::FreesPersistent { step, storage });
        }
        let before = self.now;
        self.live[storage.index()] = false;
        self.now -= block.bytes;
        self.record(step, before);
        Ok(())
    }

    fn record(&mut self, step: StepId, highest: Bytes) {
        self.timeline.during.push(highest);
        self.timeline.after.push(self.now);
        if highest > self.timeline.peak {
            self.timeline.peak = highest;
            self.timeline.peak_step = Some(step);
        }
    }

    fn finish(self) -> Result<Timeline, ScheduleError> {
        if let Some(&storage) = self.graph.outputs().iter().find(|s| !self.live[s.index()]) {
            return Err(ScheduleError::OutputDead { storage });
        }
        let never = |t: &&NodeId| self.timeline.runs[t.index()] == 0;
        if let Some(target) = self.graph.targets().iter().find(never) {
            return Err(ScheduleError::TargetNeverRan {
                name: self.graph.node(*target).name.clone(),
            });
        }
        Ok(self.timeline)
    }
}
