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
        /// The least budget for which there is a plan, of those that were tried.
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

/// The least that is reserved is looked for among the plans with the smallest peak, and with peaks
/// that are higher by one part in so many. The smallest peak often has more recomputations, which
/// leave more fragments.
const HIGHER_BY: [u64; 3] = [64, 16, 4];

/// Plans `graph` so that the allocator reserves at most `budget`.
///
/// # Errors
/// [`ReserveError::DoesNotFit`] names a budget for which there is a plan: asked for that, this
/// function finds it.
pub fn plan_reserved(
    graph: &Graph,
    budget: Bytes,
    segments: Segments,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<(Planned, Footprint), ReserveError> {
    let mut room = budget;
    // The peak that was planned last.
    let mut last: Option<Bytes> = None;
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
        last = Some(planned.plan.peak);
        room = planned.plan.peak.saturating_sub(excess + Bytes(excess.get() / MARGIN));
    }
    let (least, found) = least_reserved(graph, budget, segments, options, watch)?;
    match found.reserved <= budget {
        true => Ok((for_budget(least, budget), found)),
        false => Err(ReserveError::DoesNotFit { budget, smallest: found.reserved }),
    }
}

/// The plan for which the least is reserved, among some that do not depend on the budget; the first
/// that is within it.
fn least_reserved(
    graph: &Graph,
    budget: Bytes,
    segments: Segments,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<(Planned, Footprint), PlanError> {
    let least = smallest(graph, options, watch)?;
    let peak = least.plan.peak;
    let found = reserved_for(graph, &least.plan, segments);
    let mut best = (least, found);
    for part in HIGHER_BY {
        if best.1.reserved <= budget {
            break;
        }
        match plan(graph, peak + Bytes(peak.get() / part), options, watch) {
            Ok(planned) => {
                let found = reserved_for(graph, &planned.plan, segments);
                if found.reserved < best.1.reserved {
                    best = (planned, found);
                }
            }
            Err(PlanError::Infeasible(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(best)
}

/// What was planned for less room is a plan for the budget.
fn for_budget(planned: Planned, budget: Bytes) -> Planned {
    Planned { plan: Plan { budget, ..planned.plan }, ..planned }
}

fn reserved_for(graph: &Graph, plan: &Plan, segments: Segments) -> Footprint {
    footprint(graph, &plan.schedule, segments).expect("a checked plan can be replayed")
}
