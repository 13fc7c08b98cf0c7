//! The forward pass as a chain of stages, with what each can save for its backward pass.
//!
//! In: a problem with a backward pass, a number of stages. Out: a [`Chain`]: the forward nodes in
//! stages `0..L`, the later nodes by the stage whose activations they read, and for each stage a
//! few [`Saving`]s: what is kept until its backward pass, the rest being made again then.
//!
//! Method. A *boundary* stands where few bytes cross, counted over what the forward pass alone
//! reads later: `C_q`, the storages written before stage `q` and read in it or behind it. Whoever
//! has `C_q` can run stage `q`. Since each storage crosses from its writer to its last reader,
//! `C_k` without `C_i` is what was written from `i` on: bytes of nested sets add up. A node of the
//! backward pass belongs to the last stage whose boundaries or inside have all that it reads, and
//! never to a later one than the node before it. The savings of a stage are minimum cuts
//! ([`Crossing`]) at several prices of a byte, with both boundaries for free.
//!
//! Limits: what may not run again, and what must be live at the end, belongs to no stage and counts
//! as live for as long as in the graph's own order.

use super::crossing::Crossing;
use super::problem::Problem;

/// A storage of no stage.
pub(crate) const NO_STAGE: u32 = u32::MAX;
/// Prices of a byte at which stages are cut, as shares of (time of the step / budget).
const PRICES: [f64; 8] = [0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 4.0, 1000.0];
/// Arcs that the cuts of one stage may look at.
const STAGE_ARCS: u64 = 2_000_000;

/// What a stage keeps for its backward pass.
#[derive(Clone, Debug)]
pub(crate) struct Saving {
    /// Storages of the stage that are kept, beside those that cross its end.
    pub(crate) kept: Vec<u32>,
    pub(crate) bytes: i64,
    /// Time of what runs again in the backward pass.
    pub(crate) time: f64,
    /// Bytes in the forward pass of the stage, without what crosses its beginning.
    pub(crate) forward_peak: i64,
    /// Bytes in its backward pass, likewise, with all that is not of the forward pass.
    pub(crate) backward_peak: i64,
    /// Bytes in both, right behind each other, with what crosses its beginning and is needed.
    pub(crate) alone_peak: i64,
}

/// See the module's documentation.
pub(crate) struct Chain {
    /// The forward nodes of each stage.
    pub(crate) forward: Vec<Vec<u32>>,
    /// The later nodes that belong to each stage.
    pub(crate) backward: Vec<Vec<u32>>,
    /// The stage that writes each storage, or [`NO_STAGE`].
    pub(crate) home: Vec<u32>,
    /// The last stage whose forward pass reads each storage of a stage.
    pub(crate) last: Vec<u32>,
    /// Storages of each stage.
    pub(crate) made: Vec<Vec<u32>>,
    pub(crate) savings: Vec<Vec<Saving>>,
    /// Time of what each stage runs for the end of it alone, and for its backward pass too.
    pub(crate) time_through: Vec<f64>,
    pub(crate) time_all: Vec<f64>,
    /// Bytes of no stage that are live before the backward pass of stage `q` is run, at `q + 1`.
    pub(crate) outside: Vec<i64>,
    /// `across[i][k]`: bytes of `C_k` without `C_i`.
    pub(crate) across: Vec<Vec<i64>>,
    /// `through[i][k]`: the most bytes on the way from `C_i` to `C_k`, without `C_i`.
    pub(crate) through: Vec<Vec<i64>>,
}

impl Chain {
    /// The chain of at most `most` stages in an order of all nodes, forward ones first; nothing if
    /// there is no backward pass to speak of.
    pub(crate) fn new(problem: &Problem, order: &[u32], budget: i64, most: usize) -> Option<Chain> {
        let starts = boundaries(problem, order, most)?;
        let stages = starts.len() - 1;
        let mut chain = Chain {
            forward: (0..stages).map(|q| order[starts[q]..starts[q + 1]].to_vec()).collect(),
            backward: vec![Vec::new(); stages],
            home: vec![NO_STAGE; problem.bytes.len()],
            last: vec![NO_STAGE; problem.bytes.len()],
            made: vec![Vec::new(); stages],
            savings: Vec::new(),
            time_through: Vec::new(),
            time_all: Vec::new(),
            outside: Vec::new(),
            across: Vec::new(),
            through: Vec::new(),
        };
        chain.place_storages(problem);
        chain.place_backward(problem, order);
        chain.measure_across(problem);
        chain.measure_through(problem, order);
        chain.find_savings(problem, order, budget);
        Some(chain)
    }

    pub(crate) fn stages(&self) -> usize {
        self.forward.len()
    }

    /// Whether a storage of stage `q` is read behind it.
    pub(crate) fn crosses_end(&self, s: u32, q: usize) -> bool {
        self.home[s as usize] != NO_STAGE && self.last[s as usize] as usize > q
    }

