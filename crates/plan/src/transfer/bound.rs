//! A lower bound on the time of any schedule under a budget that may move storages.
//!
//! In: a graph, a budget, a store. Out: microseconds.
//!
//! Argument. Take a node `v` that every schedule runs, and the moment at which its *first* run
//! begins, `t₁` after the start and `t₂` before the end. By then every ancestor of `v` has run, and
//! no descendant has. What descendants read of what ancestors wrote, `K` bytes, is live at the
//! moment (`L` bytes), or written again later (`R` microseconds), or fetched later (`M` bytes).
//! What is fetched later was copied out *before* the moment, for freeing it waited for its copy:
//!
//! ```text
//! t₁ ≥ time of the ancestors             t₁ ≥ M / rate out
//! t₂ ≥ time of v and the descendants + R    t₂ ≥ time of v + M / rate in
//! t₁ + t₂ ≥ time of all needed nodes + R    L + M ≥ K,  L + … ≤ room
//! R + x · K ≥ cut(x)                        for every price x ≥ 0
//! ```
//!
//! where `cut(x)` is the minimum cut of the moment ([`Crossing`]) if a byte that crosses it costs
//! `x`. What is there at the start crosses too, is never written again, and is away at the moment
//! in one of a few ways ([`Kind`]): what lives in the store has to be fetched before a use, and
//! copied out after an update. The least `t₁ + t₂` is a linear program of a handful of variables
//! ([`Covering`]); its prices are the θ and λ of the bound `θ · compute + (1 - θ) · bytes / rate`.
//!
//! Method: for each of some moments, the program starts without a price; `cut(x)` is added at the
//! slope between the two known points of its curve around the solution, until that gives none that
//! is new. Every row is valid, so every value on the way is a bound.
//!
//! At the end of the step, the outputs and what is persistent are in memory, or live in the store:
//! what does has been fetched if it is used at all, and copied out if it is updated
//! ([`at_the_end`]).
//!
//! Limits: each moment counts alone, and latencies count nothing. A persistent storage that a node
//! writes may begin in the store by the rules; it has no bytes here.

use rekindle_graph::{Bytes, Graph, Micros, NodeId, Store};

use super::covering::Covering;
use super::floor::bytes_at;
use crate::Effort;
use crate::draft::needed_nodes;
use crate::search::crossing::Crossing;
use crate::search::problem::Problem;
use crate::search::signed;

/// Arcs that all moments together may look at, for a first plan and otherwise.
const MOST_ARCS: (u64, u64) = (1_000_000, 12_000_000);
/// Arcs that one moment may look at.
const MOMENT_ARCS: u64 = 8_000_000;
/// Moments that are tried: those with the most bytes in the graph's own order, and those with the
/// most in each of so many stretches of it.
const HIGHEST: usize = 12;
const STRETCHES: usize = 12;
/// Prices that are tried for each.
const PRICES: u32 = 12;
/// The first of them: the time of four steps for the bytes of the budget.
const HIGHEST_PRICE: f64 = 4.0;
/// A cut that is cheaper than the two around it by less than this share is none that is new.
const NOTHING_NEW: f64 = 1e-6;
/// So much is taken off the bound, as a share of the time: it is made of sums of floats.
const ROUNDING: f64 = 1e-9;

/// No schedule under `budget` takes less time than this.
pub(crate) fn time_bound(graph: &Graph, budget: Bytes, store: &Store, effort: Effort) -> Micros {
    let problem = problem(graph, store);
    let least = problem.least_time();
    let most = if effort == Effort::FIRST { MOST_ARCS.0 } else { MOST_ARCS.1 };
    let mut best = least.max(at_the_end(graph, &problem, store, signed(budget)));
    let mut work = 0;
    for v in moments(&problem) {
        if work > most {
            break;
        }
        let mut moment = Moment::new(graph, &problem, v, store, signed(budget));
        work += moment.climb();
        // Where there is no schedule, any bound holds, and no number says more than the others.
        if moment.bound.is_finite() {
            best = best.max(moment.bound * least);
        }
    }
    Micros((best * (1.0 - ROUNDING)).max(least))
}

