//! What to keep across one moment, if bytes had a price.
//!
//! In: a problem, the nodes of the *past* and which storages the *future* needs. Out, for a price λ
//! of a byte, the nodes to run again after the moment.
//!
//! Formulation: `D_s = 1` if storage `s` of the past is needed after the moment, `R_w = 1` if node
//! `w` of the past runs again. Minimise `Σ time_w · R_w + λ · Σ bytes_s · [D_s and not
//! R_writer(s)]` subject to `D_s = 1` for what the future reads, and `R_w ≤ D_s` for what `w`
//! reads. This is a minimum cut: arcs `D_s → R_writer(s)` of capacity `λ · bytes_s`, `R_w → sink`
//! of capacity `time_w`, and uncuttable arcs `source → D_s` and `R_w → D_s`. A node that may not
//! run again has no arc to the sink that can be cut.

use super::flow::{Network, UNCUT};
use super::problem::Problem;

/// Capacities per microsecond: fine enough that rounding down costs nothing that matters.
pub(crate) const SCALE: f64 = 1024.0;

/// Searches for one cut, after which it is given up. The corpus needs fewer than a hundred.
const MOST_SEARCHES: u32 = 400;

/// See the module's documentation.
pub(crate) struct Crossing<'m> {
    problem: &'m Problem,
    network: Network,
    source: usize,
    sink: usize,
    /// The arcs whose capacity is a price of bytes, with those bytes.
    priced: Vec<(usize, f64)>,
    /// The storage of each of `priced`, and by how much its price is above the others'.
    storages: Vec<u32>,
    weights: Vec<f64>,
    /// The network's node for each node of the past, and the arc that its time is the capacity of.
    again: Vec<(u32, usize, usize)>,
}

impl<'m> Crossing<'m> {
    /// `past[v]`: node `v` has run. `needed[s]`: the future reads storage `s`, which the past
    /// wrote. `free[s]`: storage `s` is live at the moment in any case, and costs nothing. All
    /// solutions together look at `most_arcs`, and are then given up.
    pub(crate) fn new(
        problem: &'m Problem,
        past: &[bool],
        needed: &[bool],
        free: &[bool],
        most_arcs: u64,
    ) -> Crossing<'m> {
        // Only what can be needed again gets a node: walk back from what the future reads.
        let mut of_storage = vec![usize::MAX; problem.bytes.len()];
        let mut of_node = vec![usize::MAX; problem.time.len()];
        let mut stack: Vec<u32> = Vec::new();
        let (source, sink) = (0, 1);
        let mut count = 2;
        let mut storages = Vec::new();
        let mut again = Vec::new();
        for s in 0..problem.bytes.len() {
            if needed[s] && !free[s] && past[problem.writer[s] as usize] {
                stack.push(s as u32);
                of_storage[s] = count;
                storages.push(s as u32);
                count += 1;
            }
        }
        let forced = storages.len();
        while let Some(s) = stack.pop() {
            let w = problem.writer[s as usize];
            if of_node[w as usize] != usize::MAX || !problem.rerun[w as usize] {
                continue;
            }
            of_node[w as usize] = count;
            again.push((w, count));
            count += 1;
            for &r in problem.reads.of(w as usize) {
                if of_storage[r as usize] == usize::MAX && !free[r as usize] {
                    of_storage[r as usize] = count;
                    storages.push(r);
                    stack.push(r);
                    count += 1;
                }
            }
        }
        let reads = again.iter().map(|&(w, _)| problem.reads.of(w as usize).len());
        let arcs = storages.len() + forced + again.len() + reads.sum::<usize>();
        let mut network = Network::new(count, arcs, most_arcs);
        let mut priced = Vec::with_capacity(storages.len());
        for (i, &s) in storages.iter().enumerate() {
            let d = of_storage[s as usize];
            let w = of_node[problem.writer[s as usize] as usize];
            let bytes = problem.bytes[s as usize] as f64;
            // What cannot run again is paid for in bytes.
            let to = if w == usize::MAX { sink } else { w };
            priced.push((network.arc(d, to, 0), bytes));
            if i < forced {
                network.arc(source, d, UNCUT);
            }
        }
        let mut timed = Vec::with_capacity(again.len());
        for &(w, r) in &again {
            let arc = network.arc(r, sink, (problem.time[w as usize] * SCALE) as i64);
            timed.push((w, r, arc));
            for &s in problem.reads.of(w as usize) {
                if of_storage[s as usize] != usize::MAX {
                    network.arc(r, of_storage[s as usize], UNCUT);
                }
            }
        }
        Crossing {
            problem,
            network,
            source,
            sink,
            weights: vec![1.0; priced.len()],
            priced,
            storages,
            again: timed,
        }
    }

    /// From now on `node` may not run again.
    pub(crate) fn forbid(&mut self, node: u32) {
        for &(w, _, arc) in &self.again {
            if w == node {
                self.network.set(arc, UNCUT);
            }
        }
    }

    /// From now on the price of a byte of storage `s` is `weights[s]` times the given one.
    pub(crate) fn weigh(&mut self, weights: &[f64]) {
        let storages = self.storages.iter();
        self.weights = storages.map(|&s| weights[s as usize]).collect();
    }

    /// The least `time + price · bytes`, in microseconds, never more than the truth. It is given up
    /// when `stop` says so of the arcs looked at since it was asked.
    pub(crate) fn least(&mut self, price: f64, stop: &dyn Fn(u64) -> bool) -> f64 {
        for (&(arc, bytes), weight) in self.priced.iter().zip(&self.weights) {
            let capacity = bytes * weight * price * SCALE;
            self.network.set(arc, capacity.min(UNCUT as f64) as i64);
        }
        let (source, sink) = (self.source, self.sink);
        self.network.cut(source, sink, MOST_SEARCHES, stop) as f64 / SCALE
    }

    /// Solutions at a higher price from now on start from the last one, which saves work.
    pub(crate) fn keep(&mut self) {
        self.network.keep();
    }

    /// Whether the last solution was found, and not given up: then only its value counts, as a
    /// lower bound.
    pub(crate) fn is_solved(&self) -> bool {
        self.network.is_whole()
    }

    /// Whether no more arcs may be looked at.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.network.is_exhausted()
    }

    /// Arcs looked at so far.
    pub(crate) fn work(&self) -> u64 {
        self.network.work()
    }

    /// The nodes that run again in the last solution.
    pub(crate) fn again(&self) -> Vec<bool> {
        let side = self.network.on_source_side(self.source);
        let mut again = vec![false; self.problem.time.len()];
        for &(w, r, _) in &self.again {
            again[w as usize] = side[r];
        }
        again
    }

    /// Bytes kept in the last solution.
    pub(crate) fn kept(&self) -> f64 {
        let side = self.network.on_source_side(self.source);
        let kept = self.priced.iter().filter(|(arc, _)| {
            let (from, to) = self.network.ends(*arc);
            side[from] && !side[to]
        });
        kept.map(|&(_, bytes)| bytes).sum()
    }
}
