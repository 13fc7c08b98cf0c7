//! The trade-off between peak and time, from the plain step down to the smallest peak known.
//!
//! Method: budgets at equal distances between the two ends; each is planned on its own. A plan for
//! a smaller budget is also one for every larger budget, so where the smaller one is faster it
//! takes the larger one's place: along the frontier a smaller budget never gives a larger peak, and
//! a larger one never more time.

use rekindle_graph::{Bytes, Graph};

use crate::draft::least_time;
use crate::{Options, PlanError, Planned, Watch, plan, smallest};

/// Plans from the largest budget to the smallest.
#[derive(Clone, Debug, PartialEq)]
pub struct Frontier {
    /// Budgets descend, peaks never rise, times never fall.
    pub points: Vec<Planned>,
}

/// Plans at `count` budgets from the plain step's peak to the smallest peak known, both included.
/// There may be fewer if no budget lies between them.
///
/// # Errors
/// What [`plan`] gives for reasons other than the budget.
pub fn frontier(
    graph: &Graph,
    count: usize,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Frontier, PlanError> {
    let least = smallest(graph, options, watch)?;
    let (high, low) = (least.stats.plain_peak, least.plan.peak);
    let mut points = vec![least];
    for budget in budgets(low, high, count.max(2)).into_iter().skip(1) {
        points.push(match plan(graph, budget, options, watch) {
            Ok(planned) => planned,
            // A strategy may find nothing although a smaller budget shows that there is a plan.
            Err(PlanError::Infeasible(_) | PlanError::Stopped { .. }) => {
                let below = points.last().expect("starts with one");
                below.at_budget(budget, least_time(graph))
            }
            Err(error) => return Err(error),
        });
    }
    make_monotone(&mut points);
    points.reverse();
    Ok(Frontier { points })
}

/// `points` ascend by budget. A plan that also fits a neighbour's budget and is better there takes
/// the neighbour's place.
fn make_monotone(points: &mut [Planned]) {
    for i in 1..points.len() {
        if points[i - 1].plan.time < points[i].plan.time {
            let (budget, bound) = (points[i].plan.budget, points[i].lower_bound);
            points[i] = points[i - 1].at_budget(budget, bound);
        }
    }
    for i in (1..points.len()).rev() {
        if points[i].plan.peak < points[i - 1].plan.peak {
            let (budget, bound) = (points[i - 1].plan.budget, points[i - 1].lower_bound);
            points[i - 1] = points[i].at_budget(budget, bound);
        }
    }
}

/// `count` budgets at equal distances, ascending, without repeats.
fn budgets(low: Bytes, high: Bytes, count: usize) -> Vec<Bytes> {
    let span = u128::from((high - low).get());
    let steps = count as u128 - 1;
    let at = |i: u128| low + Bytes((span * i / steps) as u64);
    let mut budgets: Vec<Bytes> = (0..=steps).map(at).collect();
    budgets.dedup();
    budgets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_reach_both_ends_without_repeats() {
        assert_eq!(budgets(Bytes(10), Bytes(20), 3), [10, 15, 20].map(Bytes));
        assert_eq!(budgets(Bytes(10), Bytes(11), 4), [10, 11].map(Bytes));
        assert_eq!(budgets(Bytes(7), Bytes(7), 5), [7].map(Bytes));
    }
}
