//! Cuts: where the search starts from, beside [`first`](super::first).
//!
//! In: a problem and a budget. Out: sequences, each made with other prices.
//!
//! Method: at the run where an order has its peak, a [`Crossing`] chooses what is kept across that
//! run and what runs again behind it, each right before the first run that needs it. The price of a
//! byte is found by bisection: the lowest at which the run fits. The new order may have another
//! peak; it is cut again, until all is under the budget. What is recomputed after one cut may so be
//! recomputed again after another.

use super::anneal::{Found, highest_run};
use super::crossing::Crossing;
use super::problem::Problem;
use super::random::Random;

/// Halvings of the range of prices.
const HALVINGS: u32 = 14;
/// How many times the price of a cut is above or below that of the cut before it, mostly; and
/// halvings of that range.
const APART: f64 = 4.0;
const NEAR_HALVINGS: u32 = 6;
/// Prices that are tried, in microseconds per byte, as shares of (time of the step / budget). At
/// the lowest nothing is worth running again, at the highest everything is.
const PRICES: (f64, f64) = (1e-4, 1e3);
/// By how much the price of a byte differs between storages, at most. Without a difference, many
/// storages have the same price and are dropped at once.
const SPREADS: [f64; 7] = [0.05, 0.0, 0.2, 0.5, 0.1, 0.3, 1.0];
/// How far under the budget a cut aims, as shares of the budget, in turn. Aiming lower leaves room
/// for what runs again nearby.
const MARGINS: [f64; 7] = [0.0, 0.03, 0.0, 0.01, 0.0, 0.08, 0.0];
/// The same for quick cuts, of which fewer are needed so.
const QUICK_MARGIN: f64 = 0.05;
/// Cuts, one after the other. Tight budgets need a few dozen.
const MOST_CUTS: u32 = 48;
/// Cuts without a lower peak after which no more are tried.
const MOST_IDLE: u32 = 6;
/// How often one cut is made anew because what was to run again turned out not to fit.
const MOST_BLAMES: u32 = 8;
/// Runs per node after which no cut is tried any more.
const MOST_RUNS: usize = 4;
/// Arcs that one cut may look at: thirty times what the corpus needs, and some tenths of a second.
const CUT_ARCS: u64 = 64_000_000;
/// The share of the storages whose price is drawn again when the best prices so far are varied.
const VARIED: f64 = 0.05;

/// What a sequence is made with.
#[derive(Clone, Debug)]
struct Knobs {
    /// By how much the price of a byte of each storage is above the lowest.
    weights: Vec<f64>,
    /// How far under the budget cuts aim, as a share of it.
    margin: f64,
}

/// See the module's documentation.
pub(crate) struct Cutter<'m> {
    problem: &'m Problem,
    budget: i64,
    random: Random,
    /// The best sequence so far, and what it was made with.
    best: Option<(Found, Knobs)>,
    round: usize,
    /// Arcs looked at so far.
    pub(crate) work: u64,
    /// Arcs after which a sequence is given up.
    most_work: u64,
    /// Whether the first sequence under the budget is all that is wanted: then a cut aims somewhat
    /// lower, and looks for its price near that of the one before it.
    is_quick: bool,
    /// The price of the last cut, if so.
    near: Option<f64>,
}

