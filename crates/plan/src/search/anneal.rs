//! Simulated annealing over sequences of runs.
//!
//! In: a sequence, a budget, a number of moves. Out: the best sequence met: under the budget the
//! fastest one, otherwise the one with the lowest peak.
//!
//! Energy: `time + price · max(0, peak - budget)`. Moves, each a transaction on a [`Sequence`]:
//! - *rerun*: a read of a storage is served by a new run of its writer right before it, instead of
//!   by the life that it falls into. What the new run reads and is not live is made again too, or
//!   kept longer.
//! - *drop*: a repeated run is taken out, and so is every run that is then useless.
//! - *exchange*, in a bold annealing alone: a drop, and a rerun in which all that is missing is
//!   made again. Such reruns on demand come alone too: as if one storage less were kept.
//! - *shift*: a run moves within the range in which the same runs feed it and are fed by it.
//!
//! A move is taken if it lowers the energy, otherwise with probability `exp(-increase /
//! temperature)`; the temperature falls geometrically.

use std::cmp::Ordering;

use super::problem::Problem;
use super::random::Random;
use super::sequence::Sequence;

/// What to do and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cooling {
    pub(crate) work: u64,
    pub(crate) hot: f64,
    pub(crate) cold: f64,
}

/// Which moves an annealing makes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moves {
    /// Reruns, drops, shifts.
    Plain,
    /// These, and exchanges, and reruns on demand all the way back.
    Bold,
}

/// A sequence with what it costs.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) order: Vec<u32>,
    pub(crate) peak: i64,
    pub(crate) time: f64,
}

impl Found {
    pub(crate) fn of(sequence: &Sequence) -> Found {
        Found { order: sequence.order(), peak: sequence.peak(), time: sequence.time() }
    }

    pub(crate) fn of_order(problem: &Problem, order: &[u32]) -> Found {
        let during = problem.bytes_during(order);
        Found {
            order: order.to_vec(),
            peak: during.into_iter().max().unwrap_or(problem.base),
            time: order.iter().map(|&v| problem.time[v as usize]).sum(),
        }
    }

    /// The better answer to `budget` first.
    pub(crate) fn rank(&self, other: &Found, budget: i64) -> Ordering {
        match (self.beats(other, budget), other.beats(self, budget)) {
            (true, _) => Ordering::Less,
            (_, true) => Ordering::Greater,
            _ => self.order.cmp(&other.order),
        }
    }

    /// Whether `self` is the better answer to `budget`.
    pub(crate) fn beats(&self, other: &Found, budget: i64) -> bool {
        beats((self.peak, self.time), (other.peak, other.time), budget)
    }
}

/// Where the peak of a sequence is reached first.
pub(crate) fn highest_run(problem: &Problem, order: &[u32]) -> usize {
    let during = problem.bytes_during(order);
    let highest = (0..during.len()).rev().max_by_key(|&i| during[i]);
    highest.unwrap_or(0)
}

fn beats(a: (i64, f64), b: (i64, f64), budget: i64) -> bool {
    match (a.0 <= budget, b.0 <= budget) {
        (true, true) => a.1 < b.1,
        (true, false) => true,
        (false, true) => false,
        (false, false) => a.0 < b.0,
    }
}

pub(crate) struct Annealer<'m> {
    pub(crate) sequence: Sequence<'m>,
    budget: i64,
    random: Random,
    /// Microseconds per byte over the budget.
    price: f64,
    unit: f64,
    /// Nodes with more than one run, and where each stands in that list.
    repeated: Vec<u32>,
    place: Vec<u32>,
    /// Nodes whose number of runs may have changed in this transaction.
    touched: Vec<u32>,
    stack: Vec<u32>,
    /// How the move at hand goes on where something is missing.
    reach: Reach,
    moves: Moves,
}

/// How a new run gets what is not live where it stands: by another new run with this chance, as far
/// back and as often as this; otherwise it is kept longer.
#[derive(Clone, Copy, Debug)]
struct Reach {
    chance: f64,
    depth: u32,
    runs: usize,
}

/// A mixture of both ways, and all on demand: as if the storage alone were not kept.
const MIXED: Reach = Reach { chance: 0.5, depth: 6, runs: 10 };
const ON_DEMAND: Reach = Reach { chance: 1.0, depth: 24, runs: 40 };

/// Microseconds per byte over the budget, as shares of (time of the step / budget), at the
/// beginning and at the end. A plan at half of the peak gains about a tenth from one more byte, so
/// the first is soft, the last hard.
const PRICES: (f64, f64) = (0.05, 5.0);

