//! A finished plan, and the gate that every draft passes to become one.

use rekindle_graph::{Bytes, Graph, Micros, NodeId, Plan, Step, Timeline};
use rekindle_verify::verify;

use crate::decision::{self, Decision};
use crate::draft::ReplayedDraft;
use crate::floor::floor_at;
use crate::{Infeasible, Options, PlanError, search, transfer};

/// A plan that fits, and what is known about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Checked by `rekindle-verify`; its peak is at most its budget.
    pub plan: Plan,
    /// How the planning ended.
    pub status: Status,
    /// No schedule under the budget takes less time than this.
    pub lower_bound: Micros,
    /// Counts and sums.
    pub stats: Stats,
    /// One for each activation, by storage id.
    pub decisions: Vec<Decision>,
}

/// How the planning ended. A gap is the most by which the plan's time can be above the best
/// possible, as a share of the plain step's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Status {
    /// No schedule under the budget is faster.
    Optimal,
    /// The strategy finished.
    Feasible {
        /// See above.
        gap: f64,
    },
    /// The watch said stop; this was the best so far.
    LimitReached {
        /// See above.
        gap: f64,
    },
}

impl Status {
    fn new(time: Micros, bound: Micros, plain_time: Micros, stopped: bool) -> Status {
        let gap = share(time - bound, plain_time).max(0.0);
        match (gap <= SUMMATION_ERROR, stopped) {
            (true, _) => Status::Optimal,
            (false, false) => Status::Feasible { gap },
            (false, true) => Status::LimitReached { gap },
        }
    }
}

/// Counts and sums of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// The plain step's peak.
    pub plain_peak: Bytes,
    /// The plain step's time.
    pub plain_time: Micros,
    /// How many runs are recomputations.
    pub recomputed: usize,
    /// The node that runs when the plan is at its peak; `None` if the start of the step is.
    pub peak_node: Option<NodeId>,
    /// What that node cannot do without: persistent storages, what it reads and writes, its
    /// scratch. The rest of the peak is kept for later.
    pub incompressible: Bytes,
    /// Work that the strategy did, in its own count.
    pub work: u64,
}

impl Planned {
    /// The time above the plain step's, as a share of it.
    pub fn overhead(&self) -> f64 {
        share(self.plan.time - self.stats.plain_time, self.stats.plain_time)
    }

    /// The same schedule as a plan for `budget`, where no schedule is faster than `lower_bound`.
    pub(crate) fn at_budget(&self, budget: Bytes, lower_bound: Micros) -> Planned {
        debug_assert!(self.plan.peak <= budget);
        let stopped = matches!(self.status, Status::LimitReached { .. });
        let plan = Plan { budget, ..self.plan.clone() };
        Planned {
            status: Status::new(plan.time, lower_bound, self.stats.plain_time, stopped),
            lower_bound,
            plan,
            ..self.clone()
        }
    }
}

fn share(part: Micros, whole: Micros) -> f64 {
    match whole.get() > 0.0 {
        true => part.get() / whole.get(),
        false => 0.0,
    }
}

/// Times are sums of floats in different orders; a plan within this share of its bound is optimal.
const SUMMATION_ERROR: f64 = 1e-9;

/// Compares a draft with the budget and has it checked.
pub(crate) fn finish(
    graph: &Graph,
    budget: Bytes,
    ReplayedDraft { draft, timeline }: ReplayedDraft,
    options: &Options,
    natural: &Timeline,
) -> Result<Planned, PlanError> {
    let strategy = options.strategy;
    if timeline.peak > budget {
        let lowest = timeline.peak.min(natural.peak);
        return Err(match draft.stopped && budget >= crate::floor_of(graph, options).bytes {
            true => PlanError::Stopped { budget, lowest },
            false => {
                let infeasible = Infeasible::new(graph, options, budget, lowest);
                PlanError::Infeasible(Box::new(infeasible))
            }
        });
    }
    let plan = Plan {
        graph: graph.name().into(),
        digest: Some(graph.digest()),
        strategy: Some(strategy.name.into()),
        budget,
        peak: timeline.peak,
        time: timeline.time,
        schedule: draft.schedule,
    };
    let audit = verify(graph, &plan).map_err(|violations| PlanError::Rejected {
        strategy: strategy.name,
        why: violations.to_string(),
    })?;
    let bound = match draft.is_bound_best || plan.time <= draft.time_bound {
        // Nothing more is to be shown.
        true => draft.time_bound,
        false => {
            let shown = match &options.store {
                Some(store) => transfer::time_bound(graph, budget, store, options.effort),
                None => search::time_bound(graph, budget, options.effort),
            };
            Micros(shown.get().max(draft.time_bound.get()))
        }
    };
    let (peak_node, incompressible) = at_peak(graph, &plan, &timeline);
    Ok(Planned {
        decisions: decision::of_schedule(graph, &plan.schedule, &timeline),
        status: Status::new(plan.time, bound, natural.time, draft.stopped),
        lower_bound: bound,
        stats: Stats {
            plain_peak: natural.peak,
            plain_time: natural.time,
            recomputed: audit.recomputed,
            peak_node,
            incompressible,
            work: draft.work,
        },
        plan,
    })
}

/// Which node runs at the peak, and what it cannot do without.
fn at_peak(graph: &Graph, plan: &Plan, timeline: &Timeline) -> (Option<NodeId>, Bytes) {
    match timeline.peak_step.map(|step| plan.schedule.steps[step.index()]) {
        Some(Step::Run(id)) if plan.schedule.has_transfers() => {
            (Some(id), transfer::bytes_at(graph, id))
        }
        Some(Step::Run(id)) => (Some(id), floor_at(graph, id)),
        // Nothing runs at the start, nor while something is fetched; a free is never the first to
        // be as high.
        Some(Step::Free(_) | Step::Offload(_) | Step::Fetch(_)) | None => (None, timeline.start),
    }
}
