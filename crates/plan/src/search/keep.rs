//! Annealing over what is kept, with the schedule made on demand.
//!
//! In: a sequence, a budget, work. Out: the best sequence met.
//!
//! State: an order of all nodes without repetitions, and for each storage that waits long between
//! two of its uses there, whether it is *kept* across that wait, *dropped* and made again when it
//! is next needed, or *passing*: made again for each run that needs it, and not kept in between.
//! The state says it all: the nodes run in their order, and before each whatever is missing is
//! made, and so on back. A move changes one storage, a few neighbours, or lets two change places;
//! its energy is `time + price · bytes above the budget` of the whole schedule, which is written
//! down anew: O(runs) for a move, where one of [`anneal`](super::anneal) costs O(log n). In return
//! a single move redoes every recomputation that it concerns.
//!
//! Limits: the order of the nodes stays as it was.

use super::anneal::Found;
use super::cuts::without_useless;
use super::problem::{Lists, Problem};
use super::random::Random;

const KEPT: u8 = 0;
const DROPPED: u8 = 1;
const PASSING: u8 = 2;

/// Temperatures at the beginning and at the end, as shares of the mean time of a node.
const HEAT: (f64, f64) = (0.3, 0.01);
/// Microseconds per byte over the budget at the beginning and at the end, as shares of (time of the
/// step / budget), for a plan without overhead; and by how much each share of overhead hardens it.
const PRICES: (f64, f64) = (1.0, 5.0);
const HARDER: f64 = 5.0;
/// Uses at least so many runs apart make a wait.
const WAIT: usize = 3;
/// Runs per node after which a schedule is given up.
const MOST_RUNS: usize = 6;
/// Stretches of the schedule whose overshoots count apart.
const BLOCKS: usize = 16;
/// Runs written down that take as long as one unit of the annealing's work.
const RUNS: u64 = 1;

/// See the module's documentation.
pub(crate) struct Keeper<'m> {
    problem: &'m Problem,
    limit: i64,
    base: Vec<u32>,
    /// The storages that wait, in the order of their writers.
    waiting: Vec<u32>,
    state: Vec<u8>,
    /// Storages whose wait begins with a position of the order, and whose last use is there.
    waits_at: Lists,
    ends_at: Lists,
    /// The position of the last use of each storage, and where its wait begins.
    last: Vec<u32>,
    wait: Vec<u32>,
    random: Random,
    order: Vec<u32>,
    live: Vec<bool>,
    ran: Vec<bool>,
    open: Vec<u32>,
    made: Vec<u32>,
}

