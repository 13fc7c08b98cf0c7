//! Nested recomputation: the best schedule of a chain, a start for the search at tight budgets.
//!
//! In: a problem with a backward pass, a budget, a number of stages. Out: sequences, from generous
//! to frugal.
//!
//! Method: a dynamic program over a [`Chain`], after Herrmann and others, with several ways to save
//! a stage as by Zhao and others (`docs/algorithms.md`). `T(i, j, m)` is the least time to run
//! stages `i..j` forward from `C_i` and then backward, in `m` bytes beside `C_i` and all that is
//! kept further out:
//!
//! ```text
//! T(i, j, m) = min over  save:  all_i + again_o + T(i + 1, j, m - kept_o - |C_{i+1} \ C_i|)
//!                        pass:  Σ_{i ≤ q < k} through_q + T(k, j, m - |C_k \ C_i|) + T(i, k, m)
//! ```
//!
//! *Save* runs stage `i` and keeps what its saving `o` says until its backward pass; *pass* runs to
//! `C_k`, keeps only that, and comes back to `i` when all behind `k` is done: a recomputation that
//! may hold others. A third choice takes the last stage alone after a *pass* to it, without keeping
//! `C_{j-1}` any longer than that stage needs it. A choice counts where its own runs fit into `m`.
//! Bytes are counted in [`SLOTS`] slots, rounded to the nearest.
//!
//! The tables are then read for several `m`, and each reading is written down as a sequence in
//! which whatever is missing is made on demand; its true peak decides. So neither rounding nor what
//! the chain leaves out of account can make a wrong promise.

use super::anneal::Found;
use super::cuts::without_useless;
use super::problem::Problem;
use super::stages::Chain;

/// Slots that stand for [`REACH`] times the budget.
const SLOTS: usize = 400;
/// The tables go somewhat above the budget, since a chain may overrate what it needs.
const REACH: f64 = 1.4;
/// Runs per node after which a sequence is given up.
const MOST_RUNS: usize = 24;

/// See the module's documentation.
pub(crate) struct Nested<'m> {
    problem: &'m Problem,
    chain: Chain,
    /// Bytes of one slot.
    slot: f64,
    /// `T` and what it comes from, for `i < j` and each number of slots.
    time: Vec<f32>,
    from: Vec<u16>,
}

/// Marks a choice that saves; the other bits are the number of the saving.
const SAVE: u16 = 1 << 15;
/// Marks a choice that takes the last stage first, likewise.
const LAST: u16 = 1 << 14;

