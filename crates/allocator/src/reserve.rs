//! Plans for which the allocator reserves no more than a budget.
//!
//! The planner knows live bytes only. So where the allocator would reserve more than the budget for
//! its plan, the planner is asked again for a peak that is lower by the excess, and where it has
//! none so low, by half of that, until it holds.

use rekindle_graph::{Bytes, Graph, Plan};
use rekindle_plan::{Options, PlanError, Planned, Watch, plan, smallest};

use crate::{Footprint, Segments, footprint};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReserveError {
    /// For every plan found the allocator would reserve more.
    #[error(
        "the budget of {budget} is too small: the allocator would reserve {smallest} at \
         least, by the plans that are known; give it as much, or try expandable segments"
    )]
    DoesNotFit {
        /// What was asked for.
        budget: Bytes,
        /// The least that is reserved for any plan that was tried.
        smallest: Bytes,
    },
    /// The planner failed for another reason.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// How often the planner is asked. Segments are coarse, so a little less room changes much: most
/// budgets hold after two or three rounds.
const ROUNDS: usize = 8;

/// Each plan gets less room by the excess of the one before, and by one part in this many of it.
const MARGIN: u64 = 4;

/// Plans `graph` so that the allocator reserves at most `budget`.
///
/// # Errors
/// [`ReserveError::DoesNotFit`] names what is reserved for the smallest plan.
pub fn plan_reserved(
    graph: &Graph,
    budget: Bytes,
    segments: Segments,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<(Planned, Footprint), ReserveError> {
    let mut room = budget;
    // What was planned last, and the least that was reserved for any plan.
    let mut last: Option<Bytes> = None;
    let mut lowest = Bytes(u64::MAX);
    for _ in 0..ROUNDS {
        let planned = match (plan(graph, room, options, watch), last) {
            (Ok(planned), _) => planned,
            // Too much was taken off: half of it.
            (Err(PlanError::Infeasible(_)), Some(peak)) => {
                room = Bytes((room + peak).get() / 2);
                continue;
            }
            (Err(PlanError::Infeasible(_)), None) => break,
            (Err(error), _) => return Err(error.into()),
        };
        let found = reserved_for(graph, &planned.plan, segments);
        if found.reserved <= budget {
            return Ok((for_budget(planned, budget), found));
        }
        let excess = found.reserved - budget;
        lowest = lowest.min(found.reserved);
        last = Some(planned.plan.peak);
        room = planned.plan.peak.saturating_sub(excess + Bytes(excess.get() / MARGIN));
    }
    let least = smallest(graph, options, watch)?;
    let found = reserved_for(graph, &least.plan, segments);
    match found.reserved <= budget {
        true => Ok((for_budget(least, budget), found)),
        false => Err(ReserveError::DoesNotFit { budget, smallest: found.reserved.min(lowest) }),
    }
}

/// What was planned for less room is a plan for the budget.
fn for_budget(planned: Planned, budget: Bytes) -> Planned {
    Planned { plan: Plan { budget, ..planned.plan }, ..planned }
}

fn reserved_for(graph: &Graph, plan: &Plan, segments: Segments) -> Footprint {
    footprint(graph, &plan.schedule, segments).expect("a checked plan can be replayed")
}
