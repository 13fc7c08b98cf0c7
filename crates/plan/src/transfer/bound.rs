//! A lower bound on the time of any schedule under a budget that may move storages.
//!
//! In: a graph, a budget, a store. Out: microseconds.
//!
//! Argument. Without a store, `time ≥ g(budget)` (`bound.rs`): at the moment at which some node
//! first runs, what is needed later is live or made again later. With a store it may also be
//! fetched later. What is fetched has been made in this training step, or was in memory when it
//! began, so it has been copied out in it as well: a schedule that takes the time `t` can do that
//! with `rate · t` bytes at most, where `rate` is the slower of the two ways, or both one after the
//! other where they share a channel. So what is needed later and neither live nor made again is at
//! most so much, and
//!
//! ```text
//! t ≥ g(budget + rate · t).
//! ```
//!
//! The right side falls as `t` rises, so every `t` that is at most the right side is a bound; the
//! largest is found by bisection. This is the bound with a price θ on compute and 1 − θ on bytes
//! moved one way, at its best θ.
//!
//! Parameters, constants and optimizer state that are there from the start may live in the store
//! and need not be copied out. They are left out of the bytes altogether, which can only lower the
//! bound. So is the duty to keep what is persistent and no output.

use rekindle_graph::{Bytes, Graph, Micros, Store};

use crate::Effort;
use crate::draft::needed_nodes;
use crate::search::problem::Problem;
use crate::search::{bound_of, signed};

/// Steps of the bisection: the bound is then within a hundredth of the difference.
const STEPS: u32 = 6;

/// No schedule under `budget` takes less time than this.
pub(crate) fn time_bound(graph: &Graph, budget: Bytes, store: &Store, effort: Effort) -> Micros {
    let problem = problem(graph, store);
    let rate = return_rate(store);
    let at = |time: f64| {
        let moved = (rate * time).ceil().min((1u64 << 61) as f64) as i64;
        bound_of(&problem, signed(budget) + moved, effort)
    };
    let (mut low, mut high) = (problem.least_time(), at(problem.least_time()));
    let steps = if effort == Effort::FIRST { 1 } else { STEPS };
    for _ in 0..steps {
        if high <= low {
            break;
        }
        let middle = (low + high) / 2.0;
        match at(middle) >= middle {
            true => low = middle,
            false => high = middle,
        }
    }
    Micros(low)
}

/// Bytes per microsecond that can leave and come back.
fn return_rate(store: &Store) -> f64 {
    let (out, back) = (store.out_rate.get(), store.in_rate.get());
    match store.duplex {
        true => out.min(back),
        false if out > 0.0 && back > 0.0 => 1.0 / (1.0 / out + 1.0 / back),
        false => 0.0,
    }
}

/// The problem without what may live in the store.
fn problem(graph: &Graph, store: &Store) -> Problem {
    let mut problem = Problem::new(graph, &needed_nodes(graph)).relaxed().into_owned();
    let stored = graph.sources().filter(|&s| store.keeps(graph.storage(s).role));
    problem.base -= stored.map(|s| signed(graph.storage(s).bytes)).sum::<i64>();
    for (kept, storage) in problem.kept.iter_mut().zip(graph.storages()) {
        *kept &= !(storage.role.is_persistent() && store.takes(storage.role));
    }
    for &s in graph.outputs() {
        // What is there from the start has no bytes of its own in the problem.
        problem.kept[s.index()] |= problem.bytes[s.index()] > 0;
    }
    problem
}