impl<'m> Nested<'m> {
    /// Fills the tables; nothing if the problem is no chain.
    pub(crate) fn new(
        problem: &'m Problem,
        order: &[u32],
        budget: i64,
        stages: usize,
    ) -> Option<Nested<'m>> {
        let room = budget - problem.base;
        let chain = Chain::new(problem, order, budget, stages).filter(|_| room > 0)?;
        let cells = chain.stages() * chain.stages() * (SLOTS + 1);
        let mut nested = Nested {
            problem,
            chain,
            slot: room as f64 * REACH / SLOTS as f64,
            time: vec![f32::INFINITY; cells],
            from: vec![0; cells],
        };
        for length in 1..=nested.chain.stages() {
            for i in 0..=nested.chain.stages() - length {
                nested.fill(i, i + length);
            }
        }
        Some(nested)
    }

    /// Work of filling the tables, in cells looked at.
    pub(crate) fn work(&self) -> u64 {
        let stages = self.chain.stages() as u64;
        stages * stages * stages / 6 * SLOTS as u64
    }

    /// Slots, rounded to the nearest.
    fn slots(&self, bytes: i64) -> usize {
        (bytes as f64 / self.slot).round().clamp(0.0, 2.0 * SLOTS as f64) as usize
    }

    fn cell(&self, i: usize, j: usize) -> usize {
        (i * self.chain.stages() + j - 1) * (SLOTS + 1)
    }

    fn fill(&mut self, i: usize, j: usize) {
        let mut time = vec![f32::INFINITY; SLOTS + 1];
        let mut from = vec![0; SLOTS + 1];
        let chain = &self.chain;
        for (o, saving) in chain.savings[i].iter().enumerate() {
            let forward = saving.forward_peak + chain.outside[j];
            let need = self.slots(forward.max(saving.backward_peak));
            let less = self.slots(saving.bytes + chain.across[i][i + 1]);
            let own = (chain.time_all[i] + saving.time) as f32;
            for m in need..=SLOTS {
                let inner = match j - i {
                    1 => 0.0,
                    _ if m < less => continue,
                    _ => self.time[self.cell(i + 1, j) + m - less],
                };
                if own + inner < time[m] {
                    time[m] = own + inner;
                    from[m] = SAVE | o as u16;
                }
            }
        }
        let mut own = 0.0;
        for k in i + 1..j {
            own += chain.time_through[k - 1] as f32;
            let need = self.slots(chain.through[i][k] + chain.outside[j]);
            let less = self.slots(chain.across[i][k]);
            let start = need.max(less).min(SLOTS + 1);
            let (behind, before) = (self.cell(k, j), self.cell(i, k));
            let behind = &self.time[behind + start - less..behind + SLOTS + 1 - less];
            let before = &self.time[before + start..before + SLOTS + 1];
            let found = time[start..].iter_mut().zip(&mut from[start..]);
            for ((time, from), (behind, before)) in found.zip(behind.iter().zip(before)) {
                if own + behind + before < *time {
                    *time = own + behind + before;
                    *from = k as u16;
                }
            }
        }
        // The last stage alone, with `C_{j-1}` for no longer than it takes.
        if j > i + 1 {
            let q = j - 1;
            let before = self.cell(i, q);
            for (o, saving) in chain.savings[q].iter().enumerate() {
                let through = chain.through[i][q] + chain.outside[j];
                let need = self.slots(through.max(saving.alone_peak));
                let own = own + (chain.time_all[q] + saving.time) as f32;
                for m in need..=SLOTS {
                    if own + self.time[before + m] < time[m] {
                        time[m] = own + self.time[before + m];
                        from[m] = LAST | o as u16;
                    }
                }
            }
        }
        let cell = self.cell(i, j);
        self.time[cell..=cell + SLOTS].copy_from_slice(&time);
        self.from[cell..=cell + SLOTS].copy_from_slice(&from);
    }

    /// The fewest slots for which there is a schedule.
    pub(crate) fn fewest(&self) -> Option<usize> {
        let cell = self.cell(0, self.chain.stages());
        (0..=SLOTS).find(|m| self.time[cell + m].is_finite())
    }

    /// The schedule for so many slots, if it can be written down.
    pub(crate) fn sequence(&self, slots: usize) -> Option<Found> {
        let mut writer = Writer::new(self);
        writer.solve(0, self.chain.stages(), slots)?;
        let because = vec![None; writer.order.len()];
        let built = without_useless(self.problem, &writer.order, &because);
        Some(Found::of_order(self.problem, &built.order))
    }

    /// Sequences for several numbers of slots: the fastest under `limit`, and those beside it.
    pub(crate) fn near(&self, limit: i64, tries: u32) -> Vec<Found> {
        let mut found = Vec::new();
        let Some(mut low) = self.fewest() else {
            return found;
        };
        let mut high = SLOTS;
        for i in 0..tries {
            let slots = match i {
                0 => low,
                1 => high,
                _ => low.midpoint(high),
            };
            let sequence = self.sequence(slots);
            match sequence.as_ref().is_some_and(|s| s.peak <= limit) {
                true => low = slots,
                false if i == 0 => high = (low + SLOTS / 16).min(SLOTS),
                false => high = slots,
            }
            found.extend(sequence);
            if high <= low + 1 && i > 1 {
                break;
            }
        }
        found
    }
}

/// Writes a schedule down as a sequence.
struct Writer<'a, 'm> {
    nested: &'a Nested<'m>,
    order: Vec<u32>,
    live: Vec<bool>,
    ran: Vec<bool>,
}

impl<'a, 'm> Writer<'a, 'm> {
    fn new(nested: &'a Nested<'m>) -> Writer<'a, 'm> {
        let problem = nested.problem;
        let mut writer = Writer {
            nested,
            order: Vec::new(),
            live: vec![false; problem.bytes.len()],
            ran: vec![false; problem.time.len()],
        };
        writer.run(problem.source as u32);
        writer
    }

    /// Stages `i..j`, forward and backward.
    fn solve(&mut self, i: usize, j: usize, slots: usize) -> Option<()> {
        let (nested, chain) = (self.nested, &self.nested.chain);
        let cell = nested.cell(i, j) + slots;
        if nested.time[cell].is_infinite() {
            return None;
        }
        let choice = nested.from[cell];
        if choice & SAVE != 0 {
            let saving = &chain.savings[i][(choice ^ SAVE) as usize];
            self.forward(i, &saving.kept)?;
            if j > i + 1 {
                let less = nested.slots(saving.bytes + chain.across[i][i + 1]);
                self.solve(i + 1, j, slots - less)?;
            }
            for &b in &chain.backward[i] {
                self.reach(b)?;
            }
            self.forget(i, i + 1);
            return Some(());
        }
        let k = match choice & LAST != 0 {
            true => j - 1,
            false => choice as usize,
        };
        for q in i..k {
            self.forward(q, &[])?;
            // What no stage behind reads is not kept; `C_i` is.
            for &s in chain.made[i..q].iter().flatten() {
                if chain.last[s as usize] as usize == q {
                    self.live[s as usize] = false;
                }
            }
        }
        if choice & LAST != 0 {
            let saving = &chain.savings[k][(choice ^ LAST) as usize];
            self.forward(k, &saving.kept)?;
            for &b in &chain.backward[k] {
                self.reach(b)?;
            }
            self.forget(k, j);
        } else {
            self.solve(k, j, slots - nested.slots(chain.across[i][k]))?;
        }
        self.forget(i, k);
        self.solve(i, k, slots)
    }

