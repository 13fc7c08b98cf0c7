//! The one replay: a schedule is walked once, with its bytes and its clock, and whoever wants to
//! know is told what each step did.
//!
//! In: a graph and a schedule. Out: the [`Timeline`], or the first step that cannot be done.
//! Everything that follows from a schedule (lifetimes, breakdowns, a report's curves, an executor's
//! ledger) is a visitor of this replay. Two others exist on purpose: the checker's own, which
//! judges this one, and the search's incremental model, which tests hold against it.
//!
//! The rules:
//! * *Bytes* follow the order of the steps alone; the clock never changes them. A run claims what
//!   it writes and does not find live, and scratch while it runs: its workspace, and a copy of
//!   every output that is live already, which is dropped. A free gives back. An offload claims and
//!   gives back nothing. A fetch claims the storage's bytes at its place in the order.
//! * *Clock*: see `clock.rs`. A run waits for everything that it reads to have arrived, and, where
//!   it updates a storage in place, for the copy of it that is being written. A free waits for the
//!   storage's own transfers. A fetch begins no earlier than the end of the offload that made the
//!   copy.
//! * *Copies*: an offload makes a copy of what the storage holds; an update in place makes it
//!   stale. A fetch needs a copy that is not stale, and a storage that is not in memory. A
//!   persistent storage can be freed only where it has such a copy.
//! * *Start and end*: what inputs write is in memory at the start, but for what is stored at the
//!   start, which has a copy. What was stored at the start ends with a copy that is not stale, and
//!   not in memory; every other persistent storage that was there ends in memory, and so does every
//!   output.

use crate::clock::{Clock, Direction, Span};
use crate::schedule::Schedule;
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
    /// When compute and all transfers have ended.
    pub time: Micros,
    /// The part of `time` that runs take: the sum of their times, in schedule order.
    pub compute: Micros,
    /// The rest of it: compute waits for transfers, or transfers end after it.
    pub waited: Micros,
    /// Bytes moved to the store.
    pub moved_out: Bytes,
    /// Bytes moved back from it.
    pub moved_in: Bytes,
    /// The most that the store held.
    pub store_peak: Bytes,
    /// How often each node ran; indexed by node.
    pub runs: Vec<u32>,
}

/// What one step of a schedule did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment<'a> {
    /// Which step it is.
    pub id: StepId,
    /// What it does.
    pub step: Step,
    /// The storages that it brings into memory, in the order of the node's writes.
    pub claimed: &'a [StorageId],
    /// Writes of a run that were live already: written to scratch and dropped.
    pub dropped: &'a [StorageId],
    /// The workspace of a run and what it drops.
    pub scratch: Bytes,
    /// Bytes live before the step.
    pub before: Bytes,
    /// Highest bytes during the step.
    pub during: Bytes,
    /// Bytes live after the step.
    pub after: Bytes,
    /// From when to when, on the queue that does it: compute for a run, a channel for a transfer.
    pub span: Span,
    /// For how long compute stood still before it.
    pub waited: Micros,
}

impl Timeline {
    /// Replays `schedule`.
    ///
    /// # Errors
    /// The first step that cannot be done, or what is missing at the end.
    pub fn new(graph: &Graph, schedule: &Schedule) -> Result<Timeline, ScheduleError> {
        replay(graph, schedule, |_| {})
    }

    /// The timeline of the plain step: every node once, in the graph's own order.
    pub fn natural(graph: &Graph) -> Timeline {
        Timeline::new(graph, &Schedule::plain(graph))
            .expect("a checked graph's own order can be replayed")
    }

    /// How many runs were recomputations.
    pub fn recomputed(&self) -> usize {
        let again = self.runs.iter().map(|&r| r.saturating_sub(1) as usize);
        again.sum()
    }
}

/// Replays `schedule` and tells `visit` of every step, in order.
///
/// # Errors
/// The first step that cannot be done, or what is missing at the end.
pub fn replay(
    graph: &Graph,
    schedule: &Schedule,
    mut visit: impl FnMut(&Moment<'_>),
) -> Result<Timeline, ScheduleError> {
    let mut replay = Replay::new(graph, schedule)?;
    for (i, &step) in schedule.steps.iter().enumerate() {
        let id = StepId::new(i);
        let before = replay.now;
        replay.claimed.clear();
        replay.dropped.clear();
        let done = match step {
            Step::Run(node) => replay.run(id, node)?,
            Step::Free(storage) => replay.free(id, storage)?,
            Step::Offload(storage) => replay.offload(id, storage)?,
            Step::Fetch(storage) => replay.fetch(id, storage)?,
        };
        let during = before.max(replay.now + done.scratch);
        replay.record(id, during);
        visit(&Moment {
            id,
            step,
            claimed: &replay.claimed,
            dropped: &replay.dropped,
            scratch: done.scratch,
            before,
            during,
            after: replay.now,
            span: done.span,
            waited: done.waited,
        });
    }
    replay.finish()
}

/// Where a storage is, and when what is under way ends.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Whether its bytes are claimed.
    live: bool,
    /// When what is in memory is complete.
    arrives: f64,
    /// When the offload of what is in memory ends.
    leaves: f64,
    /// When its copy that is not stale is complete; `None` if there is no such copy.
    copied: Option<f64>,
    /// Whether the store holds room for it.
    stored: bool,
    /// Whether it lives in the store between training steps.
    at_start: bool,
    /// The last step that fetches it, counted from one; zero if none does.
    last_fetch: usize,
}

