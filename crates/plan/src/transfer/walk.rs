//! The walk: one order of runs, under a budget, with a store and a clock.
//!
//! In: [`Lives`] of an order, a budget, a store, [`Habits`]. Out: a schedule whose peak is at most
//! the budget, or nothing if there is none that way.
//!
//! Method. Before each run, in this order:
//! 1. *Room*. `full` holds the bytes of every position, as far as is decided: what is in memory
//!    stays until somebody decides otherwise, what is out comes back just before its next use.
//!    While the run does not fit, something is freed that it does not touch: what has a copy and is
//!    used last (Belady), or, where that comes back too soon, what costs less to wait for.
//! 2. *Fetches* of what the run touches and is not there.
//! 3. *Early fetches* ([`ahead`]), in the order of use, while the channel is idle and every
//!    position until the use has room, or gets it from what has a copy and is used later.
//! 4. *The run*, and the frees of what is used for the last time.
//! 5. *Early offloads* ([`ahead`]). `least` holds the bytes of every position if all that has a
//!    copy were out. While it is over the budget somewhere ahead and the channel is idle, what lies
//!    idle there and is used last is copied. It is freed only when room is needed.
//!
//! Transfers have slack where memory allows: fetches are begun a little before the channel would be
//! idle, and what lives in the store and has left is freed a little later, or when room is needed.
//!
//! Parameters and optimizer state that nobody has used yet can be freed at once: they become part
//! of what lives in the store between training steps, have been out from the start, and must leave
//! again after their last use.
//!
//! Invariants: bytes never exceed the budget, by the order of the steps alone. The clock here is
//! that of the replay; it only decides what is worth doing.

mod ahead;
mod room;

use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use rekindle_graph::{Graph, Schedule, Step, StorageId, Store};

use super::lives::Lives;
use crate::search::tree::MaxTree;

/// How a walk decides where the rules leave a choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Habits {
    /// What becomes of parameters and optimizer state that nobody has used yet.
    pub(super) unused: Unused,
    /// Whether what is copied ahead should have left by the time that its room is needed.
    pub(super) in_time: bool,
    /// Whether a fetch ahead may take the room of what is used later.
    pub(super) swaps: bool,
}

/// What becomes of parameters and optimizer state that nobody has used yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Unused {
    /// What is used last goes first, as it does of everything.
    Ranks,
    /// It goes before activations are copied.
    GoesFirst,
    /// As much of it as fits is in memory between training steps, namely what is used last in a
    /// training step: it need not leave at its end. It is copied in its course, when the channel
    /// has time.
    Stays,
}

/// What a walk made.
pub(super) struct Walked {
    pub(super) schedule: Schedule,
    /// When everything has ended, by the walk's clock.
    pub(super) time: f64,
    /// Storages touched.
    pub(super) work: u64,
}

/// Walks along `lives`; nothing if the budget cannot be met that way.
pub(super) fn walk(
    graph: &Graph,
    lives: &Lives,
    store: &Store,
    budget: i64,
    habits: Habits,
) -> Option<Walked> {
    let mut walk = Walk::new(graph, lives, store, budget, habits);
    walk.begin()?;
    for at in 0..lives.end() {
        walk.at = at;
        walk.free_what_has_left();
        walk.make_room()?;
        walk.fetch_touched();
        walk.fetch_early();
        walk.run();
        walk.offload_early();
    }
    walk.at = lives.end();
    walk.finish()
}

#[derive(Clone, Copy, Default)]
struct Place {
    /// Whether its bytes are claimed.
    inside: bool,
    /// How many of its uses have passed.
    used: u32,
    /// When what is in memory is complete.
    arrives: f64,
    /// When the offload of what is in memory ends.
    leaves: f64,
    /// When its copy that is not stale is complete.
    copied: Option<f64>,
    /// Whether the store holds room for it.
    stored: bool,
    /// Whether it lives in the store between training steps.
    at_start: bool,
    /// Whether it is settled that it is in memory between training steps.
    stays: bool,
    /// Whether it has ended: what comes is another life.
    gone: bool,
}

/// A stretch in which a storage lies idle: those that are worth a transfer first, then by the next
/// use, the last first, then the lower id; and the use before it.
type Idle = (bool, u32, std::cmp::Reverse<u32>, u32);

