//! A lower bound on the time of any schedule under a budget, from several moments at once.
//!
//! In: a problem, a budget, how many moments. Out: microseconds, never more than the truth.
//!
//! Argument. Let `v_1, …, v_K` be nodes that every schedule runs, each leading to the next, and
//! `τ_t` the moment of the first run of `v_t`: the moments come in this order in every schedule.
//! Between `τ_t` and `τ_{t+1}` lies the interval `I_t`, the last one ends with the schedule. Let
//! `L_{t,s} = 1` if storage `s` is live at `τ_t`, and `x_{t,w} = 1` if node `w`, whose first run
//! was before `τ_t` because it leads to `v_t`, runs in `I_t`: a repeated run, and another one in
//! each interval. So
//!
//! ```text
//! time ≥ Σ time of needed nodes + Σ_{t,w} time_w · x_{t,w}
//! fits:    Σ_s bytes_s · L_{t,s} ≤ room_t, and so in whole units of a size
//! reads:   L_{t,s} + x_{t,w(s)} ≥ 1          a node between v_t and v_{t+1} reads s
//!          L_{t,s} + x_{t,w(s)} ≥ x_{t,u}    u reads s
//! keeps:   L_{t,s} + x_{t,w(s)} ≥ L_{t+1,s}
//! ever:    Σ_{t' ≥ t} x_{t',w} ≥ X_{t,w}
//!          L_{t,s} + X_{t,w(s)} ≥ 1          a node behind v_t reads s
//!          L_{t,s} + X_{t,w(s)} ≥ X_{t,u}    u reads s
//! ```
//!
//! for every `s` that is written by a node that leads to `v_t`; `X_{t,w} = 1` if `w` runs again at
//! any time behind `τ_t`. What `v_t` itself reads is live
//! then, and is left out of `room_t` as is all that is always live. Nothing is assumed of the order
//! beyond what the graph says, and storages may be made and freed at will.
//!
//! Method: the variables are relaxed to `0 ≤ x, L ≤ 1`. For *any* prices `y ≥ 0` of the rows the
//! sum `b·y + Σ_j min(0, c_j - (Aᵀy)_j)` is a valid bound, so good prices are enough: they are
//! found by the primal-dual gradient method of Chambolle and Pock with diagonal steps, and the best
//! bound met counts. The number of steps is fixed.
//!
//! Limits: bytes between two moments go uncounted, and so do most fractions: a plan that half keeps
//! a storage is better than any real one. Where storages have the same size, whole units of it say
//! that there is room for two of them and not for two and a half.

use crate::search::problem::Problem;

/// Nodes of all moments together, about, and how many moments there are at least.
const MOST_NODES: usize = 12_000;
const LEAST: usize = 4;
/// Entries of a program above which it gets fewer steps.
const MOST_ENTRIES: u64 = 100_000;
/// A moment counts where the graph's own order has more than one part in so many of the most bytes.
const NEAR: i64 = 4;
/// Steps between two looks at the bound.
const LOOK: u32 = 25;
/// Rooms are a bound on sums of floats: so much is taken off the bound, as a share of the time.
const ROUNDING: f64 = 1e-9;

/// The bound with about `count` moments, `at` among them, and `steps` steps, counted from the time
/// of every needed node once.
pub(crate) fn extra(
    problem: &Problem,
    budget: i64,
    at: Option<u32>,
    count: usize,
    steps: u32,
) -> f64 {
    let Some(at) = at else {
        return 0.0;
    };
    // A few moments with good prices are worth more than many with poor ones.
    let count = count.min(MOST_NODES / problem.natural.len()).max(LEAST);
    let program = Program::new(problem, budget, &spread(problem, at, count));
    let most = u64::from(steps) * MOST_ENTRIES / (program.entries.len() as u64 + 1);
    let found = program.solve(steps.min(most.min(u64::from(u32::MAX)) as u32));
    (found - ROUNDING * problem.least_time()).max(0.0)
}

