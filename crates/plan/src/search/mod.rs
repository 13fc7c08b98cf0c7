//! The strategy `search`: good starts, then annealing.
//!
//! In: a graph, a budget, an effort. Out: a draft under the budget if one is found, otherwise the lowest that was
//! reached; apart from it a lower bound on the time of any schedule under the budget ([`time_bound`]).
//!
//! Steps: (1) a [`model`] of the graph; (2) starts: the graph's own order run under the budget with foresight
//! ([`first`]), and cuts at the moment of its peak with a price on bytes ([`start`]); (3) annealing over
//! sequences of runs ([`anneal`]) from the best of them. A tiny graph is searched in full instead ([`exact`]).
//! All work is counted, so the same input gives the same plan.
//!
//! Limits: starts keep the graph's own order of the nodes that run once; only annealing reorders.

mod anneal;
mod exact;
mod first;
mod flow;
pub(crate) mod model;
pub(crate) mod moment;
mod random;
mod reorder;
pub(crate) mod sequence;
mod start;
mod tree;

use remat_graph::{Bytes, Graph, Micros};

use crate::bound;
use crate::draft::{Draft, needed_nodes};
use crate::{Effort, Options, Progress, Watch};
use anneal::{Annealer, Found, Schedule};
use exact::{Exact, exact};
use model::Model;
use sequence::Sequence;
use start::Cutter;

/// Work of the annealing (storages touched) at effort 0; each level doubles it. At the default effort a graph of two
/// thousand nodes takes about 1.8 s of one core.
const WORK: u64 = 400_000;
/// The same for each node of a graph too small to need so much.
const WORK_PER_NODE: u64 = 4_000;
/// Arcs that the first plan may look at, in its cuts and again in its bound: a few hundredths of a second.
const FIRST_ARCS: u64 = 2_000_000;
/// Arcs that the bound may look at otherwise. A graph of two thousand nodes needs about half of it.
const BOUND_ARCS: u64 = 12_000_000;
/// A peak that is above the floor by at most one part in so many is low enough.
const NEAR: i64 = 1024;
/// Searches for the lowest peak, which share three quarters of the work of one: a refusal takes this and a search for
/// its budget.
const ROUNDS: u32 = 4;
/// How far below the lowest peak so far the second of them aims, as a share of it; halved whenever one fails.
const STEP: f64 = 0.125;

/// A draft under `budget` if one is found, otherwise the lowest that was reached.
pub(crate) fn draft(
    graph: &Graph,
    budget: Bytes,
    options: &Options,
    watch: &mut dyn Watch,
) -> Draft {
    let model = Model::new(graph, &needed_nodes(graph));
    let limit = i64::try_from(budget.get()).unwrap_or(i64::MAX);
    match exact(&model, limit) {
        Exact::Fastest(order) => {
            let best = Found::of_order(&model, &order);
            return finished(&model, &best, best.time, 0, false);
        }
        Exact::Impossible => return Draft::plain(graph),
        Exact::Unknown => {}
    }
    let work = work(&model, options.effort);
    let mut search = Search::new(&model, limit, work, watch);
    search.start();
    search.anneal();
    let Search { best, stopped, .. } = search;
    finished(&model, &best, model.least_time(), work, stopped)
}

/// A draft with as low a peak as is found; none is below `floor`.
///
/// A budget far below what can be reached tells a search little about where to go. So the first round aims at the
/// floor, and the others somewhat below the lowest so far, from where it is.
pub(crate) fn lowest(
    graph: &Graph,
    floor: Bytes,
    options: &Options,
    watch: &mut dyn Watch,
) -> Draft {
    let model = Model::new(graph, &needed_nodes(graph));
    let floor = i64::try_from(floor.get()).unwrap_or(i64::MAX);
    if let Some(best) = exhaust(&model, floor) {
        return finished(&model, &best, model.least_time(), 0, false);
    }
    let work = 3 * work(&model, options.effort) / u64::from(4 * ROUNDS);
    let mut best = Found::of_order(&model, &model.natural);
    let (mut limit, mut step) = (floor, STEP);
    let mut stopped = false;
    for _ in 0..ROUNDS {
        let mut search = Search::new(&model, limit, work, watch);
        search.add(best.clone());
        search.start();
        search.anneal();
        stopped |= search.stopped;
        if search.best.peak > limit {
            step /= 2.0;
        }
        if search.best.peak < best.peak {
            best = search.best;
        }
        limit = floor.max(best.peak - (step * best.peak as f64) as i64);
        if stopped || best.peak - floor <= floor / NEAR {
            break;
        }
    }
    finished(&model, &best, model.least_time(), work, stopped)
}