/// A storage of less than this share of the budget is moved only when no larger one is left.
const SMALL_SHARE: i64 = 4096;
/// So is one whose transfer takes less than this many times the latency.
const SMALL_LATENCIES: f64 = 2.0;

/// The slack, as a share of what all runs take.
const SLACK: f64 = 1.0 / 32.0;

struct Walk<'a> {
    graph: &'a Graph,
    lives: &'a Lives,
    store: &'a Store,
    budget: i64,
    habits: Habits,
    at: usize,
    places: Vec<Place>,
    full: MaxTree,
    least: MaxTree,
    steps: Vec<Step>,
    compute: f64,
    /// When each channel is free: out, in.
    channel: [f64; 2],
    /// Bytes in the store.
    held: i64,
    /// The most that it held so far.
    most_held: i64,
    /// In memory, idle, with a copy (complete or on its way) or none needed. Entries go stale.
    copied: BinaryHeap<Idle>,
    /// In memory, idle, without a copy. Entries go stale.
    bare: BinaryHeap<Idle>,
    /// Out, by next use.
    out: BTreeSet<(u32, u32)>,
    /// What lives in the store and was used for the last time: when its copy is complete,
    /// ascending.
    leaving: VecDeque<(f64, u32)>,
    /// How long before it is needed a transfer should be done, where memory allows: a store is
    /// not always as fast as it was measured.
    slack: f64,
    /// Whether each storage is worth a transfer before smaller ones.
    is_large: Vec<bool>,
    /// Marks what the position at hand touches.
    touched: Vec<u32>,
    work: u64,
}

/// Storages that are used last but do not lie idle where room is short, after which no more are
/// looked at.
const MOST_OTHERS: usize = 64;

const OUT: usize = 0;
const IN: usize = 1;