/// A longest path from `v`, without `v`.
fn path_from(problem: &Problem, v: u32) -> Vec<u32> {
    let mut longest = vec![0u32; problem.time.len()];
    let mut next = vec![u32::MAX; problem.time.len()];
    for &w in problem.natural.iter().rev() {
        longest[w as usize] += 1;
        for &s in problem.reads.of(w as usize) {
            let from = problem.writer[s as usize] as usize;
            if longest[w as usize] > longest[from] {
                longest[from] = longest[w as usize];
                next[from] = w;
            }
        }
    }
    let step = |&v: &u32| Some(next[v as usize]).filter(|&n| n != u32::MAX);
    std::iter::successors(step(&v), step).collect()
}

/// A longest path to `v`, without `v` and without the inputs.
fn path_to(problem: &Problem, v: u32) -> Vec<u32> {
    let mut longest = vec![0u32; problem.time.len()];
    let mut last = vec![problem.source as u32; problem.time.len()];
    for &w in problem.natural.iter().skip(1) {
        for &s in problem.reads.of(w as usize) {
            let from = problem.writer[s as usize];
            if longest[from as usize] + 1 > longest[w as usize] {
                longest[w as usize] = longest[from as usize] + 1;
                last[w as usize] = from;
            }
        }
    }
    let step = |&v: &u32| Some(last[v as usize]).filter(|&w| w as usize != problem.source);
    let mut path: Vec<u32> = std::iter::successors(step(&v), step).collect();
    path.reverse();
    path
}

/// About `count` nodes of a path through `at`: from each stretch of it that with the most bytes in
/// the graph's own order.
fn spread(problem: &Problem, at: u32, count: usize) -> Vec<u32> {
    let during = problem.bytes_during(&problem.natural);
    let mut bytes = vec![0; problem.time.len()];
    for (&v, during) in problem.natural.iter().zip(during) {
        bytes[v as usize] = during;
    }
    let high = bytes[at as usize];
    let pick = |path: Vec<u32>, count: usize| -> Vec<u32> {
        // Only where bytes are an issue at all.
        let near: Vec<u32> =
            path.into_iter().filter(|&v| bytes[v as usize] > high / NEAR).collect();
        let stretches = count.min(near.len());
        let stretch = |k: usize| {
            let stretch = k * near.len() / stretches..(k + 1) * near.len() / stretches;
            near[stretch].iter().copied().max_by_key(|&v| bytes[v as usize])
        };
        (0..stretches).filter_map(stretch).collect()
    };
    let before = pick(path_to(problem, at), count / 4);
    let behind = pick(path_from(problem, at), count - count / 4);
    [before, vec![at], behind].concat()
}

/// The sizes that most of the bytes have, among those that say something of so much room.
fn units(sizes: &[(u32, i64)], room: i64) -> Vec<i64> {
    let mut all: Vec<i64> = sizes.iter().map(|&(_, bytes)| bytes).collect();
    all.sort_unstable();
    let mut sums: Vec<(i64, i64)> = Vec::new();
    for group in all.chunk_by(|a, b| a == b) {
        let unit = group[0];
        let (whole, rest) = (room / unit, room % unit);
        if room > 0 && whole < MOST_WHOLE && rest * ROUNDS_OFF >= unit && rest * 16 <= unit * 15 {
            sums.push((-unit * group.len() as i64, unit));
        }
    }
    sums.sort_unstable();
    sums.iter().take(UNITS).map(|&(_, unit)| unit).collect()
}

/// Sizes in whose units a room is given too, how often each fits there at most, and the least part
/// of a unit that is to be rounded off.
const UNITS: usize = 3;
const MOST_WHOLE: i64 = 16;
const ROUNDS_OFF: i64 = 20;

