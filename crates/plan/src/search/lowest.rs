//! The lowest peak that the search finds.
//!
//! In: a problem, a floor below which no sequence goes, and work. Out: a sequence with as low a
//! peak as is found.
//!
//! Method: a budget far below what can be reached tells a search little about where to go. So first
//! plans are looked for at budgets between the floor and the lowest peak so far, halving that
//! range: a first plan is cheap, and cuts are good at tight budgets. Then come short searches, each
//! from the lowest sequence so far and somewhat below its peak, and at last deeper ones. A tiny
//! graph is searched in full instead.
//!
//! The result depends on the graph and the work alone: a refusal names the same smallest budget
//! whatever was asked for.

use super::Search;
use super::anneal::{Found, Moves};
use super::exact::{Exact, exact};
use super::problem::Problem;
use super::pulse::Pulse;

/// Halvings of the range between the floor and the lowest peak so far, without work to follow and
/// with it.
const HALVINGS: (u32, u32) = (7, 7);
/// Searches after them, which share the work.
const ROUNDS: u32 = 3;
/// How far below the lowest peak so far the first of them aims, as a share of it; halved whenever
/// one fails.
const STEP: f64 = 0.04;
/// Deeper searches after those, at most, and how far below the lowest peak each aims.
const DEEP_ROUNDS: u32 = 3;
const DEEP_STEP: f64 = 0.02;
/// A peak that is above the floor by at most one part in so many is low enough.
const NEAR: i64 = 1024;

/// See the module's documentation. Also says whether the watch said stop.
pub(super) fn lowest(problem: &Problem, floor: i64, work: u64, pulse: &Pulse) -> (Found, bool) {
    match exhaust(problem, floor) {
        Exhausted::Lowest(best) => (best, false),
        Exhausted::Between { too_low, best } => {
            approach(problem, floor, too_low, best, work, pulse)
        }
    }
}

/// Goes down from `best`; no sequence is under a budget of `too_low`.
fn approach(
    problem: &Problem,
    floor: i64,
    mut too_low: i64,
    mut best: Found,
    work: u64,
    pulse: &Pulse,
) -> (Found, bool) {
    let mut step = STEP;
    let (halvings, rounds) = match work {
        0 => (HALVINGS.0, 0),
        _ => (HALVINGS.1, ROUNDS),
    };
    for round in 0..halvings + rounds {
        let is_halving = round < halvings;
        if best.peak - floor <= floor / NEAR {
            break;
        }
        let (limit, share) = match is_halving {
            true => (too_low + (best.peak - too_low) / 2, 0),
            false => {
                let below = (step * best.peak as f64) as i64;
                (floor.max(best.peak - below), work / u64::from(ROUNDS))
            }
        };
        let mut search = Search::new(problem, limit, share, pulse);
        search.add(best.clone());
        // With work to follow, what a first plan misses is found later.
        search.insists = work == 0;
        search.start();
        search.anneal(Moves::Plain, search.left());
        if search.best.peak > limit {
            match is_halving {
                true => too_low = limit,
                false => step /= 2.0,
            }
        }
        if search.best.peak < best.peak {
            best = search.best;
        }
        if pulse.is_stopped() {
            return (best, true);
        }
    }
    go_deeper(problem, floor, work, pulse, &mut best);
    (best, pulse.is_stopped())
}

/// Nested recomputation and bold moves, aiming below the lowest so far as long as they reach it.
fn go_deeper(problem: &Problem, floor: i64, work: u64, pulse: &Pulse, best: &mut Found) {
    for _ in 0..DEEP_ROUNDS {
        let below = (DEEP_STEP * best.peak as f64) as i64;
        let limit = floor.max(best.peak - below);
        if work == 0 || pulse.is_stopped() || best.peak - floor <= floor / NEAR {
            return;
        }
        let mut search = Search::new(problem, limit, work / u64::from(ROUNDS), pulse);
        search.add(best.clone());
        search.deepen();
        let is_reached = search.best.peak <= limit;
        if search.best.peak < best.peak {
            *best = search.best;
        }
        if !is_reached {
            return;
        }
    }
}

/// What [`exact`] finds out about the lowest peak.
enum Exhausted {
    /// The fastest sequence under the limit or, if there is none, one whose peak is the lowest.
    Lowest(Found),
    /// No sequence is known below `best`, and none is under a budget of `too_low`.
    Between { too_low: i64, best: Found },
}

