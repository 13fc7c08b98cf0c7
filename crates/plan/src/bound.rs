//! A lower bound on the time of any schedule under a budget, in any order and with any
//! recomputation.
//!
//! In: a problem and a budget. Out: microseconds.
//!
//! Argument. Take a node `v` that every schedule runs, and the moment of its *first* run. What is
//! live then, and what runs again later, satisfies the constraints of a [`Moment`], and
//!
//! ```text
//! time ≥ Σ time of needed nodes + Σ_{w ∈ R} time_w,      bytes(L) ≤ budget,
//! ```
//!
//! where `R` are the nodes that ran before it and run again later, and `L` is what is live. `L`
//! contains what `v` reads and writes, and what is always live and its scratch are there too;
//! `room` is what is left. Relaxing the budget with a price λ ≥ 0 gives, for each `v` and λ, the
//! valid bound `min_cut(λ) - λ · room`, concave in λ. Nodes that neither lead to `v` nor come of it
//! may have run or not, whichever costs less, so the bound holds under reordering.
//!
//! Method: some nodes `v` are tried: those at which the graph's own order holds the most bytes,
//! since there the room is short, and a few from every stretch of that order; for each, λ is found
//! by bisection on the sign of the slope.
//!
//! Limits: each moment counts alone. A schedule that is tight at two moments may need more: see
//! [`moments`](crate::moments).

use crate::moment::Moment;
use crate::search::problem::Problem;

/// Bisection steps for the price.
const STEPS: u32 = 16;
/// Moments that are tried.
const MOMENTS: usize = 24;
/// Parts of the graph's own order, and moments of each that are tried beside those.
const STRETCHES: usize = 16;
const OF_EACH: usize = 2;
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

/// The nodes at which the graph's own order holds the most bytes, most first; behind them those of
/// each of some stretches of that order.
fn moments(problem: &Problem) -> Vec<usize> {
    let during = problem.bytes_during(&problem.natural);
    let mut nodes: Vec<usize> = (1..during.len()).collect();
    nodes.sort_by_key(|&i| -during[i]);
    let mut taken = [0; STRETCHES];
    let mut others = Vec::new();
    let rest = nodes.split_off(MOMENTS.min(nodes.len()));
    for i in rest {
        let stretch = i * STRETCHES / during.len();
        if taken[stretch] < OF_EACH {
            taken[stretch] += 1;
            others.push(i);
        }
    }
    nodes.iter().chain(&others).map(|&i| problem.natural[i] as usize).collect()
}

/// Time of the repeated runs that the moment of `v` asks for, and arcs looked at. Less work is done
/// where it turns out not to be above `best`.
fn extra_at(problem: &Problem, budget: i64, v: usize, best: f64) -> (f64, u64) {
    let mut moment = Moment::new(problem, budget, v, MOMENT_ARCS);
    let room = moment.room;
    let (mut low, mut high) = (0.0, 4.0 * problem.least_time() / budget.max(1) as f64);
    // Below `low` the bound rises with the price and above `high` it falls, each with at most the
    // slope there.
    let (mut at_low, mut slope) = (0.0, moment.all_bytes() - room);
    let mut extra = 0.0f64;
    for step in 0..STEPS {
        let price = if step == 0 { high } else { (low + high) / 2.0 };
        let value = moment.least(price);
        extra = extra.max(value);
        let live = moment.live();
        if live > room && moment.is_solved() {
            if step == 0 {
                break;
            }
            (low, at_low, slope) = (price, value, live - room);
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
    use crate::search::exact::{Exact, exact};
    use crate::testing::{chain, node, parts};
    use rekindle_graph::{Bytes, Graph, Micros, Phase};

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

    /// `u` may run before `v` or behind it: either what it reads is live at `v`, or what it writes,
    /// and the scratch of `v` leaves room for neither. So `x`, which both need, runs again.
    #[test]
    fn what_is_free_costs_something_wherever_it_lies() {
        let mut parts = parts(
            &[10, 1, 10, 1, 1],
            vec![
                node("x", Phase::Forward, &[0], &[1, 2]),
                node("v", Phase::Forward, &[2], &[4]),
                node("u", Phase::Forward, &[1], &[3]),
                node("e", Phase::Forward, &[3, 4], &[5]),
            ],
        );
        parts.nodes[1].time = Micros(5.0);
        parts.nodes[2].workspace = Bytes(20);
        let graph = Graph::new(parts).expect("a graph");
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        let budget = 1 + 1 + 1 + 20 + 5;
        let Exact::Fastest(order) = exact(&problem, budget) else {
            panic!("{budget} bytes are enough");
        };
        let truth: f64 = order.iter().map(|&v| problem.time[v as usize]).sum();
        assert_eq!(truth, 8.0 + 5.0);
        let bound = time_bound(&problem, budget, 1000).time;
        assert!(bound > 10.0 && bound <= truth, "{bound}");
    }
}