    /// Runs stage `q` forward; of what it makes, `kept` and what crosses its end stay. The first
    /// time every node of it runs.
    fn forward(&mut self, q: usize, kept: &[u32]) -> Option<()> {
        let chain = &self.nested.chain;
        for &v in &chain.forward[q] {
            if !self.ran[v as usize] {
                self.reach(v)?;
            }
        }
        for &s in &chain.made[q] {
            if chain.crosses_end(s, q) || kept.contains(&s) {
                self.make(s)?;
            }
        }
        for &s in &chain.made[q] {
            self.live[s as usize] &= chain.crosses_end(s, q) || kept.contains(&s);
        }
        Some(())
    }

    /// What stages `i..j` made is gone.
    fn forget(&mut self, i: usize, j: usize) {
        for &s in self.nested.chain.made[i..j].iter().flatten() {
            self.live[s as usize] = false;
        }
    }

    fn run(&mut self, v: u32) {
        self.order.push(v);
        self.ran[v as usize] = true;
        for &s in self.nested.problem.writes.of(v as usize) {
            self.live[s as usize] = true;
        }
    }

    /// Makes a storage live.
    fn make(&mut self, s: u32) -> Option<()> {
        match self.live[s as usize] {
            true => Some(()),
            false => self.reach(self.nested.problem.writer[s as usize]),
        }
    }

    /// Runs a node, and before it whatever is missing; nothing if that is not allowed.
    fn reach(&mut self, v: u32) -> Option<()> {
        let problem = self.nested.problem;
        let mut open = vec![v];
        while let Some(&v) = open.last() {
            let mut reads = problem.reads.of(v as usize).iter();
            if let Some(&s) = reads.find(|&&s| !self.live[s as usize]) {
                open.push(problem.writer[s as usize]);
                continue;
            }
            let over = |&u: &u32| self.ran[u as usize];
            let is_over = problem.not_after.of(v as usize).iter().any(over);
            let again = self.ran[v as usize] && !problem.rerun[v as usize];
            if is_over || again || self.order.len() > MOST_RUNS * problem.natural.len() {
                return None;
            }
            open.pop();
            self.run(v);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use rekindle_graph::{Bytes, NodeId, Schedule, Timeline};

    use super::*;
    use crate::draft::needed_nodes;
    use crate::search::exact::{Exact, exact};
    use crate::testing::chain;

    /// In a chain of `n` layers, an activation takes 10 bytes and the input 1; a backward node
    /// needs three of 10. Every sequence can be replayed and has the peak and time that it says.
    #[test]
    fn a_long_chain_fits_into_a_few_activations() {
        let graph = chain(40);
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        let mut times = Vec::new();
        for limit in [71, 101, 201] {
            let nested = Nested::new(&problem, &problem.natural, limit, 40).expect("a chain");
            let found = nested.near(limit, 10);
            for f in &found {
                let runs = f.order.iter().filter(|&&v| v as usize != problem.source);
                let runs: Vec<NodeId> = runs.map(|&v| NodeId(v)).collect();
                let replayed = Timeline::new(&graph, &Schedule::of_order(&graph, &runs));
                let replayed = replayed.expect("a valid sequence");
                assert_eq!(replayed.peak, Bytes(f.peak as u64));
                assert!((replayed.time.get() - f.time).abs() < 1e-6);
            }
            let best = found.iter().filter(|f| f.peak <= limit).map(|f| f.time);
            times.push(best.reduce(f64::min).expect("one that fits"));
        }
        // 80 nodes once. Twenty activations at once make one recomputation of most enough; with
        // seven, recomputations hold others.
        assert!(times[2] < 80.0 + 40.0, "{times:?}");
        assert!(times[1] > times[2] && times[0] > times[1], "{times:?}");
        assert!(times[0] < 80.0 + 120.0, "{times:?}");
    }

    /// Beside exhaustive search, at every budget of a short chain.
    #[test]
    fn a_short_chain_is_near_the_best() {
        let graph = chain(6);
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        for limit in [41, 51, 61] {
            let Exact::Fastest(order) = exact(&problem, limit) else {
                panic!("{limit} bytes are enough");
            };
            let nested = Nested::new(&problem, &problem.natural, limit, 6).expect("a chain");
            let fits = nested.near(limit, 10).into_iter().filter(|f| f.peak <= limit);
            let best = fits.map(|f| f.time).reduce(f64::min).expect("one that fits");
            let exact = Found::of_order(&problem, &order).time;
            assert!(best >= exact && best <= exact + 3.0, "{limit}: {best} of {exact}");
        }
    }
}
