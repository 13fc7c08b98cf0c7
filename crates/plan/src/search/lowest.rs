//! The lowest peak that the search finds.
//!
//! In: a model, a floor below which no sequence goes, and work. Out: a sequence with as low a peak as is found.
//!
//! Method: a budget far below what can be reached tells a search little about where to go. So first plans are looked for
//! at budgets between the floor and the lowest peak so far, halving that range: a first plan is cheap, and cuts are good
//! at tight budgets. Then come short searches, each from the lowest sequence so far and somewhat below its peak. A tiny
//! graph is searched in full instead.
//!
//! The result depends on the graph and the work alone: a refusal names the same smallest budget whatever was asked for.

use super::Search;
use super::anneal::Found;
use super::exact::{Exact, exact};
use super::model::Model;
use crate::Watch;

/// Halvings of the range between the floor and the lowest peak so far, without work to follow and with it.
const HALVINGS: (u32, u32) = (4, 7);
/// Searches after them, which share the work.
const ROUNDS: u32 = 3;
/// How far below the lowest peak so far the first of them aims, as a share of it; halved whenever one fails.
const STEP: f64 = 0.04;
/// A peak that is above the floor by at most one part in so many is low enough.
const NEAR: i64 = 1024;

/// See the module's documentation. Also says whether the watch said stop.
pub(super) fn lowest(model: &Model, floor: i64, work: u64, watch: &mut dyn Watch) -> (Found, bool) {
    if let Some(best) = exhaust(model, floor) {
        return (best, false);
    }
    let mut best = Found::of_order(model, &model.natural);
    let (mut too_low, mut step) = (floor, STEP);
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
        let mut search = Search::new(model, limit, share, watch);
        search.add(best.clone());
        search.start();
        search.anneal();
        let stopped = search.stopped;
        if search.best.peak > limit {
            match is_halving {
                true => too_low = limit,
                false => step /= 2.0,
            }
        }
        if search.best.peak < best.peak {
            best = search.best;
        }
        if stopped {
            return (best, true);
        }
    }
    (best, false)
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
            Exact::Fastest(order) => {
                best = Found::of_order(model, &order);
                debug_assert!(best.peak <= middle, "otherwise this would not end");
            }
            Exact::Impossible => too_low = middle,
            Exact::Unknown => break,
        }
    }
    Some(best)
}
