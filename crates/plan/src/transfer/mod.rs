//! Recompute or move: `search` with a store.
//!
//! In: a graph, a budget, a store. Out: a draft that keeps, recomputes or moves each storage, and
//! is never slower than the one that moves nothing.
//!
//! Steps: (1) the plan without transfers; (2) orders of runs ([`lives`]): the graph's own, and what
//! the recomputation search finds for budgets between the one asked for and the plain peak; (3) for
//! each of them a [`walk`] that decides what is moved and where transfers start; (4) the best, by
//! the replay.

mod bound;
mod covering;
mod exact;
mod floor;
mod improve;
mod lives;
mod walk;

pub(crate) use bound::time_bound;
pub(crate) use floor::bytes_at;
pub use floor::floor_with_store;

use std::collections::BTreeMap;

use rekindle_graph::{Bytes, Graph, Micros, NodeId, Rate, Schedule, Store, Timeline};

use crate::draft::{Draft, least_time, needed_nodes};
use crate::search::problem::Problem;
use crate::search::pulse::Pulse;
use crate::search::{self, signed};
use crate::{Effort, Options, Watch};
use exact::{Exact, exact};
use lives::Lives;
use walk::{Habits, Unused};

/// The plainest way to walk.
const PLAIN: Habits = Habits { unused: Unused::Ranks, in_time: false, swaps: false };
/// Ways to walk. More combinations bring no more: on five graphs of the corpus at three budgets
/// with two stores, all of them are faster than these in one cell of thirty, by 0.04 %.
const HABITS: [Habits; 6] = [
    PLAIN,
    Habits { unused: Unused::GoesFirst, ..PLAIN },
    Habits { in_time: true, ..PLAIN },
    Habits { unused: Unused::GoesFirst, in_time: true, ..PLAIN },
    Habits { swaps: true, ..PLAIN },
    Habits { unused: Unused::Stays, swaps: true, ..PLAIN },
];

/// Budgets between the one asked for and the plain peak for which orders are looked for, and rounds
/// of looking: all of these budgets, then two more beside the best, and so on.
const FIRST_ORDERS: (i64, usize) = (4, 1);
const ORDERS: (i64, usize) = (16, 6);
/// The same for orders that more work is spent on.
const WORKED_ORDERS: (i64, usize) = (5, 2);
/// A larger graph gets fewer orders, down to these.
const LARGE: usize = 4_000;
const LARGE_ORDERS: (i64, usize) = (3, 1);
/// Levels of effort below the one asked for, for each of the last.
const LOWER: u8 = 3;
/// How many of the orders are improved.
const STARTS: usize = 3;
/// Walks that the improvement of one order may take.
const MOST_WALKS: u32 = 200;
/// Storages that all of them together may touch at effort 0; each level doubles it.
const WALK_WORK: u64 = 200_000;

/// Some levels below, but more than the first plan if more was asked for.
fn lower(effort: Effort, levels: u8) -> Effort {
    let least = effort.level().min(1);
    Effort::new(effort.level().saturating_sub(levels).max(least)).expect("below a level")
}

/// A draft under `budget` if one is found.
pub(crate) fn draft(
    graph: &Graph,
    budget: Bytes,
    store: &Store,
    options: &Options,
    watch: &mut dyn Watch,
) -> Draft {
    match exact(graph, signed(budget), store) {
        Exact::Fastest(schedule, time) => {
            return Draft {
                schedule,
                time_bound: Micros(time),
                is_bound_best: true,
                work: 0,
                stopped: false,
            };
        }
        Exact::Impossible => return Draft::plain(graph),
        Exact::Unknown => {}
    }
    let first = alone(graph, budget, options, watch);
    let problem = Problem::new(graph, &needed_nodes(graph));
    let mut planner = Planner::new(graph, budget, store, first);
    planner.try_order(&natural(&problem));
    if !planner.beats_recomputation(&problem, options.effort) {
        planner.alone_or_lowest(options, watch);
    }
    let pulse = Pulse::new(watch);
    let alone: Vec<NodeId> = planner.alone.schedule.runs().collect();
    let walked = planner.try_order(&alone);
    planner.note(alone, walked);
    planner.search(&problem, options.effort, &pulse);
    planner.finish(graph, pulse.is_stopped())
}

/// What is planned without a store.
fn alone(graph: &Graph, budget: Bytes, options: &Options, watch: &mut dyn Watch) -> Draft {
    match budget < crate::floor(graph).bytes {
        true => Draft::plain(graph),
        false => {
            search::draft_without_bound(graph, budget, options, watch).freeing_after_last_use(graph)
        }
    }
}