    fn place_storages(&mut self, problem: &Problem) {
        for (q, nodes) in self.forward.iter().enumerate() {
            for &v in nodes {
                for &s in problem.reads.of(v as usize) {
                    if self.home[s as usize] != NO_STAGE {
                        self.last[s as usize] = q as u32;
                    }
                }
                for &s in problem.writes.of(v as usize) {
                    if problem.rerun[v as usize] && !problem.kept[s as usize] {
                        self.home[s as usize] = q as u32;
                        self.last[s as usize] = q as u32;
                        self.made[q].push(s);
                    }
                }
            }
        }
    }

    fn place_backward(&mut self, problem: &Problem, order: &[u32]) {
        let mut stage = self.stages() - 1;
        for &v in &order[problem.turn..] {
            let reads = problem.reads.of(v as usize).iter();
            let inside = reads.filter(|&&s| self.home[s as usize] != NO_STAGE);
            let latest = inside.map(|&s| self.last[s as usize] as usize).min();
            stage = stage.min(latest.unwrap_or(stage));
            self.backward[stage].push(v);
        }
    }

    fn measure_across(&mut self, problem: &Problem) {
        let stages = self.stages();
        let mut across = vec![vec![0i64; stages + 1]; stages + 1];
        for made in &self.made {
            for &s in made {
                let (home, last) = (self.home[s as usize], self.last[s as usize]);
                for k in home + 1..=last {
                    across[home as usize][k as usize] += problem.bytes[s as usize];
                }
            }
        }
        // What was written from `i` on: that of `i`, and what was written from `i + 1` on.
        for i in (0..stages).rev() {
            let (head, tail) = across.split_at_mut(i + 1);
            for (here, next) in head[i].iter_mut().zip(&tail[0]) {
                *here += next;
            }
        }
        self.across = across;
    }

    fn measure_through(&mut self, problem: &Problem, order: &[u32]) {
        let stages = self.stages();
        let mut through = vec![vec![0i64; stages + 1]; stages + 1];
        // The position at which the forward pass reads each storage last, if it crosses.
        let mut ends = vec![0usize; problem.bytes.len()];
        for (i, &v) in order[..problem.turn].iter().enumerate() {
            let (reads, writes) = (problem.reads.of(v as usize), problem.writes.of(v as usize));
            for &s in reads.iter().chain(writes) {
                ends[s as usize] = i;
            }
        }
        let mut position = vec![1usize; stages + 1];
        for q in 0..stages {
            position[q + 1] = position[q] + self.forward[q].len();
        }
        for (i, through) in through.iter_mut().enumerate().take(stages) {
            let (mut live, mut most) = (0i64, 0i64);
            for q in i..stages {
                for (at, &v) in (position[q]..).zip(&self.forward[q]) {
                    let v = v as usize;
                    let counts = |s: &&u32| self.home[**s as usize] != NO_STAGE;
                    for &s in problem.writes.of(v).iter().filter(counts) {
                        live += problem.bytes[s as usize];
                    }
                    most = most.max(live + problem.workspace[v]);
                    let touched = problem.reads.of(v).iter().chain(problem.writes.of(v));
                    let ended = touched.filter(counts).filter(|&&s| {
                        self.home[s as usize] as usize >= i && ends[s as usize] == at
                    });
                    live -= ended.map(|&s| problem.bytes[s as usize]).sum::<i64>();
                }
                through[q + 1] = most;
            }
        }
        self.through = through;
    }

    fn find_savings(&mut self, problem: &Problem, order: &[u32], budget: i64) {
        let (during, before) = outside(problem, order, &self.home);
        let mut position = vec![0usize; problem.time.len()];
        for (i, &v) in order.iter().enumerate() {
            position[v as usize] = i;
        }
        self.outside = vec![0; self.stages() + 1];
        for q in 0..self.stages() {
            // Without a backward pass of its own, what is live is what the stage before it finds.
            self.outside[q + 1] = match self.backward[q].first() {
                Some(&v) => before[position[v as usize]],
                None => self.outside[q],
            };
        }
        for q in 0..self.stages() {
            let stage = Stage::new(problem, self, q);
            let (through, all) = stage.times();
            let unit = problem.least_time() / budget.max(1) as f64;
            let measure = |kept: Vec<u32>| stage.saving(kept, &during, &before, &position);
            let mut savings = vec![measure(stage.wanted.clone())];
            let mut moment = stage.crossing();
            for price in PRICES {
                moment.least(price * unit, &|_| false);
                if moment.is_solved() {
                    savings.push(measure(stage.kept(&moment.again())));
                }
            }
            savings.dedup_by(|a, b| a.kept == b.kept);
            self.savings.push(savings);
            self.time_through.push(through);
            self.time_all.push(all);
        }
    }
}

