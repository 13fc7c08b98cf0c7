//! One moment of every schedule, if bytes had a price: the first run of a node `v`.
//!
//! In: a problem, a budget and `v`. Out, for a price λ of a byte, the least `time of what runs
//! again + λ · bytes that are live` over everything that a schedule can do.
//!
//! Argument. At the first run of `v` every node that leads to `v` has run, and none that `v` leads
//! to has. Each other node is *free*: it has run, or has not. Let `F_u = 1` if the first run of
//! node `u` is still to come, `Q_u = 1` if any run of `u` is, and `D_s = 1` if a run that is still
//! to come reads storage `s`, or `s` must be live at the end. Then
//!
//! ```text
//! F_u ≤ Q_u                     what runs first runs
//! F_w ≤ F_u                     u reads what w writes, and cannot have run before it
//! Q_u ≤ D_s                     u reads s
//! live_s ≥ D_s - Q_writer(s)    what is read later is live now, or written later
//! again_u ≥ Q_u - F_u           a run to come that is not the first
//! ```
//!
//! All of it is a minimum cut with 1 on the side of the source: arcs `D_s → Q_writer(s)` of
//! capacity `λ · bytes_s`, `Q_u → F_u` of capacity `time_u`, and the inequalities without a cost as
//! arcs that cannot be cut. For nodes that lead to `v`, `F` is the sink; for those behind it, the
//! source. So the cut is exact for its λ, and nothing is assumed of the order: what is free lies
//! where it costs least.
//!
//! Limits: bytes that come and go between moments are not seen.

use crate::search::crossing::SCALE;
use crate::search::flow::{Network, UNCUT};
use crate::search::problem::Problem;

/// Searches for one cut, after which it is given up.
const MOST_SEARCHES: u32 = 400;

/// See the module's documentation.
pub(crate) struct Moment {
    network: Network,
    /// The arcs whose capacity is a price of bytes, with those bytes.
    priced: Vec<(usize, f64)>,
    /// The last cut.
    side: Vec<bool>,
    /// Bytes beside what is live in any case.
    pub(crate) room: f64,
}

const SOURCE: usize = 0;
const SINK: usize = 1;
const NONE: usize = usize::MAX;

/// The nodes of the network while it is made.
struct Numbers {
    count: usize,
    /// `Q` and `F` of each node.
    runs: Vec<usize>,
    first: Vec<usize>,
    /// `D` of each storage.
    demand: Vec<usize>,
}

impl Moment {
    /// All cuts together look at `most_arcs`, and are then given up.
    pub(crate) fn new(problem: &Problem, budget: i64, v: usize, most_arcs: u64) -> Moment {
        let before = problem.ancestors(v);
        let behind = problem.descendants(v);
        let is_free = |u: usize| !before[u] && !behind[u] && u != v && u != problem.source;
        let mut is_live = vec![false; problem.bytes.len()];
        let mut room = budget - problem.base - problem.workspace[v];
        for &s in problem.reads.of(v).iter().chain(problem.writes.of(v)) {
            if !std::mem::replace(&mut is_live[s as usize], true) {
                room -= problem.bytes[s as usize];
            }
        }
        let mut numbers = Numbers {
            count: 2,
            runs: vec![NONE; problem.time.len()],
            first: vec![SINK; problem.time.len()],
            demand: vec![NONE; problem.bytes.len()],
        };
        let mut stack: Vec<u32> = Vec::new();
        let mut later: Vec<u32> = Vec::new();
        for &u in &problem.natural {
            let u = u as usize;
            if behind[u] {
                (numbers.runs[u], numbers.first[u]) = (SOURCE, SOURCE);
            } else if is_free(u) {
                (numbers.runs[u], numbers.first[u]) = (numbers.count, numbers.count + 1);
                numbers.count += 2;
            } else {
                continue;
            }
            later.push(u as u32);
            stack.extend(problem.reads.of(u));
        }
        stack.extend((0..problem.bytes.len() as u32).filter(|&s| problem.kept[s as usize]));
        let mut storages: Vec<u32> = Vec::new();
        let mut past: Vec<u32> = Vec::new();
        while let Some(s) = stack.pop() {
            let writer = problem.writer[s as usize] as usize;
            let is_known = numbers.demand[s as usize] != NONE;
            if is_known || is_live[s as usize] || behind[writer] {
                continue;
            }
            numbers.demand[s as usize] = numbers.count;
            numbers.count += 1;
            storages.push(s);
            if numbers.runs[writer] != NONE {
                continue;
            }
            if !problem.rerun[writer] {
                numbers.runs[writer] = SINK;
                continue;
            }
            numbers.runs[writer] = numbers.count;
            numbers.count += 1;
            past.push(writer as u32);
            stack.extend(problem.reads.of(writer));
        }
        let mut moment = Moment {
            network: Network::new(numbers.count, 4 * numbers.count, most_arcs),
            priced: Vec::with_capacity(storages.len()),
            side: Vec::new(),
            room: room as f64,
        };
        moment.add_storages(problem, &numbers, &storages);
        for &u in past.iter().chain(&later) {
            moment.add_node(problem, &numbers, u as usize);
        }
        moment
    }

