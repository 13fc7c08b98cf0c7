//! The best schedule of a tiny graph, by exhaustion.
//!
//! In: a problem and a budget. Out: the fastest sequence under the budget, or the proof that
//! there is none.
//!
//! Method: Dijkstra's shortest path over states `(live, done)`: the managed storages that are live,
//! and those nodes that have run among the ones whose having run matters (targets, nodes that may
//! run once, nodes that overwrite). A step runs a node whose reads are live, at the cost of its
//! time. Keeping more never costs time, so storages are freed only where the run would not fit
//! otherwise, and then no more than needed: each set of storages that makes enough room, and
//! without any one of them would not, gives a step of its own. A node whose output is still live
//! may as well run after that output was freed, so a run replaces it. The goal is any state in
//! which all that must have run has, and all that must be live is.
//!
//! Limits: at most 64 nodes and [`MOST_STORAGES`] storages, [`MOST_STATES`] states and
//! [`MOST_STEPS`] steps; beyond that there is no answer, and neither where the problem bans nodes
//! that the rules do not.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::problem::Problem;

/// Storages up to which it is tried. More would rarely end within the states allowed.
const MOST_STORAGES: usize = 40;
/// States and steps after which it is given up: about a twentieth of a second.
const MOST_STATES: usize = 40_000;
const MOST_STEPS: u64 = 400_000;

/// What exhaustion found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Exact {
    /// No sequence under the budget is faster than this one.
    Fastest(Vec<u32>),
    /// There is no sequence under the budget.
    Impossible,
    /// Too large to tell.
    Unknown,
}

type State = (u64, u64);

struct Entry {
    cost: f64,
    /// Order of discovery, for ties.
    index: usize,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_cost = other.cost.total_cmp(&self.cost);
        by_cost.then(other.index.cmp(&self.index))
    }
}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Entry {}

/// A state on the way: how it was reached first at its cost.
struct Reached {
    state: State,
    cost: f64,
    from: usize,
    /// The node that ran.
    ran: u32,
}

/// The fastest sequence under `budget`.
pub(crate) fn exact(problem: &Problem, budget: i64) -> Exact {
    match Space::new(problem) {
        Some(space) => space.search(budget),
        None => Exact::Unknown,
    }
}

/// One node in terms of bits.
struct Move {
    node: u32,
    time: f64,
    workspace: i64,
    reads: u64,
    writes: u64,
    /// Its own bit in `done`, if its having run matters.
    mark: u64,
    /// Marks that forbid it.
    not_after: u64,
}

struct Space<'m> {
    problem: &'m Problem,
    /// The bytes of each bit of `live`; bits with more bytes come first.
    bytes: Vec<i64>,
    moves: Vec<Move>,
    must_live: u64,
    must_done: u64,
    start: u64,
}