impl<'m> Cutter<'m> {
    pub(crate) fn new(
        problem: &'m Problem,
        budget: i64,
        most_work: u64,
        is_quick: bool,
    ) -> Cutter<'m> {
        Cutter {
            problem,
            budget,
            random: Random::new(0),
            best: None,
            round: 0,
            work: 0,
            most_work,
            is_quick,
            near: None,
        }
    }

    /// The next sequence: with each of the spreads, then with variations of the best prices.
    /// `polish` may improve it before it is compared. Nothing if no cut is possible, or `stop` says
    /// stop of the arcs looked at since it was asked.
    pub(crate) fn next(
        &mut self,
        polish: &mut dyn FnMut(Found) -> Found,
        stop: &dyn Fn(u64) -> bool,
    ) -> Option<Found> {
        let knobs = self.turn_knobs();
        let found = polish(self.cuts(&knobs, stop)?);
        let better = |(best, _): &(Found, Knobs)| found.beats(best, self.budget);
        if self.best.as_ref().is_none_or(better) {
            self.best = Some((found.clone(), knobs));
        }
        Some(found)
    }

    fn turn_knobs(&mut self) -> Knobs {
        let spread = SPREADS[self.round % SPREADS.len()];
        let margin = match self.is_quick {
            true => QUICK_MARGIN,
            false => MARGINS[self.round % MARGINS.len()],
        };
        self.round += 1;
        let random = &mut self.random;
        match &self.best {
            Some((_, best)) if self.round > SPREADS.len() => {
                let spread = spread.max(SPREADS[0]);
                let vary = |&w: &f64| match random.chance(VARIED) {
                    true => 1.0 + spread * random.unit(),
                    false => w,
                };
                let weights = best.weights.iter().map(vary).collect();
                // Half of the time without a margin: what a tight cut needs may cost elsewhere.
                let margin = if random.chance(0.5) { best.margin } else { 0.0 };
                Knobs { weights, margin }
            }
            _ => Knobs {
                weights: (0..self.problem.bytes.len())
                    .map(|_| 1.0 + spread * random.unit())
                    .collect(),
                margin,
            },
        }
    }

    /// The natural order after repeated cuts at its own peak, until it is under the budget or cuts
    /// do not help; nothing if the first one does not.
    fn cuts(&mut self, knobs: &Knobs, stop: &dyn Fn(u64) -> bool) -> Option<Found> {
        let base = &self.problem.natural;
        let before = self.work;
        let mut now = Found::of_order(self.problem, base);
        let aim = self.budget - (knobs.margin * self.budget as f64) as i64;
        let mut lowest: Option<Found> = None;
        let mut idle = 0;
        for _ in 0..MOST_CUTS {
            if now.peak <= self.budget
                || now.order.len() > MOST_RUNS * base.len()
                || idle > MOST_IDLE
                || self.work > before + self.most_work
                || stop(0)
            {
                break;
            }
            let Some(next) = self.cut(&now, aim, &knobs.weights, stop) else {
                break;
            };
            if next.order == now.order {
                break;
            }
            now = next;
            idle += 1;
            if lowest.as_ref().is_none_or(|l| now.beats(l, self.budget)) {
                lowest = Some(now.clone());
                idle = 0;
            }
        }
        lowest
    }

    /// A sequence with the bytes at its peak brought down to `aim`. What is to run again may itself
    /// need more bytes than the peak was, or not be allowed where it is needed; then it is kept,
    /// and the choice is made anew.
    fn cut(
        &mut self,
        now: &Found,
        aim: i64,
        weights: &[f64],
        stop: &dyn Fn(u64) -> bool,
    ) -> Option<Found> {
        let problem = self.problem;
        let order = &now.order;
        let position = highest_run(problem, order);
        let node = order[position] as usize;
        let mut past = vec![false; problem.time.len()];
        for &v in &order[..position] {
            past[v as usize] = true;
        }
        let mut free = vec![false; problem.bytes.len()];
        let mut room = aim - problem.base - problem.workspace[node];
        for &s in problem.reads.of(node).iter().chain(problem.writes.of(node)) {
            free[s as usize] = true;
            room -= problem.bytes[s as usize];
        }
        let needed = crossing(problem, order, position);
        let mut moment = Crossing::new(problem, &past, &needed, &free, CUT_ARCS);
        moment.weigh(weights);
        let mut low = PRICES.0;
        let mut found: Option<Found> = None;
        for _ in 0..MOST_BLAMES {
            let Some((price, again)) = self.cheapest(&mut moment, room, low, stop) else {
                break;
            };
            low = price;
            match build(problem, order, position, &again) {
                Ok(built) => {
                    let next = Found::of_order(problem, &built.order);
                    let rises = next.peak >= now.peak;
                    let blamed = rises.then(|| built.blamed(problem)).flatten();
                    if found.as_ref().is_none_or(|f| next.beats(f, self.budget)) {
                        found = Some(next);
                    }
                    let Some(blamed) = blamed else {
                        break;
                    };
                    moment.forbid(blamed);
                }
                Err(forbidden) => moment.forbid(forbidden),
            }
        }
        self.work += moment.work();
        found
    }

    /// The lowest price, at least `low`, at which what is kept fits into `room`, and what runs
    /// again then. Below that price, by at most one halving.
    fn cheapest(
        &mut self,
        moment: &mut Crossing,
        room: i64,
        low: f64,
        stop: &dyn Fn(u64) -> bool,
    ) -> Option<(f64, Vec<bool>)> {
        let unit = self.problem.least_time() / self.budget.max(1) as f64;
        let all = (low, PRICES.1);
        let found = match self.near {
            Some(near) => {
                let near = (low.max(near / APART), low.max(near) * APART);
                bisect(moment, room, unit, near, NEAR_HALVINGS, stop)
                    .or_else(|| bisect(moment, room, unit, all, HALVINGS, stop))
            }
            None => bisect(moment, room, unit, all, HALVINGS, stop),
        };
        if self.is_quick {
            self.near = found.as_ref().map(|&(price, _)| price);
        }
        found
    }
}

