//! The best schedule of a tiny graph, by exhaustion.
//!
//! In: a model and a budget. Out: the fastest sequence under the budget, or the proof that there is none.
//!
//! Method: Dijkstra's shortest path over states `(live, done)`: the managed storages that are live, and those nodes
//! that have run among the ones whose having run matters (targets, nodes that may run once, nodes that
//! overwrite). A step either frees a live storage, at no cost, or runs a node whose reads are live and that fits, at
//! the cost of its time. A node whose output is still live may as well run after that output was freed, so a run
//! replaces it. The goal is any state in which all that must have run has, and all that must be live is.
//!
//! Limits: at most 64 nodes and storages, and at most [`MOST_STATES`] states; beyond that there is no answer.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::model::Model;

/// Storages up to which it is tried. More would rarely end within the states allowed.
const MOST_STORAGES: usize = 40;
/// States after which it is given up: about a tenth of a second.
const MOST_STATES: usize = 200_000;

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
    /// The node that ran; `None` for a free.
    ran: Option<u32>,
}

/// The fastest sequence under `budget`.
pub(crate) fn exact(model: &Model, budget: i64) -> Exact {
    match Space::new(model) {
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
    model: &'m Model,
    /// The storage of each bit of `live`.
    storages: Vec<u32>,
    moves: Vec<Move>,
    must_live: u64,
    must_done: u64,
    start: u64,
}

impl<'m> Space<'m> {
    fn new(model: &'m Model) -> Option<Space<'m>> {
        let mut bit = vec![None; model.bytes.len()];
        let mut storages = Vec::new();
        for &v in &model.natural {
            for &s in model.writes.of(v as usize) {
                bit[s as usize] = Some(storages.len());
                storages.push(s);
            }
        }
        if storages.len() > MOST_STORAGES || model.natural.len() > 64 {
            return None;
        }
        let mask = |list: &[u32]| -> u64 {
            let bits = list.iter().filter_map(|&s| bit[s as usize]);
            bits.map(|b| 1u64 << b).sum()
        };
        let mut mark = vec![0u64; model.time.len()];
        for (i, &v) in model.natural.iter().enumerate() {
            let v = v as usize;
            let matters = model.targets[v] || !model.rerun[v] || !model.not_before.of(v).is_empty();
            mark[v] = if matters { 1 << i } else { 0 };
        }
        let moves: Vec<Move> = model.natural[1..]
            .iter()
            .map(|&v| Move {
                node: v,
                time: model.time[v as usize],
                workspace: model.workspace[v as usize],
                reads: mask(model.reads.of(v as usize)),
                writes: mask(model.writes.of(v as usize)),
                mark: mark[v as usize],
                not_after: match model.rerun[v as usize] {
                    true => 0,
                    false => mark[v as usize],
                } | model
                    .not_after
                    .of(v as usize)
                    .iter()
                    .map(|&u| mark[u as usize])
                    .fold(0, |a, b| a | b),
            })
            .collect();
        let kept: Vec<u32> = storages
            .iter()
            .copied()
            .filter(|&s| model.kept[s as usize])
            .collect();
        let must_done = model.natural.iter().filter(|&&v| model.targets[v as usize]);
        Some(Space {
            model,
            must_live: mask(&kept),
            must_done: must_done.map(|&v| mark[v as usize]).sum(),
            start: mask(model.writes.of(model.source)),
            storages,
            moves,
        })
    }

    fn bytes(&self, live: u64) -> i64 {
        let bits = self.storages.iter().enumerate();
        let bytes = bits.filter(|(i, _)| live >> i & 1 == 1);
        let bytes: i64 = bytes.map(|(_, &s)| self.model.bytes[s as usize]).sum();
        self.model.base + bytes
    }

    fn search(&self, budget: i64) -> Exact {
        if self.bytes(self.start) > budget {
            return Exact::Impossible;
        }
        let mut reached = vec![Reached {
            state: (self.start, 0),
            cost: 0.0,
            from: 0,
            ran: None,
        }];
        let mut cheapest: HashMap<State, f64> = HashMap::from([((self.start, 0), 0.0)]);
        let mut queue = BinaryHeap::from([Entry {
            cost: 0.0,
            index: 0,
        }]);
        while let Some(Entry { cost, index }) = queue.pop() {
            let (live, done) = reached[index].state;
            if cost > cheapest[&(live, done)] {
                continue;
            }
            if live & self.must_live == self.must_live && done & self.must_done == self.must_done {
                return Exact::Fastest(self.path(&reached, index));
            }
            if reached.len() > MOST_STATES {
                return Exact::Unknown;
            }
            let mut go = |state: State, cost: f64, ran: Option<u32>| {
                let known = cheapest.entry(state).or_insert(f64::INFINITY);
                if cost < *known {
                    *known = cost;
                    queue.push(Entry {
                        cost,
                        index: reached.len(),
                    });
                    reached.push(Reached {
                        state,
                        cost,
                        from: index,
                        ran,
                    });
                }
            };
            for b in 0..self.storages.len() {
                if live >> b & 1 == 1 {
                    go((live & !(1 << b), done), cost, None);
                }
            }
            for m in &self.moves {
                let allowed = m.reads & !live == 0 && m.not_after & done == 0;
                let after = live | m.writes;
                if allowed && self.bytes(after) + m.workspace <= budget {
                    go((after, done | m.mark), cost + m.time, Some(m.node));
                }
            }
        }
        Exact::Impossible
    }

    /// The runs on the way to a state.
    fn path(&self, reached: &[Reached], mut index: usize) -> Vec<u32> {
        let mut order = Vec::new();
        while index > 0 {
            order.extend(reached[index].ran);
            debug_assert!(reached[reached[index].from].cost <= reached[index].cost);
            index = reached[index].from;
        }
        order.push(self.model.source as u32);
        order.reverse();
        order
    }
}