/// Halves the range between `limit` and the plain peak for as long as [`exact`] has an answer.
fn exhaust(problem: &Problem, limit: i64) -> Exhausted {
    let mut best = Found::of_order(problem, &problem.natural);
    let mut too_low = limit;
    match exact(problem, limit) {
        Exact::Fastest(order) => return Exhausted::Lowest(Found::of_order(problem, &order)),
        Exact::Impossible => {}
        Exact::Unknown => return Exhausted::Between { too_low, best },
    }
    while too_low + 1 < best.peak {
        let middle = too_low + (best.peak - too_low) / 2;
        match exact(problem, middle) {
            Exact::Fastest(order) => {
                best = Found::of_order(problem, &order);
                debug_assert!(best.peak <= middle, "otherwise this would not end");
            }
            Exact::Impossible => too_low = middle,
            Exact::Unknown => return Exhausted::Between { too_low, best },
        }
    }
    Exhausted::Lowest(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_graph::{Graph, Node, Phase, StorageId};

    use crate::NoWatch;
    use crate::draft::needed_nodes;
    use crate::floor::floor;
    use crate::search::random::Random;
    use crate::testing::{chain, node, parts, random};
    use rekindle_graph::Bytes;

    /// A chain of `n` layers whose activations have 10 bytes. For each layer a gradient of 3 bytes
    /// stays until the end.
    fn layers(n: u32) -> Graph {
        let (mut bytes, mut nodes) = (Vec::<u64>::new(), Vec::<Node>::new());
        let mut add = |name: String, phase, reads: &[u32], size| {
            bytes.push(size);
            nodes.push(node(&name, phase, reads, &[bytes.len() as u32]));
            bytes.len() as u32
        };
        let mut activations = vec![0];
        for i in 0..n {
            let before = activations[i as usize];
            activations.push(add(format!("f{i}"), Phase::Forward, &[before], 10));
        }
        let mut gradient = add("loss".into(), Phase::Backward, &[activations[n as usize]], 10);
        let mut outputs = Vec::new();
        for (i, pair) in activations.windows(2).enumerate().rev() {
            let through = [gradient, pair[1]];
            gradient = add(format!("b{i}"), Phase::Backward, &through, 10);
            let of_weight = [gradient, pair[0]];
            let weight = add(format!("w{i}"), Phase::Backward, &of_weight, 3);
            outputs.push(StorageId(weight));
        }
        let mut parts = parts(&bytes, nodes);
        parts.outputs = outputs;
        Graph::new(parts).expect("a graph")
    }

    /// The exhaustive search has no answer any more for these, at some budgets or at all.
    #[test]
    fn where_exhaustion_ends_the_search_goes_on() {
        for n in 4..12 {
            let graph = layers(n);
            let problem = Problem::new(&graph, &needed_nodes(&graph));
            let floor = floor(&graph).bytes.get() as i64;
            let (best, stopped) = lowest(&problem, floor, 0, &Pulse::new(&mut NoWatch));
            let plain = Found::of_order(&problem, &problem.natural).peak;
            assert!(!stopped);
            assert!(best.peak < plain, "{n} layers: {} of {plain}", best.peak);
        }
    }

    /// A chain whose sizes differ.
    fn uneven(n: u32, seed: u64) -> Graph {
        let mut dice = Random::new(seed);
        let mut parts = chain(n).into_parts();
        for storage in &mut parts.storages {
            storage.bytes = Bytes(1 + dice.below(40) as u64);
        }
        Graph::new(parts).expect("a graph")
    }

    /// Beside exhaustion, on graphs small enough for it: never below it, and mostly the same.
    #[test]
    fn the_lowest_peak_is_nearly_always_the_lowest() {
        let (mut compared, mut reached) = (0, 0);
        for seed in 0..12 {
            for graph in [random(10, seed), uneven(6, seed)] {
                let problem = Problem::new(&graph, &needed_nodes(&graph));
                let floor = floor(&graph).bytes.get() as i64;
                let Exhausted::Lowest(lowest) = exhaust(&problem, floor) else {
                    continue;
                };
                let plain = Found::of_order(&problem, &problem.natural);
                let mut watch = NoWatch;
                let pulse = Pulse::new(&mut watch);
                let (found, _) = approach(&problem, floor, floor, plain, 50_000, &pulse);
                // Under the floor's own budget exhaustion gives the fastest, not the lowest.
                let lowest = lowest.peak.max(floor);
                assert!(found.peak.max(floor) >= lowest, "{}: seed {seed}", graph.name());
                compared += 1;
                reached += i32::from(found.peak <= lowest);
            }
        }
        assert!(compared > 15 && 5 * reached >= 4 * compared, "{reached} of {compared}");
    }
}