/// The lowest price in a range at which what is kept fits into `room`, to within the last of some
/// halvings, less that, and what runs again then; nothing if the highest is too low.
fn bisect(
    moment: &mut Crossing,
    room: i64,
    unit: f64,
    (mut low, mut high): (f64, f64),
    halvings: u32,
    stop: &dyn Fn(u64) -> bool,
) -> Option<(f64, Vec<bool>)> {
    let mut again = None;
    for step in 0..halvings {
        let price = match step {
            0 => high,
            _ => (low * high).sqrt(),
        };
        moment.least(price * unit, stop);
        match moment.is_solved() && moment.kept() <= room as f64 {
            true => {
                again = Some(moment.again());
                high = price;
            }
            false if step == 0 || moment.is_exhausted() || stop(0) => break,
            false => {
                low = price;
                moment.keep();
            }
        }
    }
    Some((low, again?))
}

/// The storages that a run behind `position` reads as a run before it wrote them.
fn crossing(problem: &Problem, order: &[u32], position: usize) -> Vec<bool> {
    let mut needed = problem.kept.clone();
    for &v in order[position + 1..].iter().rev() {
        for &s in problem.writes.of(v as usize) {
            needed[s as usize] = false;
        }
        for &s in problem.reads.of(v as usize) {
            needed[s as usize] = true;
        }
    }
    needed
}

/// A sequence, and for each run the node because of which it was put in, if it was.
pub(crate) struct Built {
    pub(crate) order: Vec<u32>,
    because: Vec<Option<u32>>,
}

impl Built {
    /// The node because of which the run at the peak was put in.
    fn blamed(&self, problem: &Problem) -> Option<u32> {
        self.because[highest_run(problem, &self.order)]
    }
}

/// `order` with the nodes of `again` run again behind `position`, each right before the first run
/// that needs it; or a node that may not run there any more.
fn build(problem: &Problem, order: &[u32], position: usize, again: &[bool]) -> Result<Built, u32> {
    let mut built = order[..=position].to_vec();
    let mut because = vec![None; built.len()];
    let mut missing = again.to_vec();
    let mut done = vec![false; problem.time.len()];
    for &v in &order[..=position] {
        done[v as usize] = true;
    }
    let is_output = |v: &u32| {
        let mut writes = problem.writes.of(*v as usize).iter();
        again[*v as usize] && writes.any(|&s| problem.kept[s as usize])
    };
    // What must be live at the end and nobody asked for comes last.
    let mut at_end: Vec<u32> = order[..position].to_vec();
    at_end.retain(is_output);
    let tail = order.len() - position - 1;
    for (i, &v) in order[position + 1..].iter().chain(&at_end).enumerate() {
        let is_new = i >= tail;
        if is_new && !missing[v as usize] {
            continue;
        }
        let mut work = vec![v];
        while let Some(&w) = work.last() {
            let reads = problem.reads.of(w as usize).iter();
            let mut writers = reads.map(|&s| problem.writer[s as usize]);
            if let Some(first) = writers.find(|&w| missing[w as usize]) {
                work.push(first);
                continue;
            }
            let over = |&u: &u32| done[u as usize];
            if problem.not_after.of(w as usize).iter().any(over) {
                return Err(w);
            }
            missing[w as usize] = false;
            done[w as usize] = true;
            built.push(w);
            because.push(work.get(if is_new { 0 } else { 1 }).copied());
            work.pop();
        }
    }
    Ok(without_useless(problem, &built, &because))
}