/// Time that the channels take for what cannot be in memory at the end.
fn at_the_end(graph: &Graph, problem: &Problem, store: &Store, budget: i64) -> f64 {
    let outputs: i64 =
        (0..problem.bytes.len()).filter(|&s| problem.kept[s]).map(|s| problem.bytes[s]).sum();
    let (mut stays, mut read, mut updated) = (outputs, 0, 0);
    let needed = needed_nodes(graph);
    for s in graph.sources().filter(|&s| graph.storage(s).role.is_persistent()) {
        let bytes = signed(graph.storage(s).bytes);
        match store.keeps(graph.storage(s).role) {
            false => stays += bytes,
            true if graph.updater(s).is_some() => updated += bytes,
            true if graph.readers(s).iter().any(|n| needed[n.index()]) => read += bytes,
            true => {}
        }
    }
    let away = (stays + read + updated - budget).max(0);
    // What is not updated needs no copy out, and goes first.
    let copied = (away - read).clamp(0, updated);
    let takes = |bytes: i64, rate: f64| match bytes > 0 {
        true => bytes as f64 / rate.max(f64::MIN_POSITIVE),
        false => 0.0,
    };
    let (out, back) = (takes(copied, store.out_rate.get()), takes(away, store.in_rate.get()));
    let time = if store.duplex { out.max(back) } else { out + back };
    // Without a way there is no schedule, and any bound holds.
    if time.is_finite() { time } else { 0.0 }
}

/// The problem in which all that is not there at the start has its bytes, but for what may begin in
/// the store and is written by a node nevertheless.
fn problem(graph: &Graph, store: &Store) -> Problem {
    let mut problem = Problem::new(graph, &needed_nodes(graph)).relaxed().into_owned();
    for (s, storage) in graph.storages().iter().enumerate() {
        problem.kept[s] &= !(storage.role.is_persistent() && store.takes(storage.role));
        if store.keeps(storage.role) {
            problem.bytes[s] = 0;
        }
    }
    for &s in graph.outputs() {
        // What is there from the start has no bytes of its own in the problem.
        problem.kept[s.index()] |= problem.bytes[s.index()] > 0;
    }
    problem
}

/// The nodes whose first runs are looked at, those with the most bytes first.
fn moments(problem: &Problem) -> Vec<usize> {
    let during = problem.bytes_during(&problem.natural);
    let nodes = during.into_iter().map(|bytes| -bytes).zip(problem.natural.iter().copied());
    let nodes: Vec<(i64, u32)> = nodes.skip(1).collect();
    let mut highest = nodes.clone();
    highest.sort_unstable();
    highest.truncate(HIGHEST);
    let stretch = nodes.len().div_ceil(STRETCHES).max(1);
    let mut others: Vec<(i64, u32)> =
        nodes.chunks(stretch).filter_map(|nodes| nodes.iter().min().copied()).collect();
    others.sort_unstable();
    others.retain(|node| !highest.contains(node));
    highest.into_iter().chain(others).map(|(_, v)| v as usize).collect()
}

/// What a persistent storage that is there at the start takes to be away at a moment. It either
/// lives in the store, and was fetched if it was used before, is fetched if it is used later, and
/// copied out after it is updated; or it was copied out before and ends in memory.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// May not live in the store.
    Stays,
    /// Used before the moment and not after it.
    Before,
    /// Used after it.
    After { before: bool, updated: bool },
}

/// Out and in before the moment, out and in after it.
type Ways = [bool; 4];

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::Stays,
        Kind::Before,
        Kind::After { before: false, updated: false },
        Kind::After { before: false, updated: true },
        Kind::After { before: true, updated: false },
        Kind::After { before: true, updated: true },
    ];
    /// Copied out before and fetched after.
    const THERE_AND_BACK: Ways = [true, false, false, true];

    fn ways(self) -> Vec<Ways> {
        let ends_in_memory = Kind::THERE_AND_BACK;
        match self {
            Kind::Stays => vec![ends_in_memory],
            Kind::Before => vec![[false, true, false, false], ends_in_memory],
            Kind::After { before, updated } => vec![[false, before, updated, true], ends_in_memory],
        }
    }
}