/// What a step took.
struct Done {
    scratch: Bytes,
    span: Span,
    waited: Micros,
}

struct Replay<'g> {
    graph: &'g Graph,
    schedule: &'g Schedule,
    places: Vec<Place>,
    clock: Clock,
    now: Bytes,
    stored: Bytes,
    timeline: Timeline,
    claimed: Vec<StorageId>,
    dropped: Vec<StorageId>,
}

impl<'g> Replay<'g> {
    fn new(graph: &'g Graph, schedule: &'g Schedule) -> Result<Replay<'g>, ScheduleError> {
        if let Some(store) = &schedule.store {
            store.check()?;
        }
        let mut places = vec![Place::default(); graph.storages().len()];
        let mut stored = Bytes::ZERO;
        for &storage in &schedule.stored_at_start {
            let Some(block) = graph.storages().get(storage.index()) else {
                return Err(ScheduleError::StoresUnknown { storage });
            };
            let store = schedule.store.as_ref();
            if !store.map_or(block.role.may_be_stored(), |store| store.keeps(block.role)) {
                return Err(ScheduleError::CannotBeStored { storage, role: block.role });
            }
            let place = &mut places[storage.index()];
            if !std::mem::replace(&mut place.at_start, true) {
                (place.copied, place.stored) = (Some(0.0), true);
                stored += block.bytes;
            }
        }
        let mut now = Bytes::ZERO;
        for storage in graph.sources() {
            let place = &mut places[storage.index()];
            if !place.at_start {
                place.live = true;
                now += graph.storage(storage).bytes;
            }
        }
        for (i, step) in schedule.steps.iter().enumerate() {
            if let Step::Fetch(storage) = *step
                && let Some(place) = places.get_mut(storage.index())
            {
                place.last_fetch = i + 1;
            }
        }
        let steps = schedule.steps.len();
        let timeline = Timeline {
            during: Vec::with_capacity(steps),
            after: Vec::with_capacity(steps),
            start: now,
            peak: now,
            peak_step: None,
            time: Micros::ZERO,
            compute: Micros::ZERO,
            waited: Micros::ZERO,
            moved_out: Bytes::ZERO,
            moved_in: Bytes::ZERO,
            store_peak: stored,
            runs: vec![0; graph.nodes().len()],
        };
        Ok(Replay {
            graph,
            schedule,
            places,
            clock: Clock::new(schedule.store),
            now,
            stored,
            timeline,
            claimed: Vec::new(),
            dropped: Vec::new(),
        })
    }

    fn run(&mut self, step: StepId, id: NodeId) -> Result<Done, ScheduleError> {
        let Some(node) = self.graph.nodes().get(id.index()) else {
            return Err(ScheduleError::UnknownNode { step, node: id });
        };
        let name = || node.shown_name();
        if node.phase == Phase::Input {
            return Err(ScheduleError::RunsInput { step, name: name() });
        }
        if node.effect == Effect::Once && self.timeline.runs[id.index()] > 0 {
            return Err(ScheduleError::RunsAgain { step, name: name() });
        }
        let mut ready = 0.0_f64;
        for &storage in &node.reads {
            let place = &self.places[storage.index()];
            if !place.live {
                let name = name();
                return Err(ScheduleError::ReadsDead { step, name, storage });
            }
            if let Some(updater) = self.graph.updater(storage)
                && self.timeline.runs[updater.index()] > 0
                && node.transfer().is_none()
            {
                return Err(ScheduleError::ReadsUpdated {
                    step,
                    name: name(),
                    storage,
                    updater: self.graph.node(updater).shown_name(),
                });
            }
            ready = ready.max(place.arrives);
        }
        // What it updates is among what it reads.
        for &storage in &node.updates {
            ready = ready.max(self.places[storage.index()].leaves);
            self.places[storage.index()].copied = None;
            self.give_room_back(storage);
        }
        let mut scratch = node.workspace;
        for &storage in &node.writes {
            let place = &mut self.places[storage.index()];
            let bytes = self.graph.storage(storage).bytes;
            if place.live {
                scratch += bytes;
                self.dropped.push(storage);
            } else {
                (place.live, place.arrives, place.leaves) = (true, 0.0, 0.0);
                self.now += bytes;
                self.claimed.push(storage);
            }
        }
        self.timeline.runs[id.index()] += 1;
        let waited = self.clock.wait(ready);
        let span = self.clock.run(node.time);
        Ok(Done { scratch, span, waited })
    }

    fn free(&mut self, step: StepId, storage: StorageId) -> Result<Done, ScheduleError> {
        let place = self.place(step, storage)?;
        if !place.live {
            return Err(ScheduleError::FreesDead { step, storage });
        }
        let block = self.graph.storage(storage);
        if block.role.is_persistent() && place.copied.is_none() {
            return Err(ScheduleError::FreesPersistent { step, storage });
        }
        if place.last_fetch <= step.index() {
            self.give_room_back(storage);
        }
        self.places[storage.index()].live = false;
        self.now -= block.bytes;
        let waited = self.clock.wait(place.leaves.max(place.arrives));
        Ok(self.passing(self.clock.now(), waited))
    }

    fn offload(&mut self, step: StepId, storage: StorageId) -> Result<Done, ScheduleError> {
        let place = self.place(step, storage)?;
        if !place.live {
            return Err(ScheduleError::OffloadsDead { step, storage });
        }
        let role = self.graph.storage(storage).role;
        if self.schedule.store.as_ref().is_some_and(|store| !store.takes(role)) {
            return Err(ScheduleError::OffloadsPersistent { step, storage });
        }
        let span = self.transfer(step, storage, Direction::Out, place.arrives)?;
        let bytes = self.graph.storage(storage).bytes;
        let place = &mut self.places[storage.index()];
        place.leaves = span.ended.get();
        place.copied = Some(span.ended.get());
        if !std::mem::replace(&mut place.stored, true) {
            self.stored += bytes;
            self.timeline.store_peak = self.timeline.store_peak.max(self.stored);
        }
        Ok(self.passing(span, Micros::ZERO))
    }

    fn fetch(&mut self, step: StepId, storage: StorageId) -> Result<Done, ScheduleError> {
        let place = self.place(step, storage)?;
        if place.live {
            return Err(ScheduleError::FetchesLive { step, storage });
        }
        let Some(copied) = place.copied else {
            return Err(ScheduleError::FetchesWithoutCopy { step, storage });
        };
        let span = self.transfer(step, storage, Direction::In, copied)?;
        let place = &mut self.places[storage.index()];
        (place.live, place.arrives, place.leaves) = (true, span.ended.get(), 0.0);
        self.now += self.graph.storage(storage).bytes;
        self.claimed.push(storage);
        Ok(self.passing(span, Micros::ZERO))
    }

    fn place(&self, step: StepId, storage: StorageId) -> Result<Place, ScheduleError> {
        let place = self.places.get(storage.index()).copied();
        place.ok_or(ScheduleError::UnknownStorage { step, storage })
    }

    fn transfer(
        &mut self,
        step: StepId,
        storage: StorageId,
        direction: Direction,
        not_before: f64,
    ) -> Result<Span, ScheduleError> {
        let bytes = self.graph.storage(storage).bytes;
        let span = self.clock.transfer(direction, bytes, not_before);
        span.ok_or(ScheduleError::NoChannel { step, storage })
    }

    /// A copy that is not needed any more leaves the store, unless it lives there.
    fn give_room_back(&mut self, storage: StorageId) {
        let place = &mut self.places[storage.index()];
        if place.stored && !place.at_start {
            place.stored = false;
            self.stored -= self.graph.storage(storage).bytes;
        }
    }

    fn passing(&self, span: Span, waited: Micros) -> Done {
        Done { scratch: Bytes::ZERO, span, waited }
    }

    fn record(&mut self, step: StepId, during: Bytes) {
        self.timeline.during.push(during);
        self.timeline.after.push(self.now);
        if during > self.timeline.peak {
            self.timeline.peak = during;
            self.timeline.peak_step = Some(step);
        }
    }

    fn finish(mut self) -> Result<Timeline, ScheduleError> {
        let place = |s: StorageId| self.places[s.index()];
        for &storage in &self.schedule.stored_at_start {
            if place(storage).live {
                return Err(ScheduleError::StoredInMemory { storage });
            }
            if place(storage).copied.is_none() {
                return Err(ScheduleError::StoredStale { storage });
            }
        }
        let persistent = |s: &StorageId| self.graph.storage(*s).role.is_persistent();
        let mut sources = self.graph.sources().filter(persistent);
        let is_gone = |s: &StorageId| !place(*s).live && !place(*s).at_start;
        if let Some(storage) = sources.find(is_gone) {
            return Err(ScheduleError::PersistentGone { storage });
        }
        if let Some(storage) = self.graph.outputs().iter().copied().find(is_gone) {
            return Err(ScheduleError::OutputDead { storage });
        }
        let never = |t: &&NodeId| self.timeline.runs[t.index()] == 0;
        if let Some(target) = self.graph.targets().iter().find(never) {
            return Err(ScheduleError::TargetNeverRan {
                name: self.graph.node(*target).shown_name(),
            });
        }
        let held = self.timeline.store_peak;
        let limit = self.schedule.store.and_then(|store| store.limit);
        if let Some(limit) = limit.filter(|&limit| held > limit) {
            return Err(ScheduleError::StoreOverLimit { held, limit });
        }
        let times = self.clock.end();
        self.timeline.time = times.whole;
        self.timeline.compute = times.busy;
        self.timeline.waited = times.waited;
        self.timeline.moved_out = times.moved_out;
        self.timeline.moved_in = times.moved_in;
        Ok(self.timeline)
    }
}