impl<'m> Keeper<'m> {
    /// A state that is near to the sequence `from`, in the order `base`.
    pub(crate) fn new(
        problem: &'m Problem,
        base: Vec<u32>,
        from: &[u32],
        limit: i64,
        seed: u64,
    ) -> Keeper<'m> {
        let count = problem.bytes.len();
        let (mut last, mut before) = (vec![0u32; count], vec![u32::MAX; count]);
        let (mut wait, mut longest) = (vec![0u32; count], vec![0u32; count]);
        for (i, &v) in (0u32..).zip(&base) {
            let touched = problem.reads.of(v as usize).iter().chain(problem.writes.of(v as usize));
            for &s in touched {
                let s = s as usize;
                if before[s] != u32::MAX && i - before[s] > longest[s] {
                    (longest[s], wait[s]) = (i - before[s], before[s]);
                }
                (before[s], last[s]) = (i, i);
            }
        }
        let waits = |&s: &u32| {
            let s = s as usize;
            let may = problem.rerun[problem.writer[s] as usize] && !problem.kept[s];
            may && problem.bytes[s] > 0 && longest[s] as usize >= WAIT
        };
        let written = base.iter().flat_map(|&v| problem.writes.of(v as usize));
        let waiting: Vec<u32> = written.copied().filter(waits).collect();
        let mut runs = vec![0u32; problem.time.len()];
        from.iter().for_each(|&v| runs[v as usize] += 1);
        let mut state = vec![KEPT; count];
        for &s in &waiting {
            state[s as usize] = match runs[problem.writer[s as usize] as usize] {
                0 | 1 => KEPT,
                2 => DROPPED,
                _ => PASSING,
            };
        }
        let at = |place: &[u32]| -> Vec<(u32, u32)> {
            waiting.iter().map(|&s| (place[s as usize], s)).collect()
        };
        let ends: Vec<(u32, u32)> = (0..count as u32)
            .filter(|&s| !problem.kept[s as usize])
            .filter(|&s| problem.rerun[problem.writer[s as usize] as usize])
            .map(|s| (last[s as usize], s))
            .collect();
        Keeper {
            waits_at: Lists::by_first(base.len(), at(&wait).into_iter()),
            ends_at: Lists::by_first(base.len(), ends.into_iter()),
            problem,
            limit,
            waiting,
            state,
            last,
            wait,
            random: Random::new(seed),
            order: Vec::with_capacity(2 * base.len()),
            live: vec![false; count],
            ran: vec![false; problem.time.len()],
            open: Vec::new(),
            made: Vec::new(),
            base,
        }
    }

    /// Anneals; the best sequence met, unless there is nothing to choose, and the work done.
    pub(crate) fn run(
        &mut self,
        work: u64,
        stop: &mut dyn FnMut(u64, &Found) -> bool,
    ) -> (Option<Found>, u64) {
        if self.waiting.is_empty() || !self.write() {
            return (None, 0);
        }
        let least = self.problem.least_time();
        let mean = least / self.base.len() as f64;
        let (time, peak, mut over) = self.measure();
        let mut best = Found { order: self.order.clone(), peak, time };
        let mut now = time;
        let harder = 1.0 + HARDER * (time / least - 1.0).max(0.0);
        let unit = harder * least / self.limit.max(1) as f64;
        let mut changed: Vec<(u32, u8)> = Vec::new();
        let (mut done, mut asked) = (self.order.len() as u64 / RUNS, 0);
        while done < work {
            let progress = done as f64 / work as f64;
            let between = |(from, to): (f64, f64)| from * (to / from).powf(progress);
            let (price, heat) = (unit * between(PRICES), mean * between(HEAT));
            changed.clear();
            self.change(&mut changed);
            let possible = self.write();
            done += self.order.len() as u64 / RUNS + 1;
            let (time, peak, above) = match possible {
                true => self.measure(),
                false => (f64::INFINITY, 0, i64::MAX),
            };
            let worse = time + price * above as f64 - (now + price * over as f64);
            if possible && (worse <= 0.0 || self.random.unit() < (-worse / heat).exp()) {
                (now, over) = (time, above);
                let found = Found { order: Vec::new(), peak, time: time + 1e-6 };
                if found.beats(&best, self.limit) {
                    best = Found { order: self.order.clone(), peak, time };
                }
            } else {
                for &(s, state) in changed.iter().rev() {
                    self.state[s as usize] = state;
                }
            }
            if done > asked {
                asked = done + work / 64;
                if stop(done, &best) {
                    break;
                }
            }
        }
        let because = vec![None; best.order.len()];
        let built = without_useless(self.problem, &best.order, &because);
        (Some(Found::of_order(self.problem, &built.order)), done)
    }

    fn set(&mut self, i: usize, state: u8, changed: &mut Vec<(u32, u8)>) {
        let s = self.waiting[i];
        let old = std::mem::replace(&mut self.state[s as usize], state);
        changed.push((s, old));
    }

    /// One move.
    fn change(&mut self, changed: &mut Vec<(u32, u8)>) {
        let count = self.waiting.len();
        let i = self.random.below(count);
        let now = self.state[self.waiting[i] as usize];
        match self.random.below(10) {
            0..=4 => {
                let other = (now + 1 + self.random.below(2) as u8) % 3;
                self.set(i, other, changed);
            }
            5..=7 => {
                // The nearest in a random reach that is in another state.
                let reach = 1 + self.random.below(24);
                let j = (i + 12 * count + reach - 12) % count;
                let other = self.state[self.waiting[j] as usize];
                self.set(i, other, changed);
                self.set(j, now, changed);
            }
            _ => {
                let state = self.random.below(3) as u8;
                let end = (i + 2 + self.random.below(5)).min(count);
                for j in i..end {
                    self.set(j, state, changed);
                }
            }
        }
    }

    /// Writes the schedule of the state down; whether it is allowed.
    fn write(&mut self) -> bool {
        let problem = self.problem;
        self.order.clear();
        self.live.fill(false);
        self.ran.fill(false);
        for i in 0..self.base.len() {
            if !self.reach(self.base[i]) {
                return false;
            }
            for &s in self.waits_at.of(i) {
                self.live[s as usize] &= self.state[s as usize] == KEPT;
            }
            for &s in self.ends_at.of(i) {
                self.live[s as usize] = false;
            }
            while let Some(s) = self.made.pop() {
                let s = s as usize;
                let ended = self.last[s] <= i as u32 && !problem.kept[s];
                let passes = self.state[s] == PASSING && i as u32 >= self.wait[s];
                if ended || passes {
                    self.live[s] = false;
                }
            }
        }
        true
    }

    /// Runs a node of the order, and before it whatever is missing.
    fn reach(&mut self, v: u32) -> bool {
        let problem = self.problem;
        self.open.push(v);
        while let Some(&w) = self.open.last() {
            let node = w as usize;
            let mut reads = problem.reads.of(node).iter();
            if let Some(&s) = reads.find(|&&s| !self.live[s as usize]) {
                self.open.push(problem.writer[s as usize]);
                continue;
            }
            let over = |&u: &u32| self.ran[u as usize];
            let forbidden = problem.not_after.of(node).iter().any(over)
                || self.ran[node] && !problem.rerun[node]
                || self.order.len() > MOST_RUNS * self.base.len();
            if forbidden {
                self.open.clear();
                self.made.clear();
                return false;
            }
            self.open.pop();
            self.order.push(w);
            self.ran[node] = true;
            for &s in problem.writes.of(node) {
                self.live[s as usize] = true;
                if w != v {
                    self.made.push(s);
                }
            }
        }
        true
    }

    /// Time, peak, and bytes above the budget of the schedule.
    fn measure(&mut self) -> (f64, i64, i64) {
        let problem = self.problem;
        self.live.copy_from_slice(&problem.kept);
        let kept = self.live.iter().zip(&problem.bytes);
        let mut now = problem.base + kept.map(|(&l, b)| i64::from(l) * b).sum::<i64>();
        let (mut time, mut peak, mut over) = (0.0, 0, 0);
        let block = self.order.len().div_ceil(BLOCKS).max(1);
        let mut highest = 0;
        for (i, &v) in self.order.iter().enumerate().rev() {
            let v = v as usize;
            let (reads, writes) = (problem.reads.of(v), problem.writes.of(v));
            for &s in reads.iter().chain(writes) {
                if !std::mem::replace(&mut self.live[s as usize], true) {
                    now += problem.bytes[s as usize];
                }
            }
            highest = highest.max(now + problem.workspace[v]);
            for &s in writes {
                self.live[s as usize] = false;
                now -= problem.bytes[s as usize];
            }
            time += problem.time[v];
            if i % block == 0 {
                peak = peak.max(highest);
                over += (highest - self.limit).max(0);
                highest = 0;
            }
        }
        (time, peak, over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::needed_nodes;
    use crate::search::exact::{Exact, exact};
    use crate::testing::chain;

    /// From the plain order, which keeps all, to the best that exhaustive search knows.
    #[test]
    fn what_a_short_chain_keeps_is_found() {
        let graph = chain(6);
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        for limit in [41, 51, 61] {
            let natural = problem.natural.clone();
            let mut keeper = Keeper::new(&problem, natural.clone(), &natural, limit, 1);
            let (found, done) = keeper.run(200_000, &mut |_, _| false);
            let found = found.expect("something to choose");
            assert!(done >= 200_000);
            let Exact::Fastest(order) = exact(&problem, limit) else {
                panic!("{limit} bytes are enough");
            };
            assert!(found.peak <= limit);
            assert_eq!(found.time, Found::of_order(&problem, &order).time, "at {limit}");
        }
    }
}