/// A draft with as low a peak as is found; none is below `floor`.
pub(crate) fn lowest(
    graph: &Graph,
    floor: Bytes,
    store: &Store,
    options: &Options,
    watch: &mut dyn Watch,
) -> Draft {
    let moving = lowest_moving(graph, floor, store);
    let draft = draft(graph, Bytes(moving.unsigned_abs()), store, options, watch);
    if moving <= signed(floor) || draft.stopped {
        return draft;
    }
    // The store has no room for more, or only one way: perhaps recomputation goes lower.
    let alone = search::lowest_alone(graph, crate::floor(graph).bytes, options, watch)
        .freeing_after_last_use(graph);
    let peak = |draft: &Draft| Timeline::new(graph, &draft.schedule).map(|t| t.peak);
    match (peak(&alone), peak(&draft)) {
        (Ok(lower), Ok(higher)) if lower >= higher => draft,
        (_, Err(_)) | (Ok(_), Ok(_)) => Draft { time_bound: least_time(graph), ..alone },
        (Err(_), Ok(_)) => draft,
    }
}

/// The lowest peak that moving alone reaches.
pub(crate) fn lowest_moving(graph: &Graph, floor: Bytes, store: &Store) -> i64 {
    let (mut low, mut high) = (signed(floor), signed(Timeline::natural(graph).peak));
    let fits = |limit: i64| moving_alone(graph, Bytes(limit.unsigned_abs()), store).is_some();
    if fits(low) {
        return low;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        match fits(middle) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    high
}

/// The lowest peak that moving activations alone reaches, with whatever store.
pub(crate) fn lowest_of_activations(graph: &Graph) -> Bytes {
    let any = Store {
        out_rate: Rate(1.0),
        in_rate: Rate(1.0),
        latency: Micros::ZERO,
        duplex: true,
        limit: None,
        activations_only: true,
    };
    Bytes(lowest_moving(graph, crate::floor(graph).bytes, &any).unsigned_abs())
}

/// The graph's own order with transfers: under `limit` where that is possible.
pub(crate) fn moving_alone(graph: &Graph, limit: Bytes, store: &Store) -> Option<Draft> {
    let problem = Problem::new(graph, &needed_nodes(graph));
    let lives = Lives::new(graph, lives::with_early_updates(graph, &natural(&problem)));
    let walks =
        HABITS.iter().filter_map(|&habits| walk::walk(graph, &lives, store, signed(limit), habits));
    let best = walks.min_by(|a, b| a.time.total_cmp(&b.time))?;
    Some(Draft {
        schedule: best.schedule,
        time_bound: least_time(graph),
        is_bound_best: false,
        work: best.work,
        stopped: false,
    })
}

/// The needed nodes in the graph's own order.
fn natural(problem: &Problem) -> Vec<NodeId> {
    problem.natural.iter().skip(1).map(|&v| NodeId(v)).collect()
}

/// The best walk along an order: its time, and how it was walked.
type Best = (f64, Habits);

struct Planner<'a> {
    graph: &'a Graph,
    store: &'a Store,
    budget: i64,
    best: Option<(Schedule, Micros)>,
    alone: Draft,
    /// The best few orders, each with its best walk.
    orders: Vec<(Best, Vec<NodeId>)>,
    /// The time of every needed node once.
    least: f64,
    work: u64,
}

