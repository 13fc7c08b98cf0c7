//! The first plan: the graph's own order under a memory of the budget's size, with foresight.
//!
//! In: a model and a budget. Out: a sequence, under the budget if the method finds one; nothing where it
//! dropped something that turns out not to be allowed to run again.
//!
//! Method: nodes run in their own order. Before a run, what it reads is made live again by running its
//! writer, and so on back (depth first). When a run does not fit, live storages that nothing at work needs are
//! dropped, the one with the lowest `cost / (bytes · distance^bend)` first, where *cost* is the time to make
//! it again from what is live now and *distance* is how many nodes away its next reader is. This is Belady's
//! rule, weighted by price; `bend` says how much distance counts.
//!
//! The candidates are in a heap whose entries may be out of date; an entry is looked at again when it comes
//! up. Work: O(n log n), with each cost cut off after [`LOOK`] nodes. Runs are cut off at
//! [`MOST_RUNS`] times the nodes; from then on nothing is dropped any more, and the peak is what it is.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::model::Model;

/// How many nodes the estimate of a cost looks at. Chains that are longer are rarely worth dropping.
const LOOK: usize = 24;
/// Runs per node after which the attempt counts as failed.
const MOST_RUNS: usize = 8;

/// A candidate to be dropped. The heap gives the lowest score first, ties to the lower storage.
struct Candidate {
    score: f64,
    storage: u32,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = other.score.total_cmp(&self.score);
        by_score.then(other.storage.cmp(&self.storage))
    }
}
impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Candidate {}

/// Runs `base` (a valid order without repetitions) under `budget`.
pub(crate) fn first(model: &Model, base: &[u32], budget: i64, bend: f64) -> Option<Vec<u32>> {
    let mut machine = Machine::new(model, base, budget, bend);
    for (i, &v) in base.iter().enumerate() {
        machine.now = i as u32;
        machine.reach(v)?;
    }
    Some(machine.order)
}

struct Machine<'m> {
    model: &'m Model,
    budget: i64,
    bend: f64,
    /// Positions in the base order at which each storage is read, ascending.
    uses: Vec<Vec<u32>>,
    live: Vec<bool>,
    /// How many runs at work need a storage.
    pinned: Vec<u32>,
    /// Whether a node has run at all.
    done: Vec<bool>,
    bytes: i64,
    now: u32,
    order: Vec<u32>,
    heap: BinaryHeap<Candidate>,
    most: usize,
}