/// Variables of the program; after them, the bytes of each kind that stay, and those that go each
/// of its ways.
const TIME_BEFORE: usize = 0;
const TIME_AFTER: usize = 1;
const AGAIN: usize = 2;
const CROSSING: usize = 3;
const LIVE: usize = 4;
const MOVED: usize = 5;
const FIRST_KIND: usize = 6;

/// What the program of a moment is made of: times in shares of the least, bytes in shares of the
/// budget.
struct Shares {
    /// Time of the ancestors, of the node itself, and of its descendants.
    before: f64,
    at: f64,
    after: f64,
    /// Bytes beside what the node touches, and of each kind of what is there at the start.
    room: f64,
    kinds: [f64; 6],
    /// What the bytes of the budget take, out and in; without end where there is no such way.
    takes: [f64; 2],
}

impl Shares {
    /// The program before any price of a cut.
    fn program(&self, duplex: bool) -> Covering {
        // A store may have one way only: what would need the other stays.
        let exists = |way: &Ways| (0..4).all(|w| !way[w] || self.takes[w % 2].is_finite());
        let ways: Vec<(usize, Ways)> = (0..Kind::ALL.len())
            .flat_map(|k| Kind::ALL[k].ways().into_iter().map(move |way| (k, way)))
            .filter(|(_, way)| exists(way))
            .collect();
        let may_move = exists(&Kind::THERE_AND_BACK);
        let first_way = FIRST_KIND + Kind::ALL.len();
        let mut costs = vec![0.0; first_way + ways.len()];
        (costs[TIME_BEFORE], costs[TIME_AFTER]) = (1.0, 1.0);
        let mut program = Covering::new(&costs);
        program.add(&[(TIME_BEFORE, 1.0)], self.before);
        program.add(&[(TIME_AFTER, 1.0), (AGAIN, -1.0)], self.at + self.after);
        program.add(&[(TIME_BEFORE, 1.0), (TIME_AFTER, 1.0), (AGAIN, -1.0)], 1.0);
        // What goes each way: before and after the moment, out and in.
        let moves = |way: usize| {
            let mut all = Vec::new();
            if Kind::THERE_AND_BACK[way] && may_move {
                all.push((MOVED, -self.takes[way % 2]));
            }
            let others = (0..ways.len()).filter(|&w| ways[w].1[way]);
            all.extend(others.map(|w| (first_way + w, -self.takes[way % 2])));
            all
        };
        for (part, time, begins) in [(0, TIME_BEFORE, 0.0), (2, TIME_AFTER, self.at)] {
            let (out, back) = (moves(part), moves(part + 1));
            let rows = match duplex {
                true => vec![out, back],
                false => vec![[out, back].concat()],
            };
            for mut row in rows {
                row.push((time, 1.0));
                program.add(&row, begins);
            }
        }
        let moved = f64::from(u8::from(may_move));
        program.add(&[(LIVE, 1.0), (MOVED, moved), (CROSSING, -1.0)], 0.0);
        let mut inside = vec![(LIVE, -1.0)];
        for (k, &bytes) in self.kinds.iter().enumerate() {
            inside.push((FIRST_KIND + k, -1.0));
            let away = (0..ways.len()).filter(|&w| ways[w].0 == k);
            let mut row = vec![(FIRST_KIND + k, 1.0)];
            row.extend(away.map(|w| (first_way + w, 1.0)));
            program.add(&row, bytes);
        }
        program.add(&inside, -self.room);
        program
    }
}

/// One moment: its cuts, its program, and the best bound so far, as a share of the least time.
struct Moment<'p> {
    cut: Crossing<'p>,
    program: Covering,
    bound: f64,
    least: f64,
    budget: f64,
    /// Bytes that the future needs.
    needed: f64,
}