/// A row `Σ entries ≥ right`.
struct Program {
    /// Cost of each variable.
    cost: Vec<f64>,
    /// Where the entries of each row start, and the end of all.
    start: Vec<u32>,
    entries: Vec<(u32, f64)>,
    right: Vec<f64>,
}

/// A variable that is always 1, and one that is always 0.
const ONE: u32 = u32::MAX;
const ZERO: u32 = u32::MAX - 1;

/// The variables of one moment.
struct Moment {
    /// Indexed by storage.
    live: Vec<u32>,
    /// Indexed by node.
    again: Vec<u32>,
    /// The nodes that lead to it, and those that it leads to.
    before: Vec<bool>,
    behind: Vec<bool>,
}

impl Program {
    fn new(problem: &Problem, budget: i64, nodes: &[u32]) -> Program {
        let mut program =
            Program { cost: Vec::new(), start: vec![0], entries: Vec::new(), right: Vec::new() };
        let moments: Vec<Moment> =
            nodes.iter().map(|&v| program.add_moment(problem, v as usize)).collect();
        for (t, moment) in moments.iter().enumerate() {
            program.add_room(problem, budget, nodes[t] as usize, moment);
            program.add_reads(problem, &moments, nodes, t);
            program.add_again(problem, moment);
            program.add_ever(problem, &moments[t..]);
            if let Some(next) = moments.get(t + 1) {
                program.add_keeps(problem, moment, next);
            }
        }
        program
    }

    fn variable(&mut self, cost: f64) -> u32 {
        self.cost.push(cost);
        self.cost.len() as u32 - 1
    }

    /// Adds a row; one that always holds is left out.
    fn row(&mut self, plus: &[u32], minus: u32, mut right: f64) {
        if plus.contains(&ONE) {
            return;
        }
        let begin = self.entries.len();
        match minus {
            ONE => right += 1.0,
            ZERO => {}
            minus => self.entries.push((minus, -1.0)),
        }
        self.entries.extend(plus.iter().filter(|&&v| v != ZERO).map(|&v| (v, 1.0)));
        if right <= 0.0 && minus == ZERO {
            self.entries.truncate(begin);
            return;
        }
        self.right.push(right);
        self.start.push(self.entries.len() as u32);
    }

    fn add_moment(&mut self, problem: &Problem, v: usize) -> Moment {
        let before = problem.ancestors(v);
        let behind = problem.descendants(v);
        let mut live = vec![ZERO; problem.bytes.len()];
        let mut again = vec![ZERO; problem.time.len()];
        for &s in problem.reads.of(v).iter().chain(problem.writes.of(v)) {
            live[s as usize] = ONE;
        }
        let mut needed = problem.kept.clone();
        for &w in problem.natural.iter().filter(|&&w| behind[w as usize]) {
            for &s in problem.reads.of(w as usize) {
                needed[s as usize] = true;
            }
        }
        let is_past = |s: usize| before[problem.writer[s] as usize];
        let mut stack: Vec<usize> = (0..live.len()).filter(|&s| needed[s] && is_past(s)).collect();
        while let Some(s) = stack.pop() {
            if live[s] != ZERO {
                continue;
            }
            live[s] = self.variable(0.0);
            let w = problem.writer[s] as usize;
            if again[w] == ZERO && problem.rerun[w] {
                again[w] = self.variable(problem.time[w]);
                stack.extend(problem.reads.of(w).iter().map(|&r| r as usize));
            }
        }
        Moment { live, again, before, behind }
    }

    fn add_room(&mut self, problem: &Problem, budget: i64, v: usize, moment: &Moment) {
        let touched = problem.reads.of(v).iter().chain(problem.writes.of(v));
        let touched: i64 = touched.map(|&s| problem.bytes[s as usize]).sum();
        let room = budget - problem.base - problem.workspace[v] - touched;
        let scale = 1.0 / (room.max(1) as f64);
        for (&variable, &bytes) in moment.live.iter().zip(&problem.bytes) {
            if variable < ZERO && bytes > 0 {
                self.entries.push((variable, -(bytes as f64) * scale));
            }
        }
        self.right.push(-(room as f64) * scale);
        self.start.push(self.entries.len() as u32);
        self.add_rounded(problem, room, moment);
    }

