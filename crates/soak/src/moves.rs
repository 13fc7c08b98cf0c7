//! Random schedules that recompute and move, valid by construction and of no use: nothing here
//! knows what a planner would do.
//!
//! The nodes run in the graph's own order. Between them storages are copied to the store, freed
//! where there is a copy or where they can be made again, and fetched or made again, some before
//! they are needed. A random part of what may live in the store does.

use rekindle_graph::{
    Bytes, Effect, Graph, Micros, NodeId, Phase, Plan, Rate, Schedule, Step, StorageId, Store,
    Timeline,
};

use crate::random::Random;

/// A plan of `graph` that recomputes and moves at random; the same seed gives the same plan.
///
/// # Panics
/// If the schedule cannot be replayed, which would be a fault of this file.
pub fn random_moves(graph: &Graph, seed: u64) -> Plan {
    let mut walk = Walk::new(graph, Random::new(seed));
    for id in graph.natural_order() {
        walk.prefetch();
        walk.run(id);
        walk.copy_and_free();
    }
    let schedule = walk.finish();
    let timeline = Timeline::new(graph, &schedule).expect("the walk knows the rules");
    Plan {
        graph: graph.name().into(),
        digest: Some(graph.digest()),
        strategy: None,
        budget: timeline.peak,
        peak: timeline.peak,
        time: timeline.time,
        schedule,
    }
}

struct Walk<'g> {
    graph: &'g Graph,
    random: Random,
    schedule: Schedule,
    lives_there: Vec<bool>,
    live: Vec<bool>,
    /// Whether the store has a copy that is not stale.
    copied: Vec<bool>,
    /// Whether it can be made again at any time.
    can_be_remade: Vec<bool>,
    /// Runs of the graph's own order that still read it.
    reads_left: Vec<usize>,
    is_output: Vec<bool>,
}

impl<'g> Walk<'g> {
    fn new(graph: &'g Graph, mut random: Random) -> Walk<'g> {
        let count = graph.storages().len();
        let mut is_output = vec![false; count];
        graph.outputs().iter().for_each(|s| is_output[s.index()] = true);
        let mut live = vec![false; count];
        let mut lives_there = vec![false; count];
        let mut schedule = Schedule { store: Some(store(&mut random)), ..Schedule::default() };
        for s in graph.sources() {
            let stored = graph.storage(s).role.may_be_stored() && random.chance(50);
            live[s.index()] = !stored;
            lives_there[s.index()] = stored;
            schedule.stored_at_start.extend(stored.then_some(s));
        }
        Walk {
            graph,
            random,
            schedule,
            copied: lives_there.clone(),
            lives_there,
            live,
            can_be_remade: can_be_remade(graph),
            reads_left: graph.storage_ids().map(|s| graph.readers(s).len()).collect(),
            is_output,
        }
    }

    fn push(&mut self, step: Step) {
        self.schedule.steps.push(step);
    }

    /// Fetches something that is needed later, now and then.
    fn prefetch(&mut self) {
        let s = StorageId::new(self.random.below(self.live.len()));
        let is_away = !self.live[s.index()] && self.copied[s.index()];
        if is_away && self.is_needed(s) && self.random.chance(70) {
            self.bring(s);
        }
    }

    fn run(&mut self, id: NodeId) {
        for &r in &self.graph.node(id).reads {
            self.bring(r);
            self.reads_left[r.index()] -= 1;
        }
        self.do_run(id);
        for &u in &self.graph.node(id).updates {
            self.copied[u.index()] = false;
        }
    }

    fn do_run(&mut self, id: NodeId) {
        self.push(Step::Run(id));
        for w in &self.graph.node(id).writes {
            self.live[w.index()] = true;
        }
    }

    /// Has a storage in memory: from the store, or made again.
    fn bring(&mut self, s: StorageId) {
        if self.live[s.index()] {
            return;
        }
        if self.copied[s.index()] {
            self.push(Step::Fetch(s));
            self.live[s.index()] = true;
            return;
        }
        let writer = self.graph.writer(s);
        for &r in &self.graph.node(writer).reads {
            self.bring(r);
        }
        self.do_run(writer);
    }

    fn is_needed(&self, s: StorageId) -> bool {
        self.reads_left[s.index()] > 0 || self.is_output[s.index()]
    }

    fn copy_and_free(&mut self) {
        for s in self.graph.storage_ids() {
            if !self.live[s.index()] {
                continue;
            }
            if self.random.chance(8) {
                self.push(Step::Offload(s));
                self.copied[s.index()] = true;
            }
            let is_persistent = self.graph.storage(s).role.is_persistent();
            let is_dead = !self.is_needed(s) && !is_persistent;
            let may_go = is_dead
                || self.copied[s.index()]
                || self.can_be_remade[s.index()] && !is_persistent;
            let percent = if is_dead { 70 } else { 25 };
            if may_go && self.random.chance(percent) {
                self.free(s);
            }
        }
    }

    fn free(&mut self, s: StorageId) {
        self.push(Step::Free(s));
        self.live[s.index()] = false;
    }

    /// Everything ends where it began.
    fn finish(mut self) -> Schedule {
        let (stored, others): (Vec<_>, Vec<_>) =
            self.graph.storage_ids().partition(|s| self.lives_there[s.index()]);
        for s in others {
            let is_source = self.graph.node(self.graph.writer(s)).phase == Phase::Input;
            let is_persistent = self.graph.storage(s).role.is_persistent();
            if self.is_output[s.index()] || is_source && is_persistent {
                self.bring(s);
            }
        }
        // Last, since what had to be made again may have needed it once more.
        for s in stored {
            if !self.copied[s.index()] {
                self.push(Step::Offload(s));
            }
            if self.live[s.index()] {
                self.free(s);
            }
        }
        self.schedule
    }
}

/// Whether each storage can be made from what is persistent, by nodes that may run again, whose
/// operands and results are never overwritten.
fn can_be_remade(graph: &Graph) -> Vec<bool> {
    let mut can = vec![false; graph.storages().len()];
    for id in graph.node_ids() {
        let node = graph.node(id);
        let touched = || node.reads.iter().chain(&node.writes);
        let steady = touched().all(|&s| graph.updater(s).is_none());
        for w in &node.writes {
            can[w.index()] = steady
                && match node.phase {
                    Phase::Input => graph.storage(*w).role.is_persistent(),
                    _ => node.effect != Effect::Once && node.reads.iter().all(|r| can[r.index()]),
                };
        }
    }
    can
}

fn store(random: &mut Random) -> Store {
    let mut rate = || Rate(1.0 + random.below(1000) as f64);
    Store {
        out_rate: rate(),
        in_rate: rate(),
        latency: Micros(random.below(20) as f64),
        duplex: random.chance(50),
        limit: random.chance(50).then_some(Bytes(u64::MAX)),
        activations_only: false,
    }
}