impl<'a> Walk<'a> {
    fn new(
        graph: &'a Graph,
        lives: &'a Lives,
        store: &'a Store,
        budget: i64,
        habits: Habits,
    ) -> Walk<'a> {
        let count = lives.bytes.len();
        let place = |s: usize| Place {
            inside: lives.is_source[s],
            gone: !lives.is_source[s],
            ..Place::default()
        };
        let slowest = store.out_rate.get().min(store.in_rate.get());
        let small = (SMALL_LATENCIES * store.latency.get() * slowest) as i64;
        let small = small.min(budget / 64).max(budget / SMALL_SHARE);
        Walk {
            slack: lives.begins[lives.end()] * SLACK,
            is_large: lives.bytes.iter().map(|&bytes| bytes >= small).collect(),
            graph,
            lives,
            store,
            budget,
            habits,
            at: 0,
            places: (0..count).map(place).collect(),
            full: MaxTree::new(&lives.during),
            least: MaxTree::new(&lives.during),
            steps: Vec::with_capacity(3 * lives.order.len()),
            compute: 0.0,
            channel: [0.0; 2],
            held: 0,
            most_held: 0,
            copied: BinaryHeap::new(),
            bare: BinaryHeap::new(),
            out: BTreeSet::new(),
            leaving: VecDeque::new(),
            touched: vec![u32::MAX; count],
            work: 0,
        }
    }

    /// What is there at the start is idle; what does not fit then lives in the store.
    fn begin(&mut self) -> Option<()> {
        let sources: Vec<usize> =
            (0..self.places.len()).filter(|&s| self.lives.is_source[s]).collect();
        let mut start: i64 = sources.iter().map(|&s| self.lives.bytes[s]).sum();
        for &s in self.lives.dead_after.of(self.lives.end()) {
            self.places[s as usize].gone = true;
            self.places[s as usize].inside = false;
            self.steps.push(Step::Free(StorageId(s)));
        }
        let mut storable: Vec<usize> =
            sources.iter().copied().filter(|&s| self.may_start_outside(s)).collect();
        match self.habits.unused {
            Unused::Stays => storable.sort_by_key(|&s| (self.lives.uses.of(s).last(), s)),
            Unused::Ranks | Unused::GoesFirst => {
                storable.sort_by_key(|&s| (std::cmp::Reverse(self.next_use(s)), s));
            }
        }
        // What must be there at the end may be too much as well.
        let mut end = self.lives.during[self.lives.end()];
        let mut rest = storable.into_iter();
        while start > self.budget || end > self.budget {
            let s = rest.next()?;
            start -= self.lives.bytes[s];
            end -= self.lives.bytes[s];
            if self.habits.unused == Unused::GoesFirst {
                self.could_be_out(s, 0);
            }
            self.free(s)?;
        }
        if self.habits.unused == Unused::Stays {
            rest.for_each(|s| self.places[s].stays = true);
        }
        for s in sources {
            if self.places[s].inside {
                self.becomes_idle(s);
                if self.habits.unused == Unused::GoesFirst && self.may_start_outside(s) {
                    self.could_be_out(s, 0);
                }
            }
        }
        Some(())
    }

    /// Whether nobody has used it yet and it may live in the store.
    fn may_start_outside(&self, s: usize) -> bool {
        let place = &self.places[s];
        self.lives.is_source[s]
            && place.used == 0
            && place.inside
            && !place.at_start
            && !place.stays
            && self.store.keeps(self.graph.storages()[s].role)
            && self.store.in_rate.get() > 0.0
            && (self.store.out_rate.get() > 0.0 || self.lives.updated_at[s] == u32::MAX)
    }

    /// The position of its next use; the end if it must be there at the end, and past the end if it
    /// need not be anywhere.
    fn next_use(&self, s: usize) -> usize {
        let place = &self.places[s];
        match self.lives.uses.of(s).get(place.used as usize) {
            Some(&at) => at as usize,
            None if self.lives.ends_in_memory[s] && !place.at_start => self.lives.end(),
            None => self.lives.end() + 1,
        }
    }

    /// Whether it can be freed: by a copy, or because it may have been out from the start.
    fn is_copied(&self, s: usize) -> bool {
        self.places[s].copied.is_some() || self.may_start_outside(s)
    }

    /// The stretch of idleness before the next use of `s`.
    fn idle(&self, s: usize) -> Idle {
        let used = self.places[s].used as usize;
        let last = used.checked_sub(1).map(|k| self.lives.uses.of(s)[k] + 1);
        let next = self.next_use(s) as u32;
        (self.is_large[s], next, std::cmp::Reverse(s as u32), last.unwrap_or(0))
    }

    /// Takes note that `s`, in memory, is not touched until its next use.
    fn becomes_idle(&mut self, s: usize) {
        let entry = self.idle(s);
        let is_state = self.may_start_outside(s) && self.habits.unused == Unused::GoesFirst;
        match self.places[s].copied.is_some() || is_state {
            true => self.copied.push(entry),
            false => self.bare.push(entry),
        }
    }

    /// Takes note that `s` has a copy from position `from` on: it can be out wherever it is idle,
    /// until it is overwritten.
    fn could_be_out(&mut self, s: usize, from: usize) {
        let (uses, bytes) = (self.lives.uses.of(s), self.lives.bytes[s]);
        let mut from = from;
        for &at in &uses[self.places[s].used as usize..] {
            let at = at as usize;
            if at > from {
                self.least.add(from, at - 1, -bytes);
            }
            let is_over = self.lives.updated_at[s] == at as u32;
            if is_over || self.lives.dead_after.of(at).contains(&(s as u32)) {
                return;
            }
            from = at + 1;
        }
        let is_outside = self.places[s].at_start || self.may_start_outside(s);
        if !self.lives.ends_in_memory[s] || is_outside {
            self.least.add(from, self.lives.end(), -bytes);
        } else if self.lives.end() > from {
            self.least.add(from, self.lives.end() - 1, -bytes);
        }
    }

    /// Looks for the longest stretch of idleness of a storage that was just made. A copy that is
    /// made before serves there.
    fn look_ahead(&mut self, s: usize) {
        let uses = &self.lives.uses.of(s)[self.places[s].used as usize..];
        let mut longest: Option<(f64, u32, u32)> = None;
        for pair in uses.windows(2) {
            if self.lives.dead_after.of(pair[0] as usize).contains(&(s as u32)) {
                break;
            }
            let begins = |at: u32| self.lives.begins[at as usize];
            let idle = begins(pair[1]) - begins(pair[0] + 1);
            if longest.is_none_or(|(most, ..)| idle > most) {
                longest = Some((idle, pair[0], pair[1]));
            }
        }
        if let Some((_, last, next)) = longest.filter(|(idle, ..)| *idle > 0.0) {
            self.bare.push((self.is_large[s], next, std::cmp::Reverse(s as u32), last + 1));
        }
    }

    /// Puts a transfer on its channel; when it ends.
    fn transfer(&mut self, way: usize, s: usize, not_before: f64) -> f64 {
        let end = self.would_end(way, s, not_before);
        match self.store.duplex {
            true => self.channel[way] = end,
            false => self.channel = [end; 2],
        }
        end
    }

    fn would_end(&self, way: usize, s: usize, not_before: f64) -> f64 {
        let rate = [self.store.out_rate, self.store.in_rate][way].get();
        let begin = self.compute.max(self.channel[way]).max(not_before);
        begin + self.store.latency.get() + self.lives.bytes[s] as f64 / rate
    }

    /// Whether the store takes it, and has room for a copy and a way to it.
    fn may_offload(&self, s: usize) -> bool {
        let limit = self.store.limit.map_or(i64::MAX, crate::search::signed);
        let room = self.places[s].stored || self.held + self.lives.bytes[s] <= limit;
        let both = self.store.out_rate.get() > 0.0 && self.store.in_rate.get() > 0.0;
        let is_taken = self.store.takes(self.graph.storages()[s].role) && self.lives.bytes[s] > 0;
        room && both && is_taken
    }

    fn offload(&mut self, s: usize) {
        let end = self.transfer(OUT, s, self.places[s].arrives);
        self.steps.push(Step::Offload(StorageId(s as u32)));
        if !std::mem::replace(&mut self.places[s].stored, true) {
            self.held += self.lives.bytes[s];
            self.most_held = self.most_held.max(self.held);
        }
        let place = &mut self.places[s];
        (place.leaves, place.copied) = (end, Some(end));
    }

    /// Frees an idle storage that has a copy or may have been out from the start.
    fn free(&mut self, s: usize) -> Option<()> {
        if self.places[s].copied.is_none() {
            self.start_outside(s)?;
        } else {
            let place = self.places[s];
            self.compute = self.compute.max(place.leaves).max(place.arrives);
            self.steps.push(Step::Free(StorageId(s as u32)));
        }
        self.places[s].inside = false;
        let next = self.next_use(s);
        if next > self.at {
            self.full.add(self.at, (next - 1).min(self.lives.end()), -self.lives.bytes[s]);
        }
        if next <= self.lives.end() {
            self.out.insert((next as u32, s as u32));
        }
        Some(())
    }

    /// Decides that it lives in the store, which nothing so far contradicts.
    fn start_outside(&mut self, s: usize) -> Option<()> {
        let limit = self.store.limit.map_or(i64::MAX, crate::search::signed);
        // It was there all along, also when the store held most.
        if self.most_held + self.lives.bytes[s] > limit {
            return None;
        }
        if self.habits.unused != Unused::GoesFirst {
            self.could_be_out(s, self.at);
        }
        self.held += self.lives.bytes[s];
        self.most_held += self.lives.bytes[s];
        let place = &mut self.places[s];
        (place.at_start, place.stored, place.copied) = (true, true, Some(0.0));
        Some(())
    }

    fn fetch(&mut self, s: usize) {
        let next = self.next_use(s);
        let copied = self.places[s].copied.expect("what is out has a copy");
        let arrives = self.transfer(IN, s, copied);
        self.steps.push(Step::Fetch(StorageId(s as u32)));
        self.out.remove(&(next as u32, s as u32));
        let place = &mut self.places[s];
        (place.inside, place.arrives, place.leaves) = (true, arrives, 0.0);
        if next > self.at {
            self.full.add(self.at, next - 1, self.lives.bytes[s]);
            self.copied.push(self.idle(s));
        }
    }

    /// Frees what lives in the store and whose copy has been complete for a while.
    fn free_what_has_left(&mut self) {
        while let Some(&(ends, s)) = self.leaving.front() {
            if ends + self.slack > self.compute {
                break;
            }
            self.leaving.pop_front();
            self.leave(s as usize);
        }
    }

    /// Frees what was used for the last time.
    fn leave(&mut self, s: usize) {
        let leaves = self.places[s].leaves;
        self.compute = self.compute.max(leaves);
        self.steps.push(Step::Free(StorageId(s as u32)));
        self.places[s].inside = false;
        self.full.add(self.at, self.lives.end(), -self.lives.bytes[s]);
    }

    fn fetch_touched(&mut self) {
        while let Some(&(next, s)) = self.out.first() {
            if next as usize > self.at {
                break;
            }
            self.fetch(s as usize);
        }
    }

    fn run(&mut self) {
        let (graph, at) = (self.graph, self.at);
        let node = graph.node(self.lives.order[at]);
        let mut ready = 0.0f64;
        for r in &node.reads {
            ready = ready.max(self.places[r.index()].arrives);
        }
        for u in &node.updates {
            ready = ready.max(self.places[u.index()].leaves);
        }
        self.compute = self.compute.max(ready) + node.time.get();
        self.steps.push(Step::Run(self.lives.order[at]));
        for w in &node.writes {
            let place = &mut self.places[w.index()];
            if !std::mem::replace(&mut place.inside, true) {
                (place.arrives, place.leaves) = (0.0, 0.0);
            }
            place.gone = false;
        }
        for w in &node.writes {
            match self.places[w.index()].copied {
                Some(_) => self.could_be_out(w.index(), at),
                None => self.look_ahead(w.index()),
            }
        }
        for u in &node.updates {
            let place = &mut self.places[u.index()];
            place.copied = None;
            if place.stored && !place.at_start {
                place.stored = false;
                self.held -= self.lives.bytes[u.index()];
            }
        }
        for s in node.reads.iter().chain(&node.writes) {
            self.places[s.index()].used += 1;
        }
        self.work += (node.reads.len() + node.writes.len()) as u64;
        for &s in self.lives.dead_after.of(at) {
            self.die(s as usize);
        }
        self.at += 1;
        for s in node.reads.iter().chain(&node.writes) {
            self.rest(s.index());
        }
        self.at -= 1;
    }

    /// Frees what is not used any more in this life.
    fn die(&mut self, s: usize) {
        let place = &mut self.places[s];
        place.gone = true;
        if !std::mem::replace(&mut place.inside, false) {
            return;
        }
        self.compute = self.compute.max(place.leaves).max(place.arrives);
        // Its copy may serve in another life.
        let is_last = place.used as usize == self.lives.uses.of(s).len();
        if is_last && place.stored && !place.at_start {
            place.stored = false;
            self.held -= self.lives.bytes[s];
        }
        self.steps.push(Step::Free(StorageId(s as u32)));
    }

    /// After a use: idle until the next, or on its way out for good.
    fn rest(&mut self, s: usize) {
        if self.places[s].gone {
            return;
        }
        let next = self.next_use(s);
        let is_over = next > self.lives.end() && self.places[s].at_start;
        if !is_over {
            if next > self.at {
                self.becomes_idle(s);
            }
            return;
        }
        if self.places[s].copied.is_some() {
            self.leave(s);
        } else {
            self.offload(s);
            self.leaving.push_back((self.places[s].leaves, s as u32));
            self.least.add(self.at, self.lives.end(), -self.lives.bytes[s]);
        }
    }

    /// Everything where it has to be.
    fn finish(mut self) -> Option<Walked> {
        self.free_what_has_left();
        self.make_room()?;
        for (_, s) in std::mem::take(&mut self.leaving) {
            self.leave(s as usize);
        }
        self.fetch_touched();
        let mut stored: Vec<StorageId> = Vec::new();
        for s in 0..self.places.len() {
            let place = self.places[s];
            if place.at_start {
                stored.push(StorageId(s as u32));
                if place.inside {
                    debug_assert!(place.copied.is_some(), "{s}");
                    self.steps.push(Step::Free(StorageId(s as u32)));
                }
            }
        }
        let time = self.compute.max(self.channel[OUT]).max(self.channel[IN]);
        let schedule =
            Schedule { steps: self.steps, store: Some(*self.store), stored_at_start: stored };
        Some(Walked { schedule, time, work: self.work })
    }
}
