//! Plans for which the allocator reserves no more than a budget.
//!
//! The planner knows live bytes only. So where the allocator would reserve more than the budget for
//! its plan, the planner is asked again for a peak that is lower by the excess, and where it has
//! none so low, by half of that, until it holds. Where that leads nowhere, there are plans that
//! depend on the graph alone: those with the smallest peak and somewhat more.
//!
//! Whether there is a plan at all ([`fit_reserved`]) is asked without effort, and every effort
//! ([`plan_reserved`]) falls back to that answer: what fits can be planned.

use rekindle_graph::{Bytes, Graph, Plan};
use rekindle_plan::{Effort, Options, PlanError, Planned, Watch, plan_aimed, smallest};

use crate::{Footprint, Segments, footprint};

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ReserveError {
    /// For every plan found the allocator would reserve more.
    #[error(
        "the budget of {budget} is too small: by prediction the allocator reserves {smallest} at \
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
const HIGHER_BY: [u64; 6] = [64, 32, 16, 8, 4, 2];

/// The efforts with which the smallest peak is looked for: another search leaves other fragments.
const EFFORTS: [u8; 2] = [0, 1];

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
    match aimed(graph, budget, segments, options, watch)? {
        Some(found) => Ok(found),
        None => fit_reserved(graph, budget, segments, options, watch),
    }
}

/// Any plan for which the allocator reserves at most `budget`, found as soon as can be: the effort
/// in `options` does not count.
///
/// # Errors
/// As [`plan_reserved`].
pub fn fit_reserved(
    graph: &Graph,
    budget: Bytes,
    segments: Segments,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<(Planned, Footprint), ReserveError> {
    let options = Options { effort: Effort::FIRST, ..options.clone() };
    let (least, found) = least_reserved(graph, budget, segments, &options, watch)?;
    if found.reserved <= budget {
        return Ok((for_budget(least, budget), found));
    }
    let aimed = aimed(graph, budget, segments, &options, watch)?;
    aimed.ok_or(ReserveError::DoesNotFit { budget, smallest: found.reserved })
}

/// A plan under the budget, looked for with less and less room.
fn aimed(
    graph: &Graph,
    budget: Bytes,
    segments: Segments,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Option<(Planned, Footprint)>, PlanError> {
    let mut room = budget;
    // The peak that was planned last.
    let mut last: Option<Bytes> = None;
    for _ in 0..ROUNDS {
        let planned = match (plan_aimed(graph, room, options, watch)?, last) {
            (Some(planned), _) => planned,
            // Too much was taken off: half of it.
            (None, Some(peak)) => {
                room = Bytes((room + peak).get() / 2);
                continue;
            }
            (None, None) => return Ok(None),
        };
        let found = reserved_for(graph, &planned.plan, segments);
        if found.reserved <= budget {
            return Ok(Some((for_budget(planned, budget), found)));
        }
        let excess = found.reserved - budget;
        last = Some(planned.plan.peak);
        room = planned.plan.peak.saturating_sub(excess + Bytes(excess.get() / MARGIN));
    }
    Ok(None)
}

/// The plan for which the least is reserved, among some that do not depend on the budget, the plain
/// step among them; the first that is within it.
fn least_reserved(
    graph: &Graph,
    budget: Bytes,
    segments: Segments,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<(Planned, Footprint), PlanError> {
    let mut best: Option<(Planned, Footprint)> = None;
    // Whether it is within the budget.
    let mut take = |planned: Planned| {
        let found = reserved_for(graph, &planned.plan, segments);
        if best.as_ref().is_none_or(|(_, least)| found.reserved < least.reserved) {
            best = Some((planned, found));
        }
        found.reserved <= budget
    };
    let plain = plan_aimed(graph, Bytes(u64::MAX), options, watch)?;
    let mut is_found = take(plain.expect("everything fits in so much"));
    for effort in EFFORTS {
        if is_found {
            break;
        }
        let effort = Effort::new(effort).expect("a level");
        let options = Options { effort, ..options.clone() };
        let least = smallest(graph, &options, watch)?;
        let peak = least.plan.peak;
        is_found = take(least);
        for part in HIGHER_BY {
            if is_found || effort > Effort::FIRST {
                break;
            }
            let room = peak + Bytes(peak.get() / part);
            if let Some(planned) = plan_aimed(graph, room, &options, watch)? {
                is_found = take(planned);
            }
        }
    }
    Ok(best.expect("the plain step at least"))
}

/// What was planned for less room is a plan for the budget.
fn for_budget(planned: Planned, budget: Bytes) -> Planned {
    Planned { plan: Plan { budget, ..planned.plan }, ..planned }
}

fn reserved_for(graph: &Graph, plan: &Plan, segments: Segments) -> Footprint {
    footprint(graph, &plan.schedule, segments).expect("a checked plan can be replayed")
}