    /// The same in whole units of a few sizes: what is live is whole storages, so mixed-integer
    /// rounding of the row above holds too. With `room = q · d + r` a storage of `k · d + e` bytes
    /// counts `k + max(0, e - r) / (d - r)`, and all together at most `q`.
    fn add_rounded(&mut self, problem: &Problem, room: i64, moment: &Moment) {
        let live = moment.live.iter().zip(&problem.bytes);
        let sizes: Vec<(u32, i64)> =
            live.filter(|&(&v, &b)| v < ZERO && b > 0).map(|(&v, &b)| (v, b)).collect();
        for unit in units(&sizes, room) {
            let (whole, rest) = (room / unit, room % unit);
            let count = |bytes: i64| {
                let above = (bytes % unit - rest).max(0);
                (bytes / unit) as f64 + above as f64 / (unit - rest) as f64
            };
            let counts = || sizes.iter().map(|&(v, b)| (v, count(b))).filter(|&(_, c)| c > 0.0);
            if counts().map(|(_, c)| c).sum::<f64>() <= whole as f64 {
                continue;
            }
            let scale = 1.0 / (whole.max(1) as f64);
            self.entries.extend(counts().map(|(v, c)| (v, -c * scale)));
            self.right.push(-(whole as f64) * scale);
            self.start.push(self.entries.len() as u32);
        }
    }

    /// What the nodes read whose first run is between this moment and the next.
    fn add_reads(&mut self, problem: &Problem, moments: &[Moment], nodes: &[u32], t: usize) {
        let moment = &moments[t];
        let is_last = t + 1 == moments.len();
        let mut read: Vec<bool> = problem.kept.iter().map(|&kept| kept && is_last).collect();
        for &u in problem.natural.iter().filter(|&&u| moment.behind[u as usize]) {
            let next = moments.get(t + 1);
            if next.is_none_or(|next| next.before[u as usize] || nodes[t + 1] == u) {
                problem.reads.of(u as usize).iter().for_each(|&s| read[s as usize] = true);
            }
        }
        for s in (0..problem.bytes.len()).filter(|&s| read[s] && moment.live[s] != ZERO) {
            let writer = problem.writer[s] as usize;
            if moment.before[writer] {
                self.row(&[moment.live[s], moment.again[writer]], ZERO, 1.0);
            }
        }
    }

    /// What repeated runs read.
    fn add_again(&mut self, problem: &Problem, moment: &Moment) {
        for &u in &problem.natural {
            let again = moment.again[u as usize];
            if again == ZERO {
                continue;
            }
            for &s in problem.reads.of(u as usize) {
                let w = problem.writer[s as usize] as usize;
                self.row(&[moment.live[s as usize], moment.again[w]], again, 0.0);
            }
        }
    }

    /// What runs again at any time behind the first of the given moments: the rows of that moment
    /// alone.
    fn add_ever(&mut self, problem: &Problem, moments: &[Moment]) {
        let moment = &moments[0];
        let mut ever = vec![ZERO; problem.time.len()];
        for &w in &problem.natural {
            if moment.again[w as usize] != ZERO {
                ever[w as usize] = self.variable(0.0);
                let runs: Vec<u32> = moments.iter().map(|m| m.again[w as usize]).collect();
                self.row(&runs, ever[w as usize], 0.0);
            }
        }
        let mut needed = problem.kept.clone();
        for &u in &problem.natural {
            let (u, reads) = (u as usize, problem.reads.of(u as usize));
            for &s in reads.iter().filter(|_| moment.behind[u]) {
                needed[s as usize] = true;
            }
            for &s in reads.iter().filter(|_| ever[u] != ZERO) {
                let writer = problem.writer[s as usize] as usize;
                self.row(&[moment.live[s as usize], ever[writer]], ever[u], 0.0);
            }
        }
        for s in (0..problem.bytes.len()).filter(|&s| needed[s] && moment.live[s] != ZERO) {
            let writer = problem.writer[s] as usize;
            if moment.before[writer] {
                self.row(&[moment.live[s], ever[writer]], ZERO, 1.0);
            }
        }
    }

