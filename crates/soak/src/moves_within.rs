//! The simplest schedule that keeps to a budget by moving alone: whatever may live in the store
//! does, what is needed is fetched when it is, and what is needed last leaves first (Belady's
//! rule).
//!
//! It overlaps nothing and is no planner: tests of what runs such schedules need one that does not
//! depend on a planner.

use rekindle_graph::{
    Bytes, Graph, NodeId, Phase, Plan, Role, Schedule, Step, StorageId, Store, Timeline,
};

/// A plan of `graph` whose peak is at most `budget`, in which nothing runs twice; `None` if a node
/// alone, with what cannot be moved beside it, needs more.
///
/// # Panics
/// If the schedule cannot be replayed, which would be a fault of this file.
pub fn moves_within(graph: &Graph, budget: Bytes, store: Store) -> Option<Plan> {
    let mut walk = Walk::new(graph, budget, store);
    for id in graph.natural_order() {
        walk.run(id)?;
    }
    let schedule = walk.finish()?;
    let timeline = Timeline::new(graph, &schedule).expect("the walk knows the rules");
    assert!(timeline.peak <= budget, "{} in {budget}", timeline.peak);
    Some(Plan {
        graph: graph.name().into(),
        digest: Some(graph.digest()),
        strategy: None,
        budget,
        peak: timeline.peak,
        time: timeline.time,
        schedule,
    })
}

struct Walk<'g> {
    graph: &'g Graph,
    budget: Bytes,
    schedule: Schedule,
    live: Vec<bool>,
    /// Whether the store has a copy that is not stale.
    copied: Vec<bool>,
    now: Bytes,
    is_output: Vec<bool>,
}

impl<'g> Walk<'g> {
    fn new(graph: &'g Graph, budget: Bytes, store: Store) -> Walk<'g> {
        let count = graph.storages().len();
        let mut walk = Walk {
            graph,
            budget,
            schedule: Schedule { store: Some(store), ..Schedule::default() },
            live: vec![false; count],
            copied: vec![false; count],
            now: Bytes::ZERO,
            is_output: vec![false; count],
        };
        graph.outputs().iter().for_each(|s| walk.is_output[s.index()] = true);
        for s in graph.sources() {
            match walk.role(s).may_be_stored() {
                true => {
                    walk.copied[s.index()] = true;
                    walk.schedule.stored_at_start.push(s);
                }
                false => walk.claim(s),
            }
        }
        walk
    }

    fn role(&self, s: StorageId) -> Role {
        self.graph.storage(s).role
    }

    fn claim(&mut self, s: StorageId) {
        if !std::mem::replace(&mut self.live[s.index()], true) {
            self.now += self.graph.storage(s).bytes;
        }
    }

    fn free(&mut self, s: StorageId) {
        self.schedule.steps.push(Step::Free(s));
        self.live[s.index()] = false;
        self.now -= self.graph.storage(s).bytes;
    }

    fn offload(&mut self, s: StorageId) {
        if !std::mem::replace(&mut self.copied[s.index()], true) {
            self.schedule.steps.push(Step::Offload(s));
        }
    }

    fn run(&mut self, id: NodeId) -> Option<()> {
        let node = self.graph.node(id);
        let operands = || node.reads.iter().chain(&node.writes).copied();
        let missing: Vec<StorageId> = operands().filter(|s| !self.live[s.index()]).collect();
        let bytes: Bytes = missing.iter().map(|&s| self.graph.storage(s).bytes).sum();
        self.make_room(bytes + node.workspace, id)?;
        for &s in node.reads.iter().filter(|s| missing.contains(s)) {
            self.schedule.steps.push(Step::Fetch(s));
        }
        missing.into_iter().for_each(|s| self.claim(s));
        self.schedule.steps.push(Step::Run(id));
        for u in &node.updates {
            self.copied[u.index()] = false;
        }
        for s in operands() {
            let is_kept = self.role(s).is_persistent() || self.is_output[s.index()];
            if self.next_use(s, id).is_none() && !is_kept {
                self.free(s);
            }
        }
        Some(())
    }

    fn make_room(&mut self, bytes: Bytes, at: NodeId) -> Option<()> {
        while self.now + bytes > self.budget {
            let node = self.graph.node(at);
            let idle = |s: &StorageId| self.live[s.index()] && !node.reads.contains(s);
            let last = self.graph.storage_ids().filter(idle).max_by_key(|&s| {
                let next = self.next_use(s, at).unwrap_or(NodeId(u32::MAX));
                (next, self.graph.storage(s).bytes)
            })?;
            self.offload(last);
            self.free(last);
        }
        Some(())
    }

    fn next_use(&self, s: StorageId, at: NodeId) -> Option<NodeId> {
        let readers = self.graph.readers(s);
        readers.get(readers.partition_point(|&r| r <= at)).copied()
    }

    /// What lives in the store goes there; then everything else is back in memory.
    fn finish(mut self) -> Option<Schedule> {
        for s in self.schedule.stored_at_start.clone() {
            if self.live[s.index()] {
                self.offload(s);
                self.free(s);
            }
        }
        for s in self.graph.storage_ids() {
            let is_source = self.graph.node(self.graph.writer(s)).phase == Phase::Input;
            let stays = is_source && self.role(s).is_persistent() || self.is_output[s.index()];
            let lives_there = is_source && self.role(s).may_be_stored();
            if stays && !lives_there && !self.live[s.index()] {
                self.schedule.steps.push(Step::Fetch(s));
                self.claim(s);
            }
        }
        (self.now <= self.budget).then_some(self.schedule)
    }
}