impl<'p> Moment<'p> {
    fn new(
        graph: &Graph,
        problem: &'p Problem,
        v: usize,
        store: &Store,
        budget: i64,
    ) -> Moment<'p> {
        let (past, after) = (problem.ancestors(v), problem.descendants(v));
        let least = problem.least_time().max(f64::MIN_POSITIVE);
        let unit = budget.max(1) as f64;
        let time_of = |of: &[bool]| -> f64 {
            let nodes = problem.natural.iter().filter(|&&w| of[w as usize]);
            nodes.map(|&w| problem.time[w as usize]).sum::<f64>() / least
        };
        let takes = |rate: f64| unit / least / rate;
        let (stays, kinds) = bytes_of_kinds(graph, v, store, &past, &after);
        let shares = Shares {
            before: time_of(&past),
            at: problem.time[v] / least,
            after: time_of(&after),
            room: (budget - signed(bytes_at(graph, NodeId(v as u32))) - stays) as f64 / unit,
            kinds: kinds.map(|bytes| bytes as f64 / unit),
            takes: [takes(store.out_rate.get()), takes(store.in_rate.get())],
        };
        let mut free = vec![false; problem.bytes.len()];
        for &s in problem.reads.of(v).iter().chain(problem.writes.of(v)) {
            free[s as usize] = true;
        }
        let mut needed = problem.kept.clone();
        for &w in problem.natural.iter().filter(|&&w| after[w as usize]) {
            problem.reads.of(w as usize).iter().for_each(|&s| needed[s as usize] = true);
        }
        let crosses = |s: &usize| needed[*s] && !free[*s] && past[problem.writer[*s] as usize];
        let crossing = (0..needed.len()).filter(crosses).map(|s| problem.bytes[s] as f64);
        Moment {
            needed: crossing.sum::<f64>() / unit,
            cut: Crossing::new(problem, &past, &needed, &free, MOMENT_ARCS),
            program: shares.program(store.duplex),
            bound: 0.0,
            least,
            budget: unit,
        }
    }

    /// Adds prices until there is nothing to be gained. Gives the arcs looked at.
    fn climb(&mut self) -> u64 {
        // Points of the curve around the solution, each with its price: more bytes, more time.
        let mut more = (0.0, self.needed, 0.0);
        let Some(mut less) = self.point(HIGHEST_PRICE) else {
            self.bound = self.program.least();
            return self.cut.work();
        };
        self.bound = self.program.least();
        for _ in 0..PRICES {
            let crossing = self.program.value_of(CROSSING);
            let price = (less.2 - more.2) / (more.1 - less.1);
            let is_between = crossing < more.1 && crossing > less.1 && price < less.0;
            if !is_between || price <= more.0 || self.cut.is_exhausted() {
                break;
            }
            let point = self.point(price);
            self.bound = self.program.least();
            let on_the_line = more.2 + price * more.1;
            let Some(point) =
                point.filter(|p| p.2 + price * p.1 < on_the_line * (1.0 - NOTHING_NEW))
            else {
                break;
            };
            match self.program.value_of(CROSSING) >= point.1 {
                true => less = point,
                false => {
                    more = point;
                    self.cut.keep();
                }
            }
        }
        self.cut.work()
    }

    /// Adds the row of a price, and gives it with the bytes and the time of its cut; nothing if the
    /// cut was given up.
    fn point(&mut self, price: f64) -> Option<(f64, f64, f64)> {
        let value = self.cut.least(price * self.least / self.budget, &|_| false) / self.least;
        self.program.add(&[(AGAIN, 1.0), (CROSSING, price)], value);
        let bytes = self.cut.kept() / self.budget;
        self.cut.is_solved().then_some((price, bytes, value - price * bytes))
    }
}