/// Where stages begin, as positions in the natural order, and the end of the last; nothing if there
/// is nothing to divide.
fn boundaries(problem: &Problem, order: &[u32], most: usize) -> Option<Vec<usize>> {
    let turn = problem.turn;
    if turn < 3 || turn >= order.len() {
        return None;
    }
    // Bytes that cross to each position, in the forward pass alone.
    let mut crossing = vec![0i64; turn + 1];
    let mut made = vec![0i64; turn + 1];
    let mut ends = vec![0usize; problem.bytes.len()];
    for (i, &v) in order[..turn].iter().enumerate() {
        for &s in problem.reads.of(v as usize) {
            ends[s as usize] = i;
        }
    }
    for (i, &v) in order[..turn].iter().enumerate().skip(1) {
        for &s in problem.writes.of(v as usize) {
            made[i] += problem.bytes[s as usize];
            if ends[s as usize] > i && !problem.kept[s as usize] {
                crossing[i + 1] += problem.bytes[s as usize];
                crossing[ends[s as usize] + 1] -= problem.bytes[s as usize];
            }
        }
    }
    for i in 1..=turn {
        crossing[i] += crossing[i - 1];
    }
    // One boundary for each share of the bytes made: the one that the fewest cross.
    let all: i64 = made.iter().sum();
    let share = |bytes: i64| (bytes as i128 * most as i128 / (all.max(1) as i128 + 1)) as usize;
    let mut starts = vec![1];
    let (mut so_far, mut best): (i64, Option<usize>) = (0, None);
    for i in 1..turn {
        let is_low = |p: usize| crossing[p] < crossing[i + 1];
        if i + 1 < turn && best.is_none_or(|b| !is_low(b)) {
            best = Some(i + 1);
        }
        if share(so_far) != share(so_far + made[i]) || i + 1 == turn {
            starts.extend(best.take().filter(|_| i + 1 < turn));
        }
        so_far += made[i];
    }
    starts.push(turn);
    starts.dedup();
    (starts.len() > 2).then_some(starts)
}

/// Bytes of no stage that are live during each run of the natural order, with its scratch, and
/// before it.
fn outside(problem: &Problem, order: &[u32], home: &[u32]) -> (Vec<i64>, Vec<i64>) {
    let counts = |s: u32| home[s as usize] == NO_STAGE;
    let mut live: Vec<bool> = (0..home.len()).map(|s| problem.kept[s]).collect();
    let all = (0..home.len()).filter(|&s| live[s] && counts(s as u32));
    let mut now: i64 = all.map(|s| problem.bytes[s]).sum();
    let count = order.len();
    let (mut during, mut before) = (vec![0; count], vec![0; count]);
    for (i, &v) in order.iter().enumerate().rev() {
        let (reads, writes) = (problem.reads.of(v as usize), problem.writes.of(v as usize));
        for &s in reads.iter().chain(writes).filter(|&&s| counts(s)) {
            if !std::mem::replace(&mut live[s as usize], true) {
                now += problem.bytes[s as usize];
            }
        }
        during[i] = now + problem.workspace[v as usize];
        for &s in writes.iter().filter(|&&s| counts(s)) {
            live[s as usize] = false;
            now -= problem.bytes[s as usize];
        }
        before[i] = now;
    }
    (during, before)
}

/// One stage while its savings are looked for.
struct Stage<'m> {
    problem: &'m Problem,
    chain: &'m Chain,
    q: usize,
    /// Storages of the stage that its backward pass reads and that do not cross its end.
    wanted: Vec<u32>,
}