    fn add_storages(&mut self, problem: &Problem, numbers: &Numbers, storages: &[u32]) {
        for &s in storages {
            let s = s as usize;
            let (demand, writer) = (numbers.demand[s], problem.writer[s] as usize);
            let arc = self.network.arc(demand, numbers.runs[writer], 0);
            self.priced.push((arc, problem.bytes[s] as f64));
            if problem.kept[s] {
                self.network.arc(SOURCE, demand, UNCUT);
            }
        }
    }

    fn add_node(&mut self, problem: &Problem, numbers: &Numbers, u: usize) {
        let (runs, first) = (numbers.runs[u], numbers.first[u]);
        for &s in problem.reads.of(u) {
            if numbers.demand[s as usize] != NONE {
                self.network.arc(runs, numbers.demand[s as usize], UNCUT);
            }
        }
        if first == SOURCE {
            return;
        }
        let time = match problem.rerun[u] {
            true => (problem.time[u] * SCALE) as i64,
            false => UNCUT,
        };
        self.network.arc(runs, first, time);
        if first == SINK {
            return;
        }
        self.network.arc(first, runs, UNCUT);
        for &s in problem.writes.of(u) {
            for &reader in problem.readers.of(s as usize) {
                let behind = numbers.first[reader as usize];
                if behind != SOURCE {
                    self.network.arc(first, behind, UNCUT);
                }
            }
        }
    }

    /// The least `time + price · (bytes - room)`, in microseconds, never more than the truth.
    pub(crate) fn least(&mut self, price: f64) -> f64 {
        for &(arc, bytes) in &self.priced {
            self.network.set(arc, (bytes * price * SCALE).min(UNCUT as f64) as i64);
        }
        let cut = self.network.cut(SOURCE, SINK, MOST_SEARCHES, &|_| false) as f64 / SCALE;
        self.side = self.network.on_source_side(SOURCE);
        cut - price * self.room
    }

    /// Cuts at a higher price from now on start from the last one, which saves work.
    pub(crate) fn keep(&mut self) {
        self.network.keep();
    }

    /// Whether the last cut was found, and not given up: then only its value counts.
    pub(crate) fn is_solved(&self) -> bool {
        self.network.is_whole()
    }

    /// Whether no more arcs may be looked at.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.network.is_exhausted()
    }

    /// Arcs looked at so far.
    pub(crate) fn work(&self) -> u64 {
        self.network.work()
    }

    /// Bytes of everything that may be live.
    pub(crate) fn all_bytes(&self) -> f64 {
        self.priced.iter().map(|&(_, bytes)| bytes).sum()
    }

    fn is_cut(&self, arc: usize) -> bool {
        let (from, to) = self.network.ends(arc);
        self.side[from] && !self.side[to]
    }

    /// Bytes that are live in the last solution, beside what is live in any case.
    pub(crate) fn live(&self) -> f64 {
        self.priced.iter().filter(|(arc, _)| self.is_cut(*arc)).map(|&(_, bytes)| bytes).sum()
    }
}