impl<'a> Planner<'a> {
    fn new(graph: &'a Graph, budget: Bytes, store: &'a Store, alone: Draft) -> Planner<'a> {
        Planner {
            graph,
            store,
            budget: signed(budget),
            best: None,
            alone,
            orders: Vec::new(),
            least: least_time(graph).get(),
            work: 0,
        }
    }

    /// Orders that recompute less and less, until nothing waits; then more of them around the best.
    /// Runs of the best are left out where that pays.
    fn search(&mut self, problem: &Problem, effort: Effort, pulse: &Pulse<'_>) {
        let is_large = problem.natural.len() > LARGE;
        let orders = match effort {
            _ if is_large => LARGE_ORDERS,
            Effort::FIRST => FIRST_ORDERS,
            _ => ORDERS,
        };
        self.search_orders(problem, 0, orders, pulse);
        self.leave_out(WALK_WORK << effort.level());
        if effort > Effort::FIRST {
            let work = search::work(problem, lower(effort, LOWER));
            let orders = if is_large { LARGE_ORDERS } else { WORKED_ORDERS };
            self.search_orders(problem, work, orders, pulse);
            self.leave_out(WALK_WORK << effort.level());
        }
    }

    fn search_orders(
        &mut self,
        problem: &Problem,
        work: u64,
        (between, rounds): (i64, usize),
        pulse: &Pulse<'_>,
    ) {
        let room = signed(Timeline::natural(self.graph).peak) - self.budget;
        let mut times: BTreeMap<i64, f64> = BTreeMap::new();
        let mut next: Vec<i64> = (1..between).map(|k| room * k / between).collect();
        for _ in 0..rounds {
            for &more in &next {
                if pulse.is_stopped() || self.is_best() {
                    return;
                }
                let order = search::order_under(problem, self.budget + more, work, pulse);
                let walked = self.try_order(&order);
                times.insert(more, walked.0);
                self.note(order, walked);
            }
            let best = times.iter().min_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(&more, _)| more);
            let below = times.range(..best).next_back().map_or(0, |(&more, _)| more);
            let above = times.range(best + 1..).next().map_or(room, |(&more, _)| more);
            next = vec![best - (best - below) / 2, best + (above - best) / 2];
            next.retain(|more| !times.contains_key(more) && *more > 0);
        }
    }

    /// Takes note of one of the best orders.
    fn note(&mut self, order: Vec<NodeId>, walked: Best) {
        self.orders.push((walked, order));
        self.orders.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
        self.orders.dedup_by(|a, b| a.1 == b.1);
        self.orders.truncate(STARTS);
    }

    /// Where the plan without a store misses the budget, the one of the lowest peak takes its place
    /// if it fits, as it does without a store: a store is never a reason for a slower plan.
    fn alone_or_lowest(&mut self, options: &Options, watch: &mut dyn Watch) {
        let floor = crate::floor(self.graph).bytes;
        if self.budget < signed(floor) || self.alone.stopped || self.fits(&self.alone) {
            return;
        }
        let lowest = search::lowest_alone(self.graph, floor, options, watch)
            .freeing_after_last_use(self.graph);
        if self.fits(&lowest) {
            self.alone = lowest;
        }
    }

    fn fits(&self, draft: &Draft) -> bool {
        let timeline = Timeline::new(self.graph, &draft.schedule);
        timeline.is_ok_and(|timeline| signed(timeline.peak) <= self.budget)
    }

    /// Whether no schedule is faster.
    fn is_best(&self) -> bool {
        self.best.as_ref().is_some_and(|(_, time)| time.get() <= self.least * (1.0 + 1e-9))
    }

    /// Whether it is proven that no plan without a store is faster. This saves the search for the
    /// lowest peak, which takes several times as long as a first plan.
    fn beats_recomputation(&self, problem: &Problem, effort: Effort) -> bool {
        let bound = || search::bound_of_a_moment(problem, self.budget, effort);
        !self.fits(&self.alone) && self.best.as_ref().is_some_and(|(_, time)| time.get() <= bound())
    }

    /// Leaves runs of the best orders out.
    fn leave_out(&mut self, most: u64) {
        let until = self.work + most / 2;
        for ((time, habits), order) in std::mem::take(&mut self.orders) {
            let graph = self.graph;
            let mut walks = 0;
            improve::leave_out(graph, order, time, &mut |order| {
                walks += 1;
                let may_go_on = walks <= MOST_WALKS && self.work < until && !self.is_best();
                may_go_on.then(|| self.walk(order, &[habits]).0)
            });
        }
    }

    /// Walks along an order in every way. Gives the best.
    fn try_order(&mut self, order: &[NodeId]) -> Best {
        self.walk(order, &HABITS)
    }

    fn walk(&mut self, order: &[NodeId], ways: &[Habits]) -> Best {
        let mut best = (f64::INFINITY, ways[0]);
        let lives = Lives::new(self.graph, lives::with_early_updates(self.graph, order));
        for &habits in ways {
            let Some(walked) = walk::walk(self.graph, &lives, self.store, self.budget, habits)
            else {
                continue;
            };
            self.work += walked.work;
            if walked.time < best.0 {
                best = (walked.time, habits);
            }
            if self.best.as_ref().is_none_or(|(_, time)| walked.time < time.get()) {
                self.best = Some((walked.schedule, Micros(walked.time)));
            }
        }
        best
    }

    fn finish(self, graph: &Graph, stopped: bool) -> Draft {
        let alone = self.alone;
        let timeline = Timeline::new(graph, &alone.schedule);
        let fits = timeline.as_ref().is_ok_and(|t| signed(t.peak) <= self.budget);
        match self.best {
            Some((schedule, time)) if !fits || timeline.is_ok_and(|t| time < t.time) => Draft {
                schedule,
                time_bound: least_time(graph),
                is_bound_best: false,
                work: alone.work + self.work,
                stopped: alone.stopped || stopped,
            },
            _ => Draft { time_bound: least_time(graph), is_bound_best: false, ..alone },
        }
    }
}