const NOWHERE: u32 = u32::MAX;

/// Slots and storages looked at beside the edits that count as one unit of work, and how many of
/// them are free. Where runs crowd together, as where thousands of chains lie side by side, the
/// slots are spread again every few moves; on the corpus it is so rare that these never count.
const LOOKED: u64 = 16;
const LOOKED_FREE: u64 = 8_000_000;

impl<'m> Annealer<'m> {
    pub(crate) fn new(
        sequence: Sequence<'m>,
        moves: Moves,
        budget: i64,
        seed: u64,
    ) -> Annealer<'m> {
        let problem = sequence.problem;
        let mut annealer = Annealer {
            budget,
            random: Random::new(seed),
            price: 0.0,
            unit: problem.least_time() / (budget.max(1) as f64),
            repeated: Vec::new(),
            place: vec![NOWHERE; problem.time.len()],
            touched: Vec::new(),
            stack: Vec::new(),
            reach: MIXED,
            moves,
            sequence,
        };
        for v in 0..problem.time.len() {
            annealer.note(v as u32);
        }
        annealer
    }

    /// Keeps the list of repeated nodes up to date for one node.
    fn note(&mut self, v: u32) {
        let repeated = self.sequence.runs_of(v as usize).len() > 1;
        let place = self.place[v as usize];
        if repeated && place == NOWHERE {
            self.place[v as usize] = self.repeated.len() as u32;
            self.repeated.push(v);
        } else if !repeated && place != NOWHERE {
            self.repeated.swap_remove(place as usize);
            if let Some(&moved) = self.repeated.get(place as usize) {
                self.place[moved as usize] = place;
            }
            self.place[v as usize] = NOWHERE;
        }
    }

    fn energy(&self) -> f64 {
        self.sequence.time() + self.price * self.sequence.above(self.budget) as f64
    }

    /// Runs the schedule; the best that was met.
    pub(crate) fn run(
        &mut self,
        schedule: &Cooling,
        stop: &mut dyn FnMut(u64, &Found) -> bool,
    ) -> Found {
        let mut best = Found::of(&self.sequence);
        let mut energy = self.energy();
        let cooling = (schedule.cold / schedule.hot).ln();
        let hardening = (PRICES.1 / PRICES.0).ln();
        let mut temperature = schedule.hot;
        let begin = self.sequence.work();
        let (looked_before, mut asked) = (self.sequence.looked(), 0);
        for i in 0u64.. {
            if i % 256 == 0 {
                // A move that is not possible does no work, and counts as one all the same.
                let moved = self.sequence.work() - begin + i;
                let looked = self.sequence.looked() - looked_before;
                let done = moved.max(looked.saturating_sub(LOOKED_FREE) / LOOKED);
                let is_due = i % 4096 == 0 || looked - asked > LOOKED_FREE;
                if done >= schedule.work || is_due && stop(done, &best) {
                    break;
                }
                if is_due {
                    asked = looked;
                }
                let progress = done as f64 / schedule.work as f64;
                temperature = schedule.hot * (cooling * progress).exp();
                self.price = self.unit * PRICES.0 * (hardening * progress).exp();
                energy = self.energy();
            }
            let changed = match self.moves {
                Moves::Bold => self.bold_move(),
                Moves::Plain => self.plain_move(),
            };
            if !changed {
                self.undo();
                continue;
            }
            let after = self.energy();
            let worse = after - energy;
            if worse <= 0.0 || self.random.unit() < (-worse / temperature).exp() {
                self.keep();
                energy = after;
                let now = (self.sequence.peak(), self.sequence.time());
                if beats(now, (best.peak, best.time - 1e-6), self.budget) {
                    best = Found::of(&self.sequence);
                }
            } else {
                self.undo();
            }
        }
        best
    }

    fn plain_move(&mut self) -> bool {
        match self.random.below(8) {
            0..=2 => self.rerun(MIXED),
            3 | 4 => self.take_out(),
            _ => self.shift(),
        }
    }

    fn bold_move(&mut self) -> bool {
        match self.random.below(16) {
            0..=4 => self.rerun(MIXED),
            5 | 6 => self.rerun(ON_DEMAND),
            7 => self.exchange(),
            8..=10 => self.take_out(),
            _ => self.shift(),
        }
    }

    fn keep(&mut self) {
        self.sequence.commit();
        while let Some(v) = self.touched.pop() {
            self.note(v);
        }
        self.sequence.relax();
    }

    fn undo(&mut self) {
        self.sequence.rollback();
        self.touched.clear();
        self.stack.clear();
    }

    /// A random run other than the source's.
    fn pick(&mut self) -> u32 {
        let slots = self.sequence.slot_count() as usize;
        loop {
            let slot = self.random.below(slots) as u32;
            if let Some(run) = self.sequence.run_in(slot)
                && self.sequence.node_of(run) != self.sequence.problem.source
            {
                return run;
            }
        }
    }

    /// The move *rerun*.
    fn rerun(&mut self, reach: Reach) -> bool {
        self.reach = reach;
        let run = self.pick();
        let problem = self.sequence.problem;
        let reads = problem.reads.of(self.sequence.node_of(run));
        if reads.is_empty() {
            return false;
        }
        let s = reads[self.random.below(reads.len())] as usize;
        self.serve_anew(s, run, 0)
    }

    /// The move *exchange*.
    fn exchange(&mut self) -> bool {
        self.take_out() && self.rerun(ON_DEMAND)
    }

    /// A new run of the writer of `s` right before `run`.
    fn serve_anew(&mut self, s: usize, run: u32, depth: u32) -> bool {
        let problem = self.sequence.problem;
        let writer = problem.writer[s] as usize;
        if !problem.rerun[writer] {
            return false;
        }
        if !self.sequence.has_room() {
            self.sequence.wants_room();
            return false;
        }
        let slot = self.sequence.slot_of(run);
        let Some((_, _, last)) = self.sequence.life_at(s, slot) else {
            return false;
        };
        // Nothing between the last use and this one: no bytes to be had.
        if (last + 1..slot).all(|p| self.sequence.run_in(p).is_none()) {
            return false;
        }
        if !self.sequence.valid_at(writer, slot) {
            return false;
        }
        let slot = self.sequence.open(run);
        // What the new run needs and is not live there.
        let mut dead = [0u32; 8];
        let mut count = 0;
        for &r in problem.reads.of(writer) {
            if let Some((_, end, _)) = self.sequence.life_at(r as usize, slot)
                && end < slot
                && count < dead.len()
            {
                dead[count] = r;
                count += 1;
            }
        }
        let new = self.sequence.insert(writer, slot);
        self.touched.push(writer as u32);
        for &r in &dead[..count] {
            let reach = self.reach;
            let goes_on = depth < reach.depth && self.touched.len() < reach.runs;
            if goes_on && self.random.chance(reach.chance) {
                self.serve_anew(r as usize, new, depth + 1);
            }
        }
        true
    }

    /// The move *drop*.
    fn take_out(&mut self) -> bool {
        if self.repeated.is_empty() {
            return false;
        }
        let node = self.repeated[self.random.below(self.repeated.len())] as usize;
        let runs = self.sequence.runs_of(node);
        let k = self.random.below(runs.len());
        let run = runs[k];
        self.take(run);
        if k == 0 && !self.sequence.serves_all(node) {
            return false;
        }
        self.prune();
        true
    }

    /// Takes a run out, and puts those that fed it up for pruning.
    fn take(&mut self, run: u32) {
        let problem = self.sequence.problem;
        let node = self.sequence.node_of(run);
        let slot = self.sequence.slot_of(run);
        self.sequence.remove(run);
        self.touched.push(node as u32);
        for &s in problem.reads.of(node) {
            let runs = self.sequence.runs_of(problem.writer[s as usize] as usize);
            if runs.len() > 1 {
                let k = self.sequence.before(runs, slot);
                if k > 0 {
                    self.stack.push(runs[k - 1]);
                }
            }
        }
    }

    fn prune(&mut self) {
        while let Some(run) = self.stack.pop() {
            // A run may have been put up twice, and be gone.
            let there = self.sequence.run_in(self.sequence.slot_of(run)) == Some(run);
            if there && self.sequence.is_useless(run) {
                self.take(run);
            }
        }
    }

    /// The move *shift*.
    fn shift(&mut self) -> bool {
        let run = self.pick();
        let problem = self.sequence.problem;
        let sequence = &self.sequence;
        let node = sequence.node_of(run);
        let slot = sequence.slot_of(run);
        sequence.look(sequence.degree(node));
        // Slots strictly between which it may go.
        let mut low = 0;
        let mut high = sequence.slot_count();
        for &s in problem.reads.of(node) {
            let runs = sequence.runs_of(problem.writer[s as usize] as usize);
            let k = sequence.before(runs, slot);
            low = low.max(sequence.slot_of(runs[k - 1]));
        }
        for &s in problem.writes.of(node) {
            let reads = sequence.readers_of(s as usize);
            if let Some(&read) = reads.get(sequence.before(reads, slot)) {
                high = high.min(sequence.slot_of(read));
            }
        }
        let runs = sequence.runs_of(node);
        let k = sequence.before(runs, slot);
        if k > 0 {
            low = low.max(sequence.slot_of(runs[k - 1]));
        }
        if let Some(&next) = runs.get(k + 1) {
            high = high.min(sequence.slot_of(next));
        }
        for &u in problem.not_after.of(node) {
            if let Some(&u) = sequence.runs_of(u as usize).first() {
                high = high.min(sequence.slot_of(u));
            }
        }
        for &n in problem.not_before.of(node) {
            if let Some(&n) = sequence.runs_of(n as usize).last() {
                low = low.max(sequence.slot_of(n));
            }
        }
        if low + 1 >= high {
            return false;
        }
        let target = match self.random.below(4) {
            0 => low + 1,
            1 => high - 1,
            _ => low + 1 + self.random.below((high - low - 1) as usize) as u32,
        };
        self.move_to(run, target, high)
    }

    /// Moves `run` to `target` or the next slot behind it that can be had, before `high`.
    fn move_to(&mut self, run: u32, target: u32, high: u32) -> bool {
        let node = self.sequence.node_of(run);
        // The run that will stand right behind it.
        let anchor = (target..self.sequence.slot_count()).find_map(|p| self.sequence.run_in(p));
        let Some(anchor) = anchor else {
            return false;
        };
        if anchor == run || self.sequence.slot_of(anchor) > high {
            return false;
        }
        let before = (0..self.sequence.slot_of(anchor)).rev().find_map(|p| self.sequence.run_in(p));
        if before == Some(run) {
            return false;
        }
        self.sequence.remove(run);
        let to = self.sequence.open(anchor);
        self.sequence.insert(node, to);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::needed_nodes;
    use crate::testing::{chain, node, parts};
    use rekindle_graph::{Graph, Phase};

    /// Thousands of edits and undone edits leave the same bytes and time as a fresh count of the
    /// same order.
    #[test]
    fn a_sequence_that_was_edited_equals_one_that_is_loaded() {
        let graph = chain(12);
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        for budget in [60, 80, 110] {
            let sequence = Sequence::new(&problem, &problem.natural);
            let mut annealer = Annealer::new(sequence, Moves::Plain, budget, 1);
            let schedule = Cooling { work: 20_000, hot: 1.0, cold: 0.01 };
            let found = annealer.run(&schedule, &mut |_, _| false);
            let edited = &annealer.sequence;
            let loaded = Sequence::new(&problem, &edited.order());
            assert_eq!(edited.peak(), loaded.peak());
            assert!((edited.time() - loaded.time()).abs() < 1e-6);
            // The sweep from the end is another way to the same numbers.
            let swept = Found::of_order(&problem, &edited.order());
            assert_eq!((swept.peak, swept.time), (loaded.peak(), loaded.time()));
            let during = problem.bytes_during(&swept.order);
            let highest = during.iter().position(|&bytes| bytes == loaded.peak());
            assert_eq!(Some(highest_run(&problem, &swept.order)), highest);
            assert_eq!(found.peak, Found::of_order(&problem, &found.order).peak);
            assert!(found.peak <= budget, "{} over {budget}", found.peak);
        }
    }
    /// Nodes side by side crowd behind the source, and the slots are spread again every few moves:
    /// a hundred times the work that the edits are, if it did not count.
    #[test]
    fn spreading_the_slots_again_counts() {
        let n = 4000;
        let name = |i: u32| format!("f{i}");
        let mut nodes: Vec<_> =
            (1..=n).map(|i| node(&name(i), Phase::Forward, &[0], &[i])).collect();
        let all: Vec<u32> = (1..=n).collect();
        nodes.push(node("sink", Phase::Forward, &all, &[n + 1]));
        let graph = Graph::new(parts(&vec![10; n as usize + 1], nodes)).expect("a graph");
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        let mut annealer =
            Annealer::new(Sequence::new(&problem, &problem.natural), Moves::Plain, 1, 1);
        let schedule = Cooling { work: 400_000, hot: 1.0, cold: 0.01 };
        let mut asked = 0;
        annealer.run(&schedule, &mut |_, _| {
            asked += 1;
            false
        });
        // The limit is looked at every 256 moves, each of which may spread all slots.
        let once = u64::from(annealer.sequence.slot_count()) + 3 * u64::from(n);
        let looked = annealer.sequence.looked();
        assert!(looked <= LOOKED_FREE + LOOKED * schedule.work + 2 * 256 * once);
        assert!(asked > 1);
    }
}