impl<'m> Space<'m> {
    fn new(problem: &'m Problem) -> Option<Space<'m>> {
        let written = problem.natural.iter().flat_map(|&v| problem.writes.of(v as usize));
        let mut storages: Vec<u32> = written.copied().collect();
        storages.sort_by_key(|&s| (-problem.bytes[s as usize], s));
        let mut bit = vec![None; problem.bytes.len()];
        for (b, &s) in storages.iter().enumerate() {
            bit[s as usize] = Some(b);
        }
        let is_large = storages.len() > MOST_STORAGES || problem.natural.len() > 64;
        if is_large || !problem.banned.is_empty() {
            return None;
        }
        let mask = |list: &[u32]| -> u64 {
            let bits = list.iter().filter_map(|&s| bit[s as usize]);
            bits.map(|b| 1u64 << b).sum()
        };
        let mut mark = vec![0u64; problem.time.len()];
        for (i, &v) in problem.natural.iter().enumerate() {
            let v = v as usize;
            let matters =
                problem.targets[v] || !problem.rerun[v] || !problem.not_before.of(v).is_empty();
            mark[v] = if matters { 1 << i } else { 0 };
        }
        let moves: Vec<Move> = problem.natural[1..]
            .iter()
            .map(|&v| Move {
                node: v,
                time: problem.time[v as usize],
                workspace: problem.workspace[v as usize],
                reads: mask(problem.reads.of(v as usize)),
                writes: mask(problem.writes.of(v as usize)),
                mark: mark[v as usize],
                not_after: match problem.rerun[v as usize] {
                    true => 0,
                    false => mark[v as usize],
                } | problem
                    .not_after
                    .of(v as usize)
                    .iter()
                    .map(|&u| mark[u as usize])
                    .fold(0, |a, b| a | b),
            })
            .collect();
        let kept: Vec<u32> =
            storages.iter().copied().filter(|&s| problem.kept[s as usize]).collect();
        let must_done = problem.natural.iter().filter(|&&v| problem.targets[v as usize]);
        Some(Space {
            problem,
            must_live: mask(&kept),
            must_done: must_done.map(|&v| mark[v as usize]).sum(),
            start: mask(problem.writes.of(problem.source)),
            bytes: storages.iter().map(|&s| problem.bytes[s as usize]).collect(),
            moves,
        })
    }

    fn bytes(&self, live: u64) -> i64 {
        self.problem.base + bits(live).map(|b| self.bytes[b]).sum::<i64>()
    }

    fn search(&self, budget: i64) -> Exact {
        if self.bytes(self.start) > budget {
            return Exact::Impossible;
        }
        let mut reached = vec![Reached {
            state: (self.start, 0),
            cost: 0.0,
            from: 0,
            ran: self.problem.source as u32,
        }];
        let mut cheapest: HashMap<State, f64> = HashMap::from([((self.start, 0), 0.0)]);
        let mut queue = BinaryHeap::from([Entry { cost: 0.0, index: 0 }]);
        let mut steps = 0;
        while let Some(Entry { cost, index }) = queue.pop() {
            let (live, done) = reached[index].state;
            if cost > cheapest[&(live, done)] {
                continue;
            }
            if live & self.must_live == self.must_live && done & self.must_done == self.must_done {
                return Exact::Fastest(self.path(&reached, index));
            }
            let bytes = self.bytes(live);
            for m in &self.moves {
                if m.reads & !live != 0 || m.not_after & done != 0 {
                    continue;
                }
                let made = bits(m.writes & !live).map(|b| self.bytes[b]);
                let over = bytes + made.sum::<i64>() + m.workspace - budget;
                let cost = cost + m.time;
                let go = &mut |freed: u64| {
                    let state = ((live & !freed) | m.writes, done | m.mark);
                    let known = cheapest.entry(state).or_insert(f64::INFINITY);
                    steps += 1;
                    if cost < *known {
                        *known = cost;
                        queue.push(Entry { cost, index: reached.len() });
                        reached.push(Reached { state, cost, from: index, ran: m.node });
                    }
                    steps < MOST_STEPS && reached.len() < MOST_STATES
                };
                if !self.make_room(over, live & !(m.reads | m.writes), 0, go) {
                    return Exact::Unknown;
                }
            }
        }
        Exact::Impossible
    }

    /// Calls `go` with `freed` and each smallest set of `candidates` that has `over` bytes. Each
    /// set is found once, its largest storage first: the last one taken is the smallest, and
    /// without it the set was too small, so without any other it would be too. Ends, with `false`,
    /// as soon as `go` says so.
    fn make_room(
        &self,
        over: i64,
        mut candidates: u64,
        freed: u64,
        go: &mut dyn FnMut(u64) -> bool,
    ) -> bool {
        if over <= 0 {
            return go(freed);
        }
        while bits(candidates).map(|b| self.bytes[b]).sum::<i64>() >= over {
            let largest = candidates.trailing_zeros() as usize;
            candidates &= candidates - 1;
            let left = over - self.bytes[largest];
            if !self.make_room(left, candidates, freed | 1 << largest, go) {
                return false;
            }
        }
        true
    }

    /// The runs on the way to a state.
    fn path(&self, reached: &[Reached], mut index: usize) -> Vec<u32> {
        let mut order = Vec::new();
        while index > 0 {
            order.push(reached[index].ran);
            debug_assert!(reached[reached[index].from].cost <= reached[index].cost);
            index = reached[index].from;
        }
        order.push(self.problem.source as u32);
        order.reverse();
        order
    }
}

/// The numbers of the bits that are set, ascending.
fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros() as usize;
        (mask != 0).then(|| {
            mask &= mask - 1;
            bit
        })
    })
}
