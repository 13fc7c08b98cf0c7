//! The strategy `search`: good starts, then annealing.
//!
//! In: a graph, a budget, an effort. Out: a draft under the budget if one is found, otherwise the
//! lowest that was reached; apart from it a lower bound on the time of any schedule under the
//! budget ([`time_bound`]).
//!
//! Steps: (1) the graph as a [`problem`]; (2) starts: the graph's own order and one with few bytes
//! ([`reorder`]) run under the budget with foresight ([`first`]), and cuts at the moment of the
//! peak with a price on bytes ([`cuts`]); (3) annealing over sequences of runs ([`anneal`]) from
//! the best of them; (4) where the bound is still far away, nested recomputation ([`nested`]) as a
//! further start, annealing over what is kept ([`mod@keep`]) and annealing with bold moves; (5)
//! with more than the default effort, rounds of all of these. A tiny graph is searched in full
//! instead ([`exact`]). Where the budget is too small, the lowest peak is looked for
//! ([`mod@lowest`]). All work is counted, so the same input gives the same plan. Steps 1 to 3 do
//! not depend on those that follow, and the rounds come last: no step, and no level of effort above
//! the default, makes a plan worse.
//!
//! Limits: cuts, nested recomputation and what is kept take the order of first runs as it is.

mod anneal;
pub(crate) mod crossing;
mod cuts;
pub(crate) mod exact;
mod first;
pub(crate) mod flow;
mod keep;
mod lowest;
mod nested;
pub(crate) mod problem;
pub(crate) mod pulse;
pub(crate) mod random;
mod reorder;
mod sequence;
mod stages;
mod time_bound;
pub(crate) mod tree;

use rekindle_graph::{Bytes, Graph, Micros, NodeId, Step};

use crate::draft::{Draft, needed_nodes};
use crate::{Effort, Options, Progress, Strategy, Watch, transfer};
use anneal::{Annealer, Cooling, Found, Moves};
use cuts::Cutter;
use exact::{Exact, exact};
use keep::Keeper;
use nested::Nested;
use problem::Problem;
use pulse::Pulse;
use sequence::Sequence;
use time_bound::Bound;

pub(crate) use time_bound::time_bound;

/// Work of the annealing (storages touched) at effort 0; each level doubles it. At the default
/// effort a graph of two thousand nodes takes about 1.8 s of one core.
const WORK: u64 = 400_000;
/// The same for each node of a graph too small to need so much.
const WORK_PER_NODE: u64 = 4_000;
/// Arcs that the first plan's cuts may look at: five hundredths of a second.
const FIRST_ARCS: u64 = 12_000_000;
/// The share of a search's work that a search for the lowest peak does: a refusal takes both.
const LOWEST: (u64, u64) = (1, 2);

/// See the module's documentation.
pub(crate) const STRATEGY: Strategy = Strategy {
    name: "search",
    title: "search",
    about: "recomputes as often as it pays and reorders where it pays.",
    heeds_budget: true,
    needs_store: false,
    draft,
    lowest,
};

/// A draft under `budget` if one is found, otherwise the lowest that was reached.
fn draft(graph: &Graph, budget: Bytes, options: &Options, watch: &mut dyn Watch) -> Draft {
    match &options.store {
        Some(store) => transfer::draft(graph, budget, store, options, watch),
        None => draft_alone(graph, budget, options, watch),
    }
}

/// The same without a store.
fn draft_alone(graph: &Graph, budget: Bytes, options: &Options, watch: &mut dyn Watch) -> Draft {
    searched(graph, budget, options, watch, |bound, time| match time > bound.nearly() {
        true => bound.of_several(),
        false => bound.single.time,
    })
}

/// The very same, with no more of a bound than the search needs.
pub(crate) fn draft_without_bound(
    graph: &Graph,
    budget: Bytes,
    options: &Options,
    watch: &mut dyn Watch,
) -> Draft {
    searched(graph, budget, options, watch, |bound, _| bound.single.time)
}