fn finished(model: &Model, best: &Found, bound: f64, work: u64, stopped: bool) -> Draft {
    Draft {
        steps: model.steps(&best.order),
        time_bound: Micros(bound),
        work,
        stopped,
    }
}

/// Work of the annealing.
fn work(model: &Model, effort: Effort) -> u64 {
    match effort {
        Effort::FIRST => 0,
        effort => WORK.min(WORK_PER_NODE * model.natural.len() as u64) << effort.level(),
    }
}

/// No schedule under `budget` takes less time than this.
pub(crate) fn time_bound(graph: &Graph, budget: Bytes, effort: Effort) -> Micros {
    let model = Model::new(graph, &needed_nodes(graph));
    let limit = i64::try_from(budget.get()).unwrap_or(i64::MAX);
    let arcs = match effort {
        Effort::FIRST => FIRST_ARCS,
        _ => BOUND_ARCS,
    };
    Micros(bound::time_bound(&model, limit, arcs))
}

/// The fastest sequence under `limit`, or if there is none the one with the lowest peak; nothing where the graph
/// is too large for [`exact`].
fn exhaust(model: &Model, limit: i64) -> Option<Found> {
    let mut best = match exact(model, limit) {
        Exact::Fastest(order) => return Some(Found::of_order(model, &order)),
        Exact::Impossible => Found::of_order(model, &model.natural),
        Exact::Unknown => return None,
    };
    let mut too_low = limit;
    while too_low + 1 < best.peak {
        let middle = too_low + (best.peak - too_low) / 2;
        match exact(model, middle) {
            Exact::Fastest(order) => best = Found::of_order(model, &order),
            Exact::Impossible => too_low = middle,
            Exact::Unknown => break,
        }
    }
    Some(best)
}

/// The state of a search.
struct Search<'a> {
    model: &'a Model,
    /// The budget.
    limit: i64,
    /// Work that may be done, and that has been done.
    work: u64,
    done: u64,
    /// Whether the watch said stop.
    stopped: bool,
    best: Found,
    /// The best few sequences so far, the best first.
    starts: Vec<Found>,
    cutter: Cutter<'a>,
    watch: &'a mut dyn Watch,
}

/// Temperatures to begin with, as shares of the mean time of a node: for repairs, for trade-offs, for another
/// order altogether.
const HOT: [f64; 3] = [0.02, 0.3, 3.0];
/// The temperature at the end.
const COLD: f64 = 0.002;
/// How many starts are annealed.
const STARTS: usize = 4;
/// Arcs of a cut that take as long as one unit of the annealing's work.
const ARCS: u64 = 16;
/// Work of the short annealing of each start, for each run in it.
const POLISH: u64 = 20;
/// Seeds of the runs that are not numbered by their start.
const LONG_SEEDS: (u64, u64) = (77, 78);
const POLISH_SEED: u64 = 5;
/// Cuts without gain after which no more are tried.
const PATIENCE: u32 = 48;