impl<'m> Machine<'m> {
    fn new(model: &'m Model, base: &[u32], budget: i64, bend: f64) -> Machine<'m> {
        let mut uses = vec![Vec::new(); model.bytes.len()];
        for (i, &v) in base.iter().enumerate() {
            for &s in model.reads.of(v as usize) {
                uses[s as usize].push(i as u32);
            }
        }
        // Popped from the end as time passes.
        uses.iter_mut().for_each(|u| u.reverse());
        Machine {
            model,
            budget,
            bend,
            uses,
            live: vec![false; model.bytes.len()],
            pinned: vec![0; model.bytes.len()],
            done: vec![false; model.time.len()],
            bytes: model.base,
            now: 0,
            order: Vec::with_capacity(2 * base.len()),
            heap: BinaryHeap::new(),
            most: MOST_RUNS * base.len(),
        }
    }

    /// Runs `v`, and before it whatever has to run again.
    fn reach(&mut self, v: u32) -> Option<()> {
        // Each entry is a node at work; the storages that it reads and that are live are pinned.
        let mut work = vec![v];
        self.pin_reads(v as usize);
        while let Some(&w) = work.last() {
            let missing = self.model.reads.of(w as usize).iter();
            match missing.copied().find(|&s| !self.live[s as usize]) {
                Some(s) => {
                    let writer = self.model.writer[s as usize];
                    if self.cannot_run(writer as usize) || self.order.len() > self.most {
                        return None;
                    }
                    work.push(writer);
                    self.pin_reads(writer as usize);
                }
                None => {
                    work.pop();
                    self.run(w, work.last().copied());
                }
            }
        }
        Some(())
    }

    /// Whether `v` has run and may not run again, or something that it reads is overwritten.
    fn cannot_run(&self, v: usize) -> bool {
        let over = |&u: &u32| self.done[u as usize];
        self.done[v] && !self.model.rerun[v] || self.model.not_after.of(v).iter().any(over)
    }

    fn pin_reads(&mut self, v: usize) {
        for &s in self.model.reads.of(v) {
            self.pinned[s as usize] += 1;
        }
    }

    /// Runs `v`, whose reads are live, for `parent` or as the order's next.
    fn run(&mut self, v: u32, parent: Option<u32>) {
        let model = self.model;
        let node = v as usize;
        let fresh = model.writes.of(node).iter();
        let need: i64 = fresh
            .map(|&s| match self.live[s as usize] {
                true => 0,
                false => model.bytes[s as usize],
            })
            .sum();
        self.make_room(need + model.workspace[node]);
        self.order.push(v);
        self.done[node] = true;
        for &s in model.writes.of(node) {
            if !std::mem::replace(&mut self.live[s as usize], true) {
                self.bytes += model.bytes[s as usize];
            }
        }
        if parent.is_none() {
            for &s in model.reads.of(node) {
                let uses = &mut self.uses[s as usize];
                while uses.last().is_some_and(|&u| u <= self.now) {
                    uses.pop();
                }
            }
        }
        for &s in model.reads.of(node) {
            self.pinned[s as usize] -= 1;
            self.settle(s as usize);
        }
        for &s in model.writes.of(node) {
            self.settle(s as usize);
        }
    }

    /// Frees a storage that nothing needs any more, or puts it up to be dropped.
    fn settle(&mut self, s: usize) {
        if self.pinned[s] > 0 || !self.live[s] || self.model.kept[s] {
            return;
        }
        if self.uses[s].is_empty() {
            // What cannot be made again stays, since a later recomputation may need it.
            if self.model.rerun[self.model.writer[s] as usize] {
                self.drop(s);
            }
        } else if self.can_drop(s) {
            let score = self.score(s);
            self.heap.push(Candidate {
                score,
                storage: s as u32,
            });
        }
    }

    fn can_drop(&self, s: usize) -> bool {
        let writer = self.model.writer[s] as usize;
        self.model.rerun[writer] && self.model.bytes[s] > 0
    }

    fn drop(&mut self, s: usize) {
        self.live[s] = false;
        self.bytes -= self.model.bytes[s];
    }

    fn make_room(&mut self, need: i64) {
        while self.bytes + need > self.budget {
            let Some(candidate) = self.heap.pop() else {
                return;
            };
            let s = candidate.storage as usize;
            if !self.live[s] || self.pinned[s] > 0 || self.uses[s].is_empty() {
                continue;
            }
            let score = self.score(s);
            if score > candidate.score * 1.0001 {
                self.heap.push(Candidate { score, ..candidate });
                continue;
            }
            if score.is_finite() {
                self.drop(s);
            }
        }
    }

    fn score(&self, s: usize) -> f64 {
        let distance = match self.uses[s].last() {
            Some(&next) => f64::from(next.saturating_sub(self.now).max(1)),
            None => f64::MAX,
        };
        self.cost(s) / (self.model.bytes[s] as f64 * distance.powf(self.bend))
    }

    /// Time to make `s` again from what is live now; infinite if that is not allowed.
    fn cost(&self, s: usize) -> f64 {
        let model = self.model;
        let mut seen = [u32::MAX; LOOK];
        let mut count = 1;
        seen[0] = model.writer[s];
        let mut i = 0;
        let mut cost = 0.0;
        while i < count {
            let w = seen[i] as usize;
            i += 1;
            if self.cannot_run(w) {
                return f64::INFINITY;
            }
            cost += model.time[w];
            for &r in model.reads.of(w) {
                let writer = model.writer[r as usize];
                if self.live[r as usize] || seen[..count].contains(&writer) {
                    continue;
                }
                if count == LOOK {
                    // Too long to follow; make it look as expensive as it probably is.
                    return 4.0 * cost;
                }
                seen[count] = writer;
                count += 1;
            }
        }
        cost
    }
}
