//! A lower bound on the time of any schedule under a budget, in any order and with any
//! recomputation.
//!
//! In: a problem and a budget. Out: microseconds.
//!
//! Argument. Take a node `v` that every schedule runs, and the moment of its *first* run. By then
//! every ancestor of `v` has run, and no descendant of `v` has, since each needs something that `v`
//! leads to. Every descendant that is needed runs later. What it reads from an ancestor of `v` is
//! then either live at the moment, or written again later, which is a repeated run; and what a
//! repeated run reads is again either live at the moment or written again later (all writers before
//! an ancestor are ancestors). So the repeated runs `R` and the live set `L` satisfy the
//! constraints of a [`Crossing`] with the ancestors as the past, and
//!
//! ```text
//! time ≥ Σ time of needed nodes + Σ_{w ∈ R} time_w,      bytes(L) ≤ budget.
//! ```
//!
//! `L` contains what `v` reads and writes, and `base` and its scratch are there too; `room` is what
//! is left. Relaxing the budget with a price λ ≥ 0 gives, for each `v` and λ, the valid bound
//! `min_cut(λ) - λ · room`, concave in λ. Nodes that are neither ancestors nor descendants of `v`
//! may run before or after the moment and ask for nothing, so the bound holds under reordering.
//!
//! Method: a few nodes `v` are tried, those at which the graph's own order holds the most bytes,
//! since there the room is short; for each, λ is found by bisection on the sign of the slope.
//!
//! Limits: each moment counts alone. A schedule that is tight at two moments may need more: see
//! [`moments`](crate::moments).

use crate::search::crossing::Crossing;
use crate::search::problem::Problem;

/// Bisection steps for the price.
const STEPS: u32 = 16;
/// Moments that are tried.
const MOMENTS: usize = 24;
/// Arcs that one moment may look at: twenty times what the corpus needs, and less than a tenth of
/// a second.
const MOMENT_ARCS: u64 = 8_000_000;

/// A bound, and the moment that gives it.
pub(crate) struct Single {
    /// No schedule takes less.
    pub(crate) time: f64,
    /// The node at whose first run it is so, if any gives more than the needed nodes do.
    pub(crate) at: Option<u32>,
}

/// The best bound over the moments tried, which together look at `most_work` arcs and then at no
/// other moment.
pub(crate) fn time_bound(problem: &Problem, budget: i64, most_work: u64) -> Single {
    let mut work = 0;
    let (mut best, mut at) = (0.0f64, None);
    for v in moments(problem) {
        let (extra, arcs) = extra_at(problem, budget, v, best);
        if extra > best {
            (best, at) = (extra, Some(v as u32));
        }
        work += arcs;
        if work > most_work {
            break;
        }
    }
    Single { time: problem.least_time() + best, at }
}

/// The nodes at which the graph's own order holds the most bytes, most first.
fn moments(problem: &Problem) -> Vec<usize> {
    let during = problem.bytes_during(&problem.natural);
    let bytes = during.into_iter().map(|bytes| -bytes);
    let mut nodes: Vec<(i64, u32)> = bytes.zip(problem.natural.iter().copied()).skip(1).collect();
    nodes.sort_unstable();
    nodes.truncate(MOMENTS);
    nodes.into_iter().map(|(_, v)| v as usize).collect()
}

/// Time of the repeated runs that the moment of `v` asks for, and arcs looked at. Less work is done
/// where it turns out not to be above `best`.
fn extra_at(problem: &Problem, budget: i64, v: usize, best: f64) -> (f64, u64) {
    let past = problem.ancestors(v);
    let after = problem.descendants(v);
    let mut free = vec![false; problem.bytes.len()];
    let mut room = budget - problem.base - problem.workspace[v];
    for &s in problem.reads.of(v).iter().chain(problem.writes.of(v)) {
        free[s as usize] = true;
        room -= problem.bytes[s as usize];
    }
    let mut needed = problem.kept.clone();
    for &w in &problem.natural {
        if after[w as usize] {
            for &s in problem.reads.of(w as usize) {
                needed[s as usize] = true;
            }
        }
    }
    let mut moment = Crossing::new(problem, &past, &needed, &free, MOMENT_ARCS);
    let room = room as f64;
    let (mut low, mut high) = (0.0, 4.0 * problem.least_time() / budget.max(1) as f64);
    // Below `low` the bound rises with the price and above `high` it falls, each with at most the
    // slope there.
    let (mut at_low, mut slope) = (0.0, moment.all_bytes() - room);
    let mut extra = 0.0f64;
    for step in 0..STEPS {
        let price = if step == 0 { high } else { (low + high) / 2.0 };
        let value = moment.least(price, &|_| false) - price * room;
        extra = extra.max(value);
        let kept = moment.kept();
        if kept > room && moment.is_solved() {
            if step == 0 {
                break;
            }
            (low, at_low, slope) = (price, value, kept - room);
            moment.keep();
        } else {
            high = price;
        }
        if at_low + slope * (high - low) <= best || moment.is_exhausted() {
            break;
        }
    }
    (extra, moment.work())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::needed_nodes;
    use crate::testing::chain;

    /// Three forward nodes whose outputs of 10 bytes all wait for the first backward node: with the
    /// input, that node needs 1 + 3 · 10 + 10. With 10 bytes less, one of the two that wait runs
    /// again.
    #[test]
    fn bytes_that_do_not_fit_cost_the_cheapest_run() {
        let graph = chain(3);
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        assert_eq!(time_bound(&problem, 41, 1000).time, 6.0);
        let bound = time_bound(&problem, 31, 1000).time;
        assert!(bound > 6.9 && bound <= 7.0, "{bound}");
    }
}