    /// What is live at the next moment.
    fn add_keeps(&mut self, problem: &Problem, moment: &Moment, next: &Moment) {
        for s in 0..problem.bytes.len() {
            let w = problem.writer[s] as usize;
            if moment.before[w] && moment.live[s] != ZERO && next.live[s] != ZERO {
                self.row(&[moment.live[s], moment.again[w]], next.live[s], 0.0);
            }
        }
    }

    /// The best bound that so many steps meet.
    fn solve(&self, steps: u32) -> f64 {
        let (columns, rows) = (self.cost.len(), self.right.len());
        let scale = self.cost.iter().copied().fold(0.0, f64::max).max(1e-12);
        let cost: Vec<f64> = self.cost.iter().map(|c| c / scale).collect();
        let mut column_sum = vec![0.0f64; columns];
        let mut row_sum = vec![0.0f64; rows];
        for (r, sum) in row_sum.iter_mut().enumerate() {
            for &(j, a) in self.of(r) {
                *sum += a.abs();
                column_sum[j as usize] += a.abs();
            }
        }
        let mut x = vec![0.0f64; columns];
        let mut y = vec![0.0f64; rows];
        let (mut x_mean, mut y_mean) = (x.clone(), y.clone());
        let mut pulled = vec![0.0f64; columns];
        let (mut best, mut since) = (0.0f64, 0.0f64);
        for step in 0..steps {
            // x ← clip(x - τ (c - Aᵀy)), and the point beyond it.
            let mut beyond = x.clone();
            for j in 0..columns {
                let pace = BALANCE / column_sum[j].max(1e-9);
                let moved = (x[j] - pace * (cost[j] - pulled[j])).clamp(0.0, 1.0);
                beyond[j] = 2.0 * moved - x[j];
                x[j] = moved;
            }
            pulled.fill(0.0);
            for r in 0..rows {
                let entries = self.of(r);
                let sum: f64 = entries.iter().map(|&(j, a)| a * beyond[j as usize]).sum();
                let pace = 1.0 / (BALANCE * row_sum[r].max(1e-9));
                y[r] = (y[r] + pace * (self.right[r] - sum)).max(0.0);
                for &(j, a) in entries {
                    pulled[j as usize] += a * y[r];
                }
            }
            since += 1.0;
            for (mean, &x) in x_mean.iter_mut().zip(&x) {
                *mean += (x - *mean) / since;
            }
            for (mean, &y) in y_mean.iter_mut().zip(&y) {
                *mean += (y - *mean) / since;
            }
            if (step + 1) % LOOK == 0 {
                let now = self.bound(&y, &cost);
                let mean = self.bound(&y_mean, &cost);
                best = best.max(now).max(mean);
                // The mean converges faster, if it begins anew now and then.
                if since >= RESTART && mean > now {
                    x.clone_from(&x_mean);
                    y.clone_from(&y_mean);
                    self.pull(&y, &mut pulled);
                    since = 0.0;
                }
            }
        }
        best * scale
    }

    fn of(&self, row: usize) -> &[(u32, f64)] {
        &self.entries[self.start[row] as usize..self.start[row + 1] as usize]
    }

    fn pull(&self, y: &[f64], pulled: &mut [f64]) {
        pulled.fill(0.0);
        for (r, &y) in y.iter().enumerate() {
            for &(j, a) in self.of(r) {
                pulled[j as usize] += a * y;
            }
        }
    }