impl<'m> Stage<'m> {
    fn new(problem: &'m Problem, chain: &'m Chain, q: usize) -> Stage<'m> {
        let mut wanted: Vec<u32> = chain.backward[q]
            .iter()
            .flat_map(|&v| problem.reads.of(v as usize))
            .copied()
            .filter(|&s| chain.home[s as usize] as usize == q && !chain.crosses_end(s, q))
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        Stage { problem, chain, q, wanted }
    }

    fn is_inside(&self, s: u32) -> bool {
        self.chain.home[s as usize] as usize == self.q
    }

    /// Time of the nodes that lead to the end of the stage, and of those that lead there or to the
    /// backward pass.
    fn times(&self) -> (f64, f64) {
        let (problem, chain) = (self.problem, self.chain);
        let ends = chain.made[self.q].iter().filter(|&&s| chain.crosses_end(s, self.q));
        let ends: Vec<u32> = ends.copied().collect();
        let time = |targets: Vec<u32>| -> f64 {
            let mut lives = vec![false; problem.bytes.len()];
            targets.iter().for_each(|&s| lives[s as usize] = true);
            let mut time = 0.0;
            for &v in chain.forward[self.q].iter().rev() {
                let v = v as usize;
                if problem.writes.of(v).iter().any(|&s| lives[s as usize]) {
                    time += problem.time[v];
                    problem.reads.of(v).iter().for_each(|&s| lives[s as usize] = true);
                }
            }
            time
        };
        (time(ends.clone()), time([ends, self.wanted.clone()].concat()))
    }

    fn crossing(&self) -> Crossing<'m> {
        let problem = self.problem;
        let mut past = vec![false; problem.time.len()];
        for &v in &self.chain.forward[self.q] {
            past[v as usize] = true;
        }
        let mut needed = vec![false; problem.bytes.len()];
        for &s in &self.wanted {
            needed[s as usize] = true;
        }
        let free: Vec<bool> = (0..problem.bytes.len() as u32)
            .map(|s| !self.is_inside(s) || self.chain.crosses_end(s, self.q))
            .collect();
        Crossing::new(problem, &past, &needed, &free, STAGE_ARCS)
    }

    /// What is kept if these nodes run again.
    fn kept(&self, again: &[bool]) -> Vec<u32> {
        let (problem, chain) = (self.problem, self.chain);
        let rerun = chain.forward[self.q].iter().filter(|&&v| again[v as usize]);
        let read = rerun.flat_map(|&v| problem.reads.of(v as usize)).copied();
        let mut kept: Vec<u32> = read.chain(self.wanted.iter().copied()).collect();
        kept.retain(|&s| {
            self.is_inside(s)
                && !chain.crosses_end(s, self.q)
                && !again[problem.writer[s as usize] as usize]
        });
        kept.sort_unstable();
        kept.dedup();
        kept
    }

    /// Bytes and time if `kept` is kept.
    fn saving(&self, kept: Vec<u32>, during: &[i64], before: &[i64], position: &[usize]) -> Saving {
        let (problem, chain, q) = (self.problem, self.chain, self.q);
        let mut live = vec![false; problem.bytes.len()];
        let ends = chain.made[q].iter().filter(|&&s| chain.crosses_end(s, q));
        for &s in kept.iter().chain(ends) {
            live[s as usize] = true;
        }
        let forward: Vec<(u32, i64)> =
            chain.forward[q].iter().map(|&v| (v, problem.workspace[v as usize])).collect();
        let forward_peak = self.peak(&forward, live.clone(), &|s| self.is_inside(s));
        let mut runs: Vec<(u32, i64)> = Vec::new();
        let mut time = 0.0;
        for &b in &chain.backward[q] {
            let at = position[b as usize];
            let mut open = vec![b];
            while let Some(&v) = open.last() {
                let mut reads = problem.reads.of(v as usize).iter();
                match reads.find(|&&s| self.is_inside(s) && !live[s as usize]) {
                    Some(&s) => open.push(problem.writer[s as usize]),
                    None => {
                        open.pop();
                        for &s in problem.writes.of(v as usize) {
                            live[s as usize] = true;
                        }
                        if v == b {
                            runs.push((v, during[at]));
                        } else {
                            time += problem.time[v as usize];
                            runs.push((v, before[at] + problem.workspace[v as usize]));
                        }
                    }
                }
            }
        }
        let nothing = vec![false; problem.bytes.len()];
        let backward_peak = self.peak(&runs, nothing.clone(), &|s| self.is_inside(s));
        let beside = chain.outside[q + 1];
        let both: Vec<(u32, i64)> =
            forward.iter().map(|&(v, scratch)| (v, scratch + beside)).chain(runs).collect();
        let is_staged = |s: u32| chain.home[s as usize] != NO_STAGE;
        let alone_peak = self.peak(&both, nothing, &is_staged);
        let bytes = kept.iter().map(|&s| problem.bytes[s as usize]).sum();
        Saving { bytes, kept, time, forward_peak, backward_peak, alone_peak }
    }

    /// The most bytes of the storages that count with those given for each run, if `live` is live
    /// at the end.
    fn peak(&self, runs: &[(u32, i64)], mut live: Vec<bool>, counts: &dyn Fn(u32) -> bool) -> i64 {
        let problem = self.problem;
        let ends = self.chain.made[self.q].iter().filter(|&&s| live[s as usize]);
        let mut now: i64 = ends.map(|&s| problem.bytes[s as usize]).sum();
        let mut most = now;
        for &(v, beside) in runs.iter().rev() {
            let (reads, writes) = (problem.reads.of(v as usize), problem.writes.of(v as usize));
            for &s in reads.iter().chain(writes).filter(|&&s| counts(s)) {
                if !std::mem::replace(&mut live[s as usize], true) {
                    now += problem.bytes[s as usize];
                }
            }
            most = most.max(now + beside);
            for &s in writes.iter().filter(|&&s| counts(s)) {
                live[s as usize] = false;
                now -= problem.bytes[s as usize];
            }
        }
        most
    }
}