/// The same without the runs that nobody reads from and that are not the only one of their node.
pub(crate) fn without_useless(problem: &Problem, order: &[u32], because: &[Option<u32>]) -> Built {
    let mut runs = vec![0u32; problem.time.len()];
    for &v in order {
        runs[v as usize] += 1;
    }
    let mut needed = problem.kept.clone();
    let mut kept: Vec<usize> = Vec::with_capacity(order.len());
    for (i, &v) in order.iter().enumerate().rev() {
        let writes = problem.writes.of(v as usize);
        if runs[v as usize] > 1 && !writes.iter().any(|&s| needed[s as usize]) {
            runs[v as usize] -= 1;
            continue;
        }
        for &s in writes {
            needed[s as usize] = false;
        }
        for &s in problem.reads.of(v as usize) {
            needed[s as usize] = true;
        }
        kept.push(i);
    }
    kept.reverse();
    Built {
        order: kept.iter().map(|&i| order[i]).collect(),
        because: kept.iter().map(|&i| because[i]).collect(),
    }
}

#[cfg(test)]
mod tests {
    use rekindle_graph::{Bytes, Effect, Graph, GraphParts, Micros, Phase, StorageId};

    use super::*;
    use crate::draft::needed_nodes;
    use crate::testing::{names, node, parts};

    /// `a` makes 10 bytes from the parameter of 1 byte in 1 µs, `b` makes 10 in 5 µs; `c` makes 10
    /// from both, and `p` 10 from that; `e` reads what `a`, `b` and `p` made, and makes 1. The peak
    /// is at `p`: 1 + 4 · 10. For 32 bytes either `a` or `b` has to run again before `e`, which
    /// then needs 1 + 3 · 10 + 1; `a` is the cheaper one.
    fn two_to_choose_from() -> GraphParts {
        let nodes = vec![
            node("a", Phase::Forward, &[0], &[1]),
            node("b", Phase::Forward, &[], &[2]),
            node("c", Phase::Forward, &[1, 2], &[3]),
            node("p", Phase::Forward, &[3], &[4]),
            node("e", Phase::Forward, &[1, 2, 4], &[5]),
        ];
        let mut parts = parts(&[10, 10, 10, 10, 1], nodes);
        parts.nodes[2].time = Micros(5.0);
        parts
    }

    /// The names of the runs after one cut at 32 bytes, and the peak.
    fn cut_at_32(parts: GraphParts) -> (String, i64) {
        let graph = Graph::new(parts).expect("a graph");
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        let natural = Found::of_order(&problem, &problem.natural);
        assert_eq!(natural.peak, 41);
        let weights = vec![1.0; problem.bytes.len()];
        let mut cutter = Cutter::new(&problem, 32, 1000, false);
        let found = cutter.cut(&natural, 32, &weights, &|_| false).expect("a cut");
        (names(&graph, &found.order), found.peak)
    }

    #[test]
    fn the_cheaper_node_runs_again() {
        let expected = ("a b c p a e".to_string(), 32);
        assert_eq!(cut_at_32(two_to_choose_from()), expected);
    }

    /// With 15 bytes of scratch `a` needs 26 at the start. Behind `p` it needs 1 + 3 · 10 + 15,
    /// which is more than the peak was: it is blamed and kept, and `b` runs again.
    #[test]
    fn what_would_raise_the_peak_is_kept() {
        let mut parts = two_to_choose_from();
        parts.nodes[1].workspace = Bytes(15);
        assert_eq!(cut_at_32(parts), ("a b c p b e".to_string(), 32));
    }

    /// The parameter is updated behind `p`: from then on `a` may not run, and `b` runs again.
    #[test]
    fn what_may_not_run_any_more_is_kept() {
        let mut parts = two_to_choose_from();
        let mut update = node("u", Phase::Optimizer, &[0], &[]);
        update.updates = vec![StorageId(0)];
        update.effect = Effect::Once;
        parts.nodes.insert(5, update);
        assert_eq!(cut_at_32(parts), ("a b c p u b e".to_string(), 32));
    }
}
