//! Where the search starts from.
//!
//! In: a model and a budget. Out: sequences of two kinds:
//! - the graph's own order under the budget with foresight, see [`first`](super::first);
//! - *cuts*: the graph's own order up to the moment of its peak, and from there on with the nodes run again that a
//!   [`Moment`] chooses at some price of a byte, each right before the first node that needs it. The price is
//!   found by bisection: the lowest at which the sequence meets the budget.

use super::anneal::Found;
use super::first::first;
use super::model::Model;
use super::moment::Moment;
use super::sequence::Sequence;

/// How much the distance to the next use counts, see [`first`](super::first).
const BENDS: [f64; 3] = [0.0, 0.5, 1.0];
/// Halvings of the range of prices.
const HALVINGS: u32 = 16;
/// Prices that are tried, in microseconds per byte, as shares of (time of the step / budget). At the lowest
/// nothing is worth running again, at the highest everything is.
const PRICES: (f64, f64) = (1e-3, 1.0);

/// Sequences to start from.
pub(crate) fn starts(model: &Model, budget: i64) -> Vec<Found> {
    let mut starts = Vec::new();
    for bend in BENDS {
        if let Some(order) = first(model, &model.natural, budget, bend) {
            starts.push(Found::of_order(model, &order));
        }
    }
    starts.extend(cut_starts(model, &model.natural, budget));
    starts
}

fn cut_starts(model: &Model, base: &[u32], budget: i64) -> Vec<Found> {
    let plain = Sequence::new(model, base);
    let Some(run) = plain.run_in(plain.peak_slot()) else {
        return Vec::new();
    };
    let node = plain.node_of(run) as u32;
    let position = 1 + base.iter().position(|&v| v == node).unwrap_or(0);
    let mut past = vec![false; model.time.len()];
    for &v in &base[..position] {
        past[v as usize] = true;
    }
    let mut needed = model.kept.clone();
    for &v in &base[position..] {
        for &s in model.reads.of(v as usize) {
            needed[s as usize] = true;
        }
    }
    let mut moment = Moment::new(model, &past, &needed, &vec![false; model.bytes.len()]);
    let unit = model.least_time() / budget.max(1) as f64;
    let (mut low, mut high) = PRICES;
    let mut starts = Vec::new();
    for _ in 0..HALVINGS {
        let price = (low * high).sqrt();
        moment.least(price * unit);
        let Some(order) = build(model, base, position, &moment.again()) else {
            return starts;
        };
        let found = Found::of_order(model, &order);
        match found.peak <= budget {
            true => high = price,
            false => low = price,
        }
        starts.push(found);
    }
    starts
}

/// `base` with the nodes of `again` run again behind `position`; nothing if one may not run there any more.
fn build(model: &Model, base: &[u32], position: usize, again: &[bool]) -> Option<Vec<u32>> {
    let mut order = base[..position].to_vec();
    let mut missing = again.to_vec();
    let mut done = vec![false; model.time.len()];
    let kept = |v: &&u32| {
        let mut writes = model.writes.of(**v as usize).iter();
        missing_output(&mut writes, model) && again[**v as usize]
    };
    // What must be live at the end and nobody asked for comes last.
    let at_end: Vec<u32> = base[..position].iter().filter(kept).copied().collect();
    for (i, &v) in base[position..].iter().chain(&at_end).enumerate() {
        if i >= base.len() - position && !missing[v as usize] {
            continue;
        }
        let mut work = vec![v];
        while let Some(&w) = work.last() {
            let mut writers = model
                .reads
                .of(w as usize)
                .iter()
                .map(|&s| model.writer[s as usize]);
            if let Some(first) = writers.find(|&w| missing[w as usize]) {
                work.push(first);
                continue;
            }
            if model
                .not_after
                .of(w as usize)
                .iter()
                .any(|&u| done[u as usize])
            {
                return None;
            }
            missing[w as usize] = false;
            done[w as usize] = true;
            order.push(w);
            work.pop();
        }
    }
    Some(order)
}

fn missing_output(writes: &mut std::slice::Iter<u32>, model: &Model) -> bool {
    writes.any(|&s| model.kept[s as usize])
}