impl<'a> Search<'a> {
    fn new(model: &'a Model, limit: i64, work: u64, watch: &'a mut dyn Watch) -> Search<'a> {
        let best = Found::of_order(model, &model.natural);
        Search {
            model,
            limit,
            work,
            done: 0,
            stopped: false,
            starts: vec![best.clone()],
            best,
            cutter: Cutter::new(model, limit, (ARCS * work / 4).max(FIRST_ARCS)),
            watch,
        }
    }

    /// The first plans.
    fn start(&mut self) {
        let reordered = reorder::with_few_bytes(self.model);
        self.add_with_foresight(&self.model.natural);
        // Where it is not below the graph's own order, nothing is to be had from it.
        let natural = Found::of_order(self.model, &self.model.natural);
        if Found::of_order(self.model, &reordered).peak < natural.peak && !self.is_first_enough() {
            self.add_with_foresight(&reordered);
        }
        if self.is_first_enough() {
            return;
        }
        if self.report(0) {
            return;
        }
        self.cut_until(self.work * 2 / 5);
    }

    /// Takes note of `base`, and of what comes of it under the budget with foresight.
    fn add_with_foresight(&mut self, base: &[u32]) {
        self.add(Found::of_order(self.model, base));
        for bend in start::BENDS {
            if self.is_first_enough() {
                return;
            }
            if let Some(order) = first::first(self.model, base, self.limit, bend) {
                self.add(Found::of_order(self.model, &order));
            }
        }
    }

    /// Whether the first plan that fits is all that was asked for, and is there.
    fn is_first_enough(&self) -> bool {
        self.work == 0 && self.best.peak <= self.limit
    }

    /// Cuts until so much work is done, or they bring nothing more. At least one.
    fn cut_until(&mut self, work: u64) {
        let mut idle = 0;
        loop {
            let before = self.best.clone();
            let arcs = self.cutter.work;
            let (model, limit, polish_work) = (
                self.model,
                self.limit,
                self.work.min(POLISH * self.model.natural.len() as u64),
            );
            let found = self.cutter.next(&mut |found| {
                if polish_work == 0 {
                    return found;
                }
                polish(model, &found, limit, polish_work)
            });
            self.done += (self.cutter.work - arcs) / ARCS + polish_work;
            let Some(found) = found else {
                return;
            };
            self.add(found);
            idle = match self.best.beats(&before, self.limit) {
                true => 0,
                false => idle + 1,
            };
            if self.done >= work || idle > PATIENCE || self.report(0) {
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
        self.starts
            .dedup_by(|a, b| a.peak == b.peak && a.time == b.time);
        self.starts.truncate(STARTS);
    }

    /// Short runs from every start at every temperature, then long ones from the best.
    fn anneal(&mut self) {
        // Without a node that runs there is nothing to move.
        if self.work == 0 || self.stopped || self.model.natural.len() < 2 {
            return;
        }
        let mut tried: Vec<(Found, f64)> = Vec::new();
        let left = self.work.saturating_sub(self.done);
        let starts = self.starts.clone();
        let share = left / (3 * starts.len() * HOT.len()) as u64;
        for (i, start) in starts.iter().enumerate() {
            for hot in HOT {
                let found = self.run(start, hot, share, i as u64);
                tried.push((found, hot));
            }
        }
        tried.sort_by(|a, b| a.0.rank(&b.0, self.limit));
        let (start, hot) = tried[0].clone();
        self.run(&start, hot, left / 2, LONG_SEEDS.0);
        let start = self.best.clone();
        self.run(&start, HOT[0], left / 6, LONG_SEEDS.1);
    }

    /// One annealing from `start`.
    fn run(&mut self, start: &Found, hot: f64, work: u64, seed: u64) -> Found {
        if self.stopped {
            return start.clone();
        }
        let mean = self.model.least_time() / self.model.natural.len() as f64;
        let schedule = Schedule {
            work,
            hot: hot * mean,
            cold: COLD * mean,
        };
        let sequence = Sequence::new(self.model, &start.order);
        let mut annealer = Annealer::new(sequence, self.limit, seed);
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
        let progress = Progress {
            done: self.done + done,
            total: self.work,
            best: (self.best.peak <= self.limit).then_some(Micros(self.best.time)),
            lowest: Bytes(self.best.peak.unsigned_abs()),
        };
        self.stopped |= self.watch.progress(&progress).is_break();
        self.stopped
    }
}

/// A short annealing at the lowest temperature.
fn polish(model: &Model, start: &Found, limit: i64, work: u64) -> Found {
    let mean = model.least_time() / model.natural.len() as f64;
    let schedule = Schedule {
        work,
        hot: HOT[0] * mean,
        cold: COLD * mean,
    };
    let sequence = Sequence::new(model, &start.order);
    Annealer::new(sequence, limit, POLISH_SEED).run(&schedule, &mut |_, _| false)
}