/// A draft under `budget`; `bounded` gives the bound that goes with the time of the best.
fn searched(
    graph: &Graph,
    budget: Bytes,
    options: &Options,
    watch: &mut dyn Watch,
    bounded: impl Fn(&Bound<'_>, f64) -> f64,
) -> Draft {
    let problem = Problem::new(graph, &needed_nodes(graph));
    let limit = signed(budget);
    match exact(&problem, limit) {
        Exact::Fastest(order) => {
            let best = Found::of_order(&problem, &order);
            return Draft {
                time_bound: Micros(best.time),
                is_bound_best: true,
                ..finished(&problem, &best, 0, false)
            };
        }
        Exact::Impossible => return Draft::plain(graph),
        Exact::Unknown => {}
    }
    let work = work(&problem, options.effort);
    let pulse = Pulse::new(watch);
    let mut search = Search::new(&problem, limit, work, &pulse);
    search.start();
    search.anneal(Moves::Plain, search.left());
    let bound = Bound::new(&problem, limit, options.effort);
    if search.best.peak > limit || search.best.time > bound.nearly() {
        search.deepen();
    }
    let best = search.best;
    let mut draft = finished(&problem, &best, work, pulse.is_stopped());
    if best.peak <= limit && best.time > problem.least_time() {
        draft.time_bound = Micros(bounded(&bound, best.time));
        draft.is_bound_best = true;
    }
    draft
}

/// A draft with as low a peak as is found; none is below `floor`.
fn lowest(graph: &Graph, floor: Bytes, options: &Options, watch: &mut dyn Watch) -> Draft {
    if let Some(store) = &options.store {
        return transfer::lowest(graph, floor, store, options, watch);
    }
    lowest_alone(graph, floor, options, watch)
}

/// The same without a store.
pub(crate) fn lowest_alone(
    graph: &Graph,
    floor: Bytes,
    options: &Options,
    watch: &mut dyn Watch,
) -> Draft {
    let problem = Problem::new(graph, &needed_nodes(graph));
    let floor = signed(floor);
    let work = work(&problem, options.effort) * LOWEST.0 / LOWEST.1;
    let (best, stopped) = lowest::lowest(&problem, floor, work, &Pulse::new(watch));
    finished(&problem, &best, work, stopped)
}

/// An order of runs for a budget, as good as so much work finds; it may not fit.
pub(crate) fn order_under(
    problem: &Problem,
    limit: i64,
    work: u64,
    pulse: &Pulse<'_>,
) -> Vec<NodeId> {
    let mut search = Search::new(problem, limit, work, pulse);
    search.start();
    search.anneal(Moves::Plain, search.left());
    let runs = search.best.order.iter().filter(|&&v| v as usize != problem.source);
    runs.map(|&v| NodeId(v)).collect()
}

/// No sequence under `limit` takes less time than this, by the bound of a single moment.
pub(crate) fn bound_of_a_moment(problem: &Problem, limit: i64, effort: Effort) -> f64 {
    Bound::new(problem, limit, effort).single.time
}

/// Bytes as a number with a sign. A graph's sizes add up to 2^61 at most, so a budget above that is
/// as good as this.
pub(crate) fn signed(bytes: Bytes) -> i64 {
    bytes.get().min(1 << 62).cast_signed()
}

/// A draft with the least time as its bound.
fn finished(problem: &Problem, best: &Found, work: u64, stopped: bool) -> Draft {
    let runs = best.order.iter().filter(|&&v| v as usize != problem.source);
    Draft {
        schedule: runs.map(|&v| Step::Run(NodeId(v))).collect::<Vec<_>>().into(),
        time_bound: Micros(problem.least_time()),
        is_bound_best: false,
        work,
        stopped,
    }
}

/// Work of the annealing.
pub(crate) fn work(problem: &Problem, effort: Effort) -> u64 {
    match effort {
        Effort::FIRST => 0,
        effort => WORK.min(WORK_PER_NODE * problem.natural.len() as u64) << effort.level(),
    }
}

/// The state of a search.
struct Search<'a, 'w> {
    problem: &'a Problem,
    /// The budget.
    limit: i64,
    /// Work that may be done, and that has been done; and up to which all efforts do the same.
    work: u64,
    done: u64,
    common: u64,
    best: Found,
    /// Whether a first plan is looked for longer where it does not fit.
    insists: bool,
    /// The best few sequences so far, the best first.
    starts: Vec<Found>,
    cutter: Cutter<'a>,
    pulse: &'a Pulse<'w>,
}

/// Temperatures to begin with, as shares of the mean time of a node: for repairs, for trade-offs,
/// for another order altogether.
const HOT: [f64; 3] = [0.02, 0.3, 3.0];
/// The temperature at the end.
const COLD: f64 = 0.002;
/// How many starts are annealed.
const STARTS: usize = 4;
/// Arcs of a cut that take as long as one unit of the annealing's work.
const ARCS: u64 = 16;
/// Arcs that every sequence of cuts may look at, however small the work.
const LEAST_ARCS: u64 = 2_000_000;
/// Work of the short annealing of each start, for each run in it.
const POLISH: u64 = 20;
/// Work of the annealing with which a first plan is looked for where all else found none: about
/// four hundredths of a second.
const INSIST: u64 = 300_000;
/// Seeds of the runs that are not numbered by their start.
const LONG_SEEDS: (u64, u64) = (77, 78);
const POLISH_SEED: u64 = 5;
const KEEP_SEED: u64 = 6;
const ROUND_SEED: u64 = 1000;
/// One part in so many of the work goes to the annealing over what is kept, and to that with bold
/// moves, beside the rest.
const KEEP_SHARE: u64 = 16;
const BOLD_SHARE: u64 = 3;
/// Kinds of rounds with which a higher effort goes on; each turn is twice as long as the last.
const ROUNDS: u64 = 4;
/// Runs per node after which an order with foresight is given up, for the first plan and otherwise.
const MOST_RUNS: (usize, usize) = (2, 8);
/// A budget that all the short runs miss by this share is given up. The long ones make up for a few
/// percent.
const HOPELESS: f64 = 0.1;
/// Stages of the chains that nested recomputation is looked for in; the first plan takes the first
/// alone.
const STAGES: [usize; 2] = [28, 72];
/// Sequences that are written down for each of them.
const NESTED_TRIES: u32 = 10;
/// The best of them that are annealed for a short while.
const NESTED_POLISHED: usize = 3;
/// Cells of the chain's tables that take as long as one unit of the annealing's work.
const CELLS: u64 = 64;
/// Sequences of cuts without gain after which no more are tried, for the first plan and otherwise.
const PATIENCE: (u32, u32) = (2, 48);

impl<'a, 'w> Search<'a, 'w> {
    fn new(problem: &'a Problem, limit: i64, work: u64, pulse: &'a Pulse<'w>) -> Search<'a, 'w> {
        let best = Found::of_order(problem, &problem.natural);
        Search {
            problem,
            limit,
            work,
            done: 0,
            common: work.min(self::work(problem, Effort::DEFAULT)),
            insists: true,
            starts: vec![best.clone()],
            best,
            cutter: match work {
                0 => Cutter::new(problem, limit, FIRST_ARCS, true),
                _ => {
                    let most = work.min(self::work(problem, Effort::DEFAULT));
                    Cutter::new(problem, limit, (ARCS * most / 4).max(LEAST_ARCS), false)
                }
            },
            pulse,
        }
    }

    /// The first plans.
    fn start(&mut self) {
        self.add_with_foresight(&self.problem.natural);
        if self.is_enough() {
            return;
        }
        let peak = |order: &[u32]| Found::of_order(self.problem, order).peak;
        let reordered = reorder::with_few_bytes(self.problem);
        // Where it is not below the graph's own order, nothing is to be had from it.
        if peak(&reordered) < peak(&self.problem.natural) {
            self.add_with_foresight(&reordered);
        }
        if self.is_enough() || self.report(0) {
            return;
        }
        self.cut_until(match self.work {
            0 => FIRST_ARCS / ARCS,
            _ => self.common * 2 / 5,
        });
        if self.work == 0 && self.best.peak > self.limit {
            self.nest_in(&self.problem.natural, &STAGES[..1]);
            self.insist();
        }
    }

    /// What is left for a first plan that does not fit yet: a short annealing with bold moves.
    fn insist(&mut self) {
        let is_done = !self.insists || self.is_enough() || self.is_hopeless();
        if is_done || self.problem.natural.len() < 2 || self.report(0) {
            return;
        }
        self.nest_in(&self.problem.natural, &STAGES[1..]);
        for start in self.starts.clone() {
            if self.best.peak > self.limit {
                let work = INSIST / STARTS as u64;
                self.run(Moves::Bold, &start, HOT[1], work, POLISH_SEED);
            }
        }
    }

    /// Nested recomputation, where the graph is a chain: in its own order, and in that of the best.
    fn nest(&mut self) {
        let problem = self.problem;
        let of_best = first_runs(problem, &self.best.order);
        self.nest_in(&problem.natural, &STAGES);
        if of_best != problem.natural {
            self.nest_in(&of_best, &STAGES);
        }
    }

    fn nest_in(&mut self, order: &[u32], stages: &[usize]) {
        for &stages in stages {
            if self.is_enough() || self.report(0) {
                return;
            }
            let Some(nested) = Nested::new(self.problem, order, self.limit, stages) else {
                return;
            };
            self.done += nested.work() / CELLS;
            let mut found = nested.near(self.limit, NESTED_TRIES);
            found.sort_by(|a, b| a.rank(b, self.limit));
            found.truncate(NESTED_POLISHED);
            for found in found {
                let polished = self.polished(found);
                self.add(polished);
            }
        }
    }

    /// The same after a short annealing, if there is work for it.
    fn polished(&mut self, found: Found) -> Found {
        let work = self.work.min(POLISH * self.problem.natural.len() as u64);
        self.done += work;
        match work {
            0 => found,
            _ => polish(self.problem, &found, self.limit, work),
        }
    }

    /// Takes note of `base`, and of what comes of it under the budget with foresight.
    fn add_with_foresight(&mut self, base: &[u32]) {
        self.add(Found::of_order(self.problem, base));
        let most_runs = match self.work {
            0 => MOST_RUNS.0,
            _ => MOST_RUNS.1,
        };
        for bend in first::BENDS {
            if self.is_enough() || self.pulse.is_stopped() {
                return;
            }
            if let Some(order) =
                first::first(self.problem, base, self.limit, bend, most_runs, &|edges| {
                    self.pulse.beat(edges)
                })
            {
                self.add(Found::of_order(self.problem, &order));
            }
        }
    }

    /// Whether there is a plan that fits, and the first is all that was asked for, or none can be
    /// faster.
    fn is_enough(&self) -> bool {
        let is_best = || self.best.time <= self.problem.least_time();
        self.best.peak <= self.limit && (self.work == 0 || is_best())
    }

    /// Cuts until so much work is done, or they bring nothing more. At least one.
    fn cut_until(&mut self, work: u64) {
        let patience = match self.work {
            0 => PATIENCE.0,
            _ => PATIENCE.1,
        };
        let mut idle = 0;
        loop {
            let before = self.best.clone();
            let arcs = self.cutter.work;
            let (problem, limit, pulse, polish_work) = (
                self.problem,
                self.limit,
                self.pulse,
                self.work.min(POLISH * self.problem.natural.len() as u64),
            );
            let found = self.cutter.next(
                &mut |found| {
                    if polish_work == 0 {
                        return found;
                    }
                    polish(problem, &found, limit, polish_work)
                },
                &|arcs| pulse.beat(arcs),
            );
            self.done += (self.cutter.work - arcs) / ARCS + polish_work;
            let Some(found) = found else {
                return;
            };
            self.add(found);
            idle = match self.best.beats(&before, self.limit) {
                true => 0,
                false => idle + 1,
            };
            if self.is_enough() || self.done >= work || idle > patience || self.report(0) {
                return;
            }
        }
    }

    /// Takes note of a sequence.
    fn add(&mut self, found: Found) {
        if found.beats(&self.best, self.limit) {
            self.best = found.clone();
        }
        self.starts.push(found);
        self.starts.sort_by(|a, b| a.rank(b, self.limit));
        self.starts.dedup_by(|a, b| a.peak == b.peak && a.time == b.time);
        self.starts.truncate(STARTS);
    }

    /// Short runs from every start at every temperature, then long ones from the best, unless they
    /// are hopeless; altogether so much work.
    fn anneal(&mut self, moves: Moves, work: u64) {
        // Without a node that runs there is nothing to move.
        if work == 0 || self.is_enough() || self.problem.natural.len() < 2 {
            return;
        }
        let mut tried: Vec<(Found, f64)> = Vec::new();
        let starts = self.starts.clone();
        let share = work / (3 * starts.len() * HOT.len()) as u64;
        for (i, start) in starts.iter().enumerate() {
            for hot in HOT {
                let found = self.run(moves, start, hot, share, i as u64);
                tried.push((found, hot));
            }
        }
        tried.sort_by(|a, b| a.0.rank(&b.0, self.limit));
        let (start, hot) = tried[0].clone();
        if self.is_hopeless() {
            return;
        }
        self.run(moves, &start, hot, work / 2, LONG_SEEDS.0);
        let start = self.best.clone();
        self.run(moves, &start, HOT[0], work / 6, LONG_SEEDS.1);
    }

    /// Where memory is tight, more than one run at a time has to move: nested recomputation, what
    /// is kept, bold moves.
    fn deepen(&mut self) {
        if self.work == 0 || self.is_enough() || self.problem.natural.len() < 2 {
            return;
        }
        self.nest();
        if self.is_hopeless() {
            return;
        }
        let start = self.best.clone();
        self.keep(&start, self.common / KEEP_SHARE, KEEP_SEED);
        self.anneal(Moves::Bold, self.common / BOLD_SHARE);
        self.go_on();
    }

    /// Work that the first annealing may do.
    fn left(&self) -> u64 {
        self.common.saturating_sub(self.done)
    }

    /// Whether the budget is out of reach of annealing.
    fn is_hopeless(&self) -> bool {
        self.best.peak > self.limit + (HOPELESS * self.limit as f64) as i64
    }

    /// An annealing over what is kept, from `start`, and a short one of the runs it gives.
    fn keep(&mut self, start: &Found, work: u64, seed: u64) {
        if self.pulse.is_stopped() {
            return;
        }
        let base = first_runs(self.problem, &start.order);
        let mut keeper = Keeper::new(self.problem, base, &start.order, self.limit, seed);
        let (found, done) = keeper.run(work, &mut |done, _| self.report(done));
        self.done += done;
        if let Some(found) = found {
            let found = self.polished(found);
            self.add(found);
        }
    }

    /// What more effort than the default is for: more cuts, and longer and longer runs over what is
    /// kept and over sequences at all temperatures, from the best so far and from other starts. All
    /// that went before stays as it was, so more effort is never worse.
    fn go_on(&mut self) {
        for round in 0u64.. {
            let left = self.work.saturating_sub(self.done);
            let share = ((self.common / 2) << (round / ROUNDS)).min(left);
            if share < self.common / 8 || self.is_enough() || self.pulse.is_stopped() {
                return;
            }
            let best = self.best.clone();
            let seed = ROUND_SEED + round;
            match round % ROUNDS {
                0 => self.cut_until(self.done + share),
                1 => self.keep(&best, share, seed),
                2 => {
                    let other = self.starts[self.starts.len() - 1].clone();
                    let found = self.run(Moves::Bold, &other, HOT[1], share * 3 / 4, seed);
                    self.run(Moves::Bold, &found, HOT[0], share / 4, seed);
                }
                _ => {
                    let hot = HOT[1 + (round / ROUNDS) as usize % 2];
                    let found = self.run(Moves::Bold, &best, hot, share * 3 / 4, seed);
                    let found = self.run(Moves::Bold, &found, HOT[0], share / 4, seed);
                    self.add(found);
                }
            }
        }
    }

    /// One annealing from `start`.
    fn run(&mut self, moves: Moves, start: &Found, hot: f64, work: u64, seed: u64) -> Found {
        if self.pulse.is_stopped() {
            return start.clone();
        }
        let mean = self.problem.least_time() / self.problem.natural.len() as f64;
        let schedule = Cooling { work, hot: hot * mean, cold: COLD * mean };
        let sequence = Sequence::new(self.problem, &start.order);
        let mut annealer = Annealer::new(sequence, moves, self.limit, seed);
        let found = annealer.run(&schedule, &mut |done, found| {
            if found.beats(&self.best, self.limit) {
                self.best = found.clone();
            }
            self.report(done)
        });
        self.done += work;
        if found.beats(&self.best, self.limit) {
            self.best = found.clone();
        }
        found
    }

    /// Tells the watch; whether it said stop.
    fn report(&mut self, done: u64) -> bool {
        // The deeper runs, and what nested recomputation takes, come on top.
        let total = self.work + self.common;
        let progress = Progress {
            done: (self.done + done).min(total),
            total,
            best: (self.best.peak <= self.limit).then_some(Micros(self.best.time)),
            lowest: Bytes(self.best.peak.unsigned_abs()),
        };
        self.pulse.report(progress)
    }
}

/// A short annealing at the lowest temperature.
fn polish(problem: &Problem, start: &Found, limit: i64, work: u64) -> Found {
    let mean = problem.least_time() / problem.natural.len() as f64;
    let schedule = Cooling { work, hot: HOT[0] * mean, cold: COLD * mean };
    let sequence = Sequence::new(problem, &start.order);
    Annealer::new(sequence, Moves::Plain, limit, POLISH_SEED).run(&schedule, &mut |_, _| false)
}

/// The order in which the nodes of a sequence run first, those of the forward pass before the
/// others.
fn first_runs(problem: &Problem, order: &[u32]) -> Vec<u32> {
    let mut is_forward = vec![false; problem.time.len()];
    for &v in &problem.natural[..problem.turn] {
        is_forward[v as usize] = true;
    }
    let mut ran = vec![false; problem.time.len()];
    let first = order.iter().copied().filter(|&v| !std::mem::replace(&mut ran[v as usize], true));
    let (mut forward, backward): (Vec<u32>, Vec<u32>) =
        first.partition(|&v| is_forward[v as usize]);
    forward.extend(backward);
    forward
}