/// Of the persistent storages that are there at the start and that `v` does not touch, the bytes of
/// those that the store does not take, and of each kind of the others.
fn bytes_of_kinds(
    graph: &Graph,
    v: usize,
    store: &Store,
    past: &[bool],
    after: &[bool],
) -> (i64, [i64; 6]) {
    let (mut stays, mut bytes) = (0, [0; 6]);
    let touched = &graph.node(NodeId(v as u32)).reads;
    for s in graph.sources().filter(|s| !touched.contains(s)) {
        let (role, size) = (graph.storage(s).role, signed(graph.storage(s).bytes));
        let readers = || graph.readers(s).iter().map(|n| n.index());
        if !role.is_persistent() {
            continue;
        }
        if !store.takes(role) {
            stays += size;
            continue;
        }
        let kind = match store.keeps(role) {
            false => Kind::Stays,
            true if readers().any(|n| after[n]) => Kind::After {
                before: readers().any(|n| past[n]),
                updated: graph.updater(s).is_some_and(|u| after[u.index()]),
            },
            true if readers().any(|n| past[n]) => Kind::Before,
            true => continue,
        };
        let k = Kind::ALL.iter().position(|&of| of == kind).expect("all kinds are there");
        bytes[k] += size;
    }
    (stays, bytes)
}

#[cfg(test)]
mod tests {
    use super::super::exact::{Exact, exact};
    use super::*;
    use crate::search::random::Random;
    use crate::testing::{chain, random};
    use rekindle_graph::{GraphParts, Rate, Role, StorageId, Timeline};

    fn store(dice: &mut Random) -> Store {
        let mut rate = || Rate([0.0, 0.5, 1.0, 3.0, 10.0][dice.below(5)]);
        let (out_rate, in_rate) = (rate(), rate());
        let latency = Micros(dice.below(3) as f64);
        let (duplex, activations_only) = (dice.below(2) == 0, dice.below(4) == 0);
        Store { out_rate, in_rate, latency, duplex, limit: None, activations_only }
    }

    /// A graph whose first storages may live in the store, and whose last node updates one.
    fn with_state(parts: GraphParts, dice: &mut Random) -> Graph {
        let mut parts = parts;
        parts.storages[0].role = Role::Parameter;
        parts.storages[0].bytes = Bytes(1 + dice.below(12) as u64);
        if dice.below(2) == 0
            && let Some(last) = parts.nodes.last_mut()
        {
            last.effect = rekindle_graph::Effect::Once;
            last.reads.push(StorageId(0));
            last.reads.sort();
            last.reads.dedup();
            last.updates = vec![StorageId(0)];
        }
        Graph::new(parts).expect("a graph")
    }

    #[test]
    fn no_schedule_of_a_tiny_graph_is_faster() {
        let (mut above, mut seen) = (0, 0);
        for seed in 0..20 {
            let mut dice = Random::new(seed);
            let graphs = [random(7, seed).into_parts(), chain(4).into_parts()];
            for parts in graphs {
                let graph = with_state(parts, &mut dice);
                let (low, high) =
                    (super::super::floor_with_store(&graph).bytes, Timeline::natural(&graph).peak);
                let store = store(&mut dice);
                for budget in [low, Bytes((low + high).get() / 2)] {
                    let Exact::Fastest(_, truth) = exact(&graph, signed(budget), &store) else {
                        continue;
                    };
                    let bound = time_bound(&graph, budget, &store, Effort::DEFAULT).get();
                    assert!(bound <= truth * (1.0 + 1e-9), "seed {seed}: {bound} > {truth}");
                    seen += 1;
                    let least = crate::draft::least_time(&graph).get();
                    above += i32::from(bound > least * 1.001);
                }
            }
        }
        assert!(seen > 30 && above * 3 > seen, "{above} of {seen} bounds say anything");
    }

    /// Four storages of 10 bytes are made in 4 µs; the node after them needs the last of them and
    /// 10 bytes more. What does not fit must leave before: 1 byte/µs moves 4 of the 20 bytes that
    /// have to go.
    #[test]
    fn what_is_fetched_later_has_left_before() {
        let graph = chain(4);
        let rate = Rate(1.0);
        let latency = Micros(0.0);
        let store = Store {
            out_rate: rate,
            in_rate: rate,
            latency,
            duplex: true,
            limit: None,
            activations_only: false,
        };
        let bound = time_bound(&graph, Bytes(31), &store, Effort::DEFAULT).get();
        let Exact::Fastest(_, truth) = exact(&graph, 31, &store) else {
            panic!("a tiny graph is solved");
        };
        assert!(bound > 8.5 && bound <= truth, "{bound}, {truth}");
    }
}