    /// The bound that the prices `y` give.
    fn bound(&self, y: &[f64], cost: &[f64]) -> f64 {
        let mut pulled = vec![0.0; cost.len()];
        self.pull(y, &mut pulled);
        let fixed: f64 = self.right.iter().zip(y).map(|(b, y)| b * y).sum();
        let free = cost.iter().zip(&pulled).map(|(c, p)| (c - p).min(0.0));
        fixed + free.sum::<f64>()
    }
}

/// How far the variables move in a step, beside how far the prices do.
const BALANCE: f64 = 3.0;
/// Steps after which the mean may be the new beginning.
const RESTART: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound;
    use crate::draft::needed_nodes;
    use crate::search::exact::{Exact, exact};
    use crate::search::random::Random;
    use crate::testing::{chain, random};
    use rekindle_graph::{Bytes, Graph, Micros};

    /// The extra time by one moment, by several, and in truth, at each budget that is below the
    /// plain peak and can be met.
    fn extras(graph: &Graph) -> Vec<(f64, f64, f64)> {
        let problem = Problem::new(graph, &needed_nodes(graph));
        let plain = problem.bytes_during(&problem.natural).into_iter().max().unwrap_or(0);
        let least = problem.least_time();
        let mut extras = Vec::new();
        for budget in (1..plain).rev() {
            let Exact::Fastest(order) = exact(&problem, budget) else {
                break;
            };
            let time: f64 = order.iter().map(|&v| problem.time[v as usize]).sum();
            let single = bound::time_bound(&problem, budget, 1_000_000);
            let several = extra(&problem, budget, single.at, 8, 400);
            extras.push((single.time - least, several, time - least));
        }
        extras
    }

    /// A chain whose sizes and times differ.
    fn uneven_chain(seed: u64) -> Graph {
        let mut dice = Random::new(seed);
        let mut parts = chain(5).into_parts();
        for storage in &mut parts.storages {
            storage.bytes = Bytes(1 + dice.below(12) as u64);
        }
        for node in parts.nodes.iter_mut().skip(1) {
            node.time = Micros(1.0 + dice.below(9) as f64);
        }
        Graph::new(parts).expect("a graph")
    }

    #[test]
    fn no_schedule_of_a_tiny_graph_is_faster() {
        let mut above_zero = 0;
        for seed in 0..30 {
            for graph in [random(9, seed), uneven_chain(seed)] {
                for (single, several, truth) in extras(&graph) {
                    assert!(single <= truth + 1e-9 && several <= truth + 1e-9, "seed {seed}");
                    above_zero += i32::from(several > 0.01);
                }
            }
        }
        assert!(above_zero > 100, "only {above_zero} bounds say anything");
    }

    /// A backward node of a chain leaves room for nine tenths of an activation at 40 bytes: none is
    /// kept, and each of them is made from the input, which halves of them would not have shown.
    #[test]
    fn whole_units_show_that_no_activation_is_kept() {
        let graph = chain(7);
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        let Exact::Fastest(order) = exact(&problem, 40) else {
            panic!("40 bytes are enough");
        };
        let time: f64 = order.iter().map(|&v| problem.time[v as usize]).sum();
        let truth = time - problem.least_time();
        let at = bound::time_bound(&problem, 40, 1_000_000).at;
        let found = extra(&problem, 40, at, 16, 4000);
        assert!(truth > 12.0 && found <= truth && found > 0.8 * truth, "{found} of {truth}");
    }

    /// In a chain at its smallest budgets nodes run more than twice, which one moment cannot see.
    #[test]
    fn several_moments_see_more_than_one() {
        let extras = extras(&chain(7));
        assert!(extras.iter().all(|&(_, several, truth)| several <= truth + 1e-9));
        assert!(extras.iter().any(|&(single, several, _)| several > single + 0.5));
    }
}
