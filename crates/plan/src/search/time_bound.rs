//! The lower bound on the time of any schedule under a budget: of a single moment, and of several
//! at once where that leaves a gap.

use std::borrow::Cow;

use rekindle_graph::{Bytes, Graph, Micros};

use super::problem::Problem;
use super::signed;
use crate::bound::{self, Single};
use crate::draft::needed_nodes;
use crate::{Effort, moments};

/// Arcs that the bound of a first plan may look at.
const FIRST_BOUND_ARCS: u64 = 1_000_000;
/// Arcs that the bound may look at otherwise. A graph of two thousand nodes needs about half of it.
const BOUND_ARCS: u64 = 20_000_000;
/// Moments that count together in the bound, and steps that look for their prices. A high effort
/// tries both, so that it never knows less than the default.
const SEVERAL: [(usize, u32); 2] = [(12, 1200), (32, 8000)];
/// A gap that is small enough, as a share of the step's time.
const LITTLE: f64 = 5e-3;

/// No schedule under `budget` takes less time than this.
pub(crate) fn time_bound(graph: &Graph, budget: Bytes, effort: Effort) -> Micros {
    let problem = Problem::new(graph, &needed_nodes(graph));
    Micros(Bound::new(&problem, signed(budget), effort).of_several())
}

/// The bound of a single moment, from which that of several goes on.
pub(super) struct Bound<'a> {
    problem: Cow<'a, Problem>,
    limit: i64,
    effort: Effort,
    pub(super) single: Single,
}

impl<'a> Bound<'a> {
    pub(super) fn new(problem: &'a Problem, limit: i64, effort: Effort) -> Bound<'a> {
        let arcs = match effort {
            Effort::FIRST => FIRST_BOUND_ARCS,
            _ => BOUND_ARCS,
        };
        let problem = problem.relaxed();
        Bound { single: bound::time_bound(&problem, limit, arcs), problem, limit, effort }
    }

    /// A plan that is no slower needs no better bound, and hardly a better plan.
    pub(super) fn nearly(&self) -> f64 {
        self.single.time + LITTLE * self.problem.least_time()
    }

    /// The best bound of one moment and of several.
    pub(super) fn of_several(&self) -> f64 {
        let several = match self.effort.level() {
            0 => &[],
            1..8 => &SEVERAL[..1],
            _ => &SEVERAL[..],
        };
        let extra = |&(count, steps): &(usize, u32)| {
            moments::extra(&self.problem, self.limit, self.single.at, count, steps)
        };
        let extra = several.iter().map(extra).fold(0.0, f64::max);
        self.single.time.max(self.problem.least_time() + extra)
    }
}
