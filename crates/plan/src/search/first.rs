//! The first plan: the graph's own order under a memory of the budget's size, with foresight.
//!
//! In: a problem, an order without repetitions and a budget. Out: a sequence, under the budget if
//! the method finds one; nothing where it dropped something that turns out not to be allowed to run
//! again, or needs too many runs.
//!
//! Method: nodes run in their own order. Before a run, what it reads is made live again by running
//! its writer, and so on back (depth first). When a run does not fit, live storages that nothing at
//! work needs are dropped, the one with the lowest `cost / (bytes · distance^bend)` first, where
//! *cost* is the time to make it again from what is live now and *distance* is how many nodes away
//! its next reader is. This is Belady's rule, weighted by price; `bend` says how much distance
//! counts.
//!
//! What is made again is *wanted* as long as other runs on the way to the same node will read it,
//! and is dropped late: where ways back meet, nothing is made twice as long as there is room. Where
//! there is none, even what nodes at work read is dropped, and they find it missing when their turn
//! comes.
//!
//! The candidates are in a heap whose entries may be out of date; an entry is looked at again when
//! it comes up. Work: O(runs · log n), with each cost cut off after [`LOOK`] nodes, and runs after
//! a number per node.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::problem::{Lists, Problem};

/// Values of `bend` that are worth a try, none of which is best everywhere.
pub(crate) const BENDS: [f64; 4] = [0.0, 0.5, 1.0, 1.5];
/// How many nodes the estimate of a cost looks at. Chains that are longer are rarely worth
/// dropping.
const LOOK: usize = 24;
/// How many edges it looks at: no estimate on the corpus needs more.
const LOOK_EDGES: u32 = 128;
/// Edges after which the whole order is given up: a thousand times what the corpus needs, and
/// some tenths of a second.
const MOST_EDGES: u64 = 60_000_000;
/// Entries of the heap for each storage, after which those that are out of date are cleared away.
const STALE: usize = 8;
/// By how much what is wanted counts as dearer than the rest, whatever the `bend`.
const WANTED: f64 = 1e3;

/// A candidate to be dropped. The heap gives the lowest score first, ties to the lower storage.
struct Candidate {
    score: f64,
    storage: u32,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = other.score.total_cmp(&self.score);
        by_score.then(other.storage.cmp(&self.storage))
    }
}
impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Candidate {}

/// Runs `base` (a valid order without repetitions) under `budget`, in at most `most_runs` runs per
/// node, unless `stop` says so of the edges looked at since it was asked.
pub(crate) fn first(
    problem: &Problem,
    base: &[u32],
    budget: i64,
    bend: f64,
    most_runs: usize,
    stop: &dyn Fn(u64) -> bool,
) -> Option<Vec<u32>> {
    let mut machine = Machine::new(problem, base, budget, bend);
    let most = most_runs * base.len();
    for (i, &v) in base.iter().enumerate() {
        machine.now = i as u32;
        machine.reach(v, most, stop)?;
    }
    Some(machine.order)
}

struct Machine<'m> {
    problem: &'m Problem,
    budget: i64,
    bend: f64,
    /// Positions in the base order at which each storage is read, ascending.
    uses: Lists,
    /// How many of them have passed.
    used: Vec<u32>,
    live: Vec<bool>,
    /// The nodes at work: each waits for something that the next one leads to.
    work: Vec<u32>,
    /// How many nodes at work read a storage.
    pinned: Vec<u32>,
    /// How many runs that the order's next node asks for will still read a storage.
    wanted: Vec<u32>,
    /// The last of the order's nodes, by position, that asked for each node to run.
    asked: Vec<u32>,
    /// Whether a node has run at all.
    done: Vec<bool>,
    bytes: i64,
    now: u32,
    order: Vec<u32>,
    heap: BinaryHeap<Candidate>,
    /// Edges looked at so far.
    looked: Cell<u64>,
    /// The last run, by position, that had each storage at hand.
    at_hand: Vec<usize>,
}

impl<'m> Machine<'m> {
    fn new(problem: &'m Problem, base: &[u32], budget: i64, bend: f64) -> Machine<'m> {
        let reads = base.iter().enumerate().flat_map(|(i, &v)| {
            let reads = problem.reads.of(v as usize).iter();
            reads.map(move |&s| (s, i as u32))
        });
        Machine {
            problem,
            budget,
            bend,
            uses: Lists::by_first(problem.bytes.len(), reads),
            used: vec![0; problem.bytes.len()],
            live: vec![false; problem.bytes.len()],
            work: Vec::new(),
            pinned: vec![0; problem.bytes.len()],
            wanted: vec![0; problem.bytes.len()],
            asked: vec![u32::MAX; problem.time.len()],
            done: vec![false; problem.time.len()],
            bytes: problem.base,
            now: 0,
            order: Vec::with_capacity(2 * base.len()),
            heap: BinaryHeap::new(),
            looked: Cell::new(0),
            at_hand: vec![usize::MAX; problem.bytes.len()],
        }
    }

    /// Runs `v`, and before it whatever has to run again; nothing if that is not allowed, or takes
    /// more than `most` runs altogether, or too many edges, or `stop` says so.
    fn reach(&mut self, v: u32, most: usize, stop: &dyn Fn(u64) -> bool) -> Option<()> {
        let asked = self.ask(v);
        self.take_up(v);
        let mut told = self.looked.get();
        while let Some(&w) = self.work.last() {
            let looked = self.looked.get();
            if looked > MOST_EDGES || stop(looked - told) {
                return None;
            }
            told = looked;
            let missing = self.problem.reads.of(w as usize).iter();
            self.look(missing.len());
            match missing.copied().find(|&s| !self.live[s as usize]) {
                Some(s) => {
                    let writer = self.problem.writer[s as usize];
                    if self.cannot_run(writer as usize) || self.order.len() > most {
                        return None;
                    }
                    self.take_up(writer);
                }
                None => {
                    self.work.pop();
                    self.run(w);
                }
            }
        }
        for w in asked {
            for &s in self.problem.reads.of(w as usize) {
                // What was asked for may have been dropped on the way, and made again by other
                // runs.
                if std::mem::take(&mut self.wanted[s as usize]) > 0 {
                    self.settle(s as usize);
                }
            }
        }
        Some(())
    }

    /// `v` and all that has to run again for it; what they read is wanted from now on.
    fn ask(&mut self, v: u32) -> Vec<u32> {
        let problem = self.problem;
        let mut asked = vec![v];
        let mut next = 0;
        while let Some(&w) = asked.get(next) {
            next += 1;
            for &s in problem.reads.of(w as usize) {
                let s = s as usize;
                self.wanted[s] += 1;
                let asked_by = &mut self.asked[problem.writer[s] as usize];
                if !self.live[s] && std::mem::replace(asked_by, self.now) != self.now {
                    asked.push(problem.writer[s]);
                }
            }
        }
        asked
    }

    /// Counts so many edges.
    fn look(&self, edges: usize) {
        self.looked.set(self.looked.get() + edges as u64);
    }

    fn take_up(&mut self, v: u32) {
        self.work.push(v);
        for &s in self.problem.reads.of(v as usize) {
            self.pinned[s as usize] += 1;
        }
    }

    /// Whether `v` has run and may not run again, or something that it reads is overwritten.
    fn cannot_run(&self, v: usize) -> bool {
        let over = |&u: &u32| self.done[u as usize];
        self.done[v] && !self.problem.rerun[v] || self.problem.not_after.of(v).iter().any(over)
    }

    /// Runs `v`, whose reads are live, for the node at work behind it or as the order's next.
    fn run(&mut self, v: u32) {
        let problem = self.problem;
        let node = v as usize;
        let fresh = problem.writes.of(node).iter();
        let need: i64 = fresh
            .map(|&s| match self.live[s as usize] {
                true => 0,
                false => problem.bytes[s as usize],
            })
            .sum();
        self.make_room(need + problem.workspace[node], node);
        self.order.push(v);
        self.done[node] = true;
        for &s in problem.writes.of(node) {
            if !std::mem::replace(&mut self.live[s as usize], true) {
                self.bytes += problem.bytes[s as usize];
            }
        }
        if self.work.is_empty() {
            for &s in problem.reads.of(node) {
                while self.next_use(s as usize).is_some_and(|u| u <= self.now) {
                    self.used[s as usize] += 1;
                }
            }
        }
        for &s in problem.reads.of(node) {
            self.pinned[s as usize] -= 1;
            self.wanted[s as usize] = self.wanted[s as usize].saturating_sub(1);
            self.settle(s as usize);
        }
        for &s in problem.writes.of(node) {
            self.settle(s as usize);
        }
    }

    /// Where the order reads `s` next.
    fn next_use(&self, s: usize) -> Option<u32> {
        self.uses.of(s).get(self.used[s] as usize).copied()
    }

    /// Frees a storage that nothing needs any more, or puts it up to be dropped.
    fn settle(&mut self, s: usize) {
        if self.pinned[s] > 0 || !self.live[s] || self.problem.kept[s] {
            return;
        }
        if self.next_use(s).is_none() && self.wanted[s] == 0 {
            // What cannot be made again stays, since a later recomputation may need it.
            if self.problem.rerun[self.problem.writer[s] as usize] {
                self.drop(s);
            }
        } else if self.can_drop(s) {
            let score = self.score(s);
            self.heap.push(Candidate { score, storage: s as u32 });
            if self.heap.len() > STALE * self.live.len() {
                self.clear_stale();
            }
        }
    }

    /// Leaves one entry, with its score of now, for each storage that can be dropped.
    fn clear_stale(&mut self) {
        let is_candidate = |&s: &usize| self.live[s] && self.pinned[s] == 0 && self.can_drop(s);
        let storages = (0..self.live.len()).filter(is_candidate);
        let candidates = storages
            .filter(|&s| !self.problem.kept[s])
            .map(|s| Candidate { score: self.score(s), storage: s as u32 });
        self.heap = candidates.collect();
    }

    fn can_drop(&self, s: usize) -> bool {
        let writer = self.problem.writer[s] as usize;
        self.problem.rerun[writer] && self.problem.bytes[s] > 0
    }

    fn drop(&mut self, s: usize) {
        self.live[s] = false;
        self.bytes -= self.problem.bytes[s];
    }

    /// Drops what is needed least until `need` bytes more fit, if that is possible, for a run of
    /// `node`.
    fn make_room(&mut self, need: i64, node: usize) {
        while self.bytes + need > self.budget {
            let Some(candidate) = self.heap.pop() else {
                return self.make_room_at_work(need, node);
            };
            let s = candidate.storage as usize;
            if !self.live[s] || self.pinned[s] > 0 {
                continue;
            }
            let score = self.score(s);
            if score > candidate.score * 1.0001 {
                self.heap.push(Candidate { score, ..candidate });
                continue;
            }
            if score.is_finite() {
                self.drop(s);
            }
        }
    }

    /// The last resort: drops what nodes at work read, those that wait longest first. They find it
    /// missing when their turn comes.
    fn make_room_at_work(&mut self, need: i64, node: usize) {
        let problem = self.problem;
        let run = self.order.len();
        for &s in problem.reads.of(node).iter().chain(problem.writes.of(node)) {
            self.at_hand[s as usize] = run;
        }
        for i in 0..self.work.len() {
            let reads = problem.reads.of(self.work[i] as usize);
            self.look(reads.len());
            for &s in reads {
                let s = s as usize;
                let at_hand = self.at_hand[s] == run;
                let spare = self.live[s] && !at_hand && !problem.kept[s] && self.can_drop(s);
                if spare && self.cost(s).is_finite() {
                    self.drop(s);
                }
                if self.bytes + need <= self.budget {
                    return;
                }
            }
        }
    }

    fn score(&self, s: usize) -> f64 {
        // What is wanted is needed before the order's next node runs.
        let distance = match self.next_use(s) {
            Some(next) if self.wanted[s] == 0 => next.saturating_sub(self.now).max(1),
            _ => 1,
        };
        let score =
            self.cost(s) / (self.problem.bytes[s] as f64 * f64::from(distance).powf(self.bend));
        match self.wanted[s] {
            0 => score,
            _ => WANTED * score,
        }
    }

    /// Time to make `s` again from what is live now; infinite if that is not allowed.
    fn cost(&self, s: usize) -> f64 {
        let problem = self.problem;
        let mut seen = [u32::MAX; LOOK];
        let mut count = 1;
        seen[0] = problem.writer[s];
        let mut i = 0;
        let (mut cost, mut edges) = (0.0, 0);
        while i < count {
            let w = seen[i] as usize;
            i += 1;
            if self.cannot_run(w) {
                return f64::INFINITY;
            }
            cost += problem.time[w];
            for &r in problem.reads.of(w) {
                if edges == LOOK_EDGES {
                    return 4.0 * cost;
                }
                edges += 1;
                self.look(1);
                let writer = problem.writer[r as usize];
                if self.live[r as usize] || seen[..count].contains(&writer) {
                    continue;
                }
                if count == LOOK {
                    // Too long to follow; make it look as expensive as it probably is.
                    return 4.0 * cost;
                }
                seen[count] = writer;
                count += 1;
            }
        }
        cost
    }
}

#[cfg(test)]
mod tests {
    use rekindle_graph::{Graph, Node, Phase};

    use super::*;
    use crate::draft::needed_nodes;
    use crate::search::anneal::Found;
    use crate::testing::{names, node, parts};

    /// The names of the runs under a budget, and their peak.
    fn first_of(bytes: &[u64], nodes: Vec<Node>, budget: i64) -> (String, i64) {
        let graph = Graph::new(parts(bytes, nodes)).expect("a graph");
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        let order =
            first(&problem, &problem.natural, budget, 1.0, 8, &|_| false).expect("a sequence");
        (names(&graph, &order), Found::of_order(&problem, &order).peak)
    }

    /// `c` makes 10 bytes, from which `p` and `q` make 10 each for `v`. In between `m` makes 30,
    /// and needs all the room but 5: both are dropped. Both are made again from one more run of
    /// `c`, which is kept until `q` has read it. The peak is then the parameter, 3 · 10, and the
    /// byte that `n` made.
    #[test]
    fn what_two_ways_back_share_is_made_once() {
        let nodes = vec![
            node("c", Phase::Forward, &[0], &[1]),
            node("p", Phase::Forward, &[1], &[2]),
            node("q", Phase::Forward, &[1], &[3]),
            node("m", Phase::Forward, &[0], &[4]),
            node("n", Phase::Forward, &[4], &[5]),
            node("v", Phase::Forward, &[2, 3, 5], &[6]),
        ];
        let found = first_of(&[10, 10, 10, 30, 1, 1], nodes, 36);
        assert_eq!(found, ("c p q m n c p q v".to_string(), 32));
    }

    /// `v` reads what `p` and `q` make, 10 bytes each, and `q` reads 25 that `t` makes. At `n` all
    /// of it is dropped. Made again in the order of the reads, `q` would find the 10 of `p` at hand
    /// and need 1 + 1 + 10 + 25 + 10. So they are dropped once more, and made after it.
    #[test]
    fn what_waits_gives_way_to_what_is_at_work() {
        let nodes = vec![
            node("p", Phase::Forward, &[0], &[1]),
            node("t", Phase::Forward, &[0], &[2]),
            node("q", Phase::Forward, &[2], &[3]),
            node("m", Phase::Forward, &[0], &[4]),
            node("n", Phase::Forward, &[4], &[5]),
            node("v", Phase::Forward, &[1, 3, 5], &[6]),
        ];
        let found = first_of(&[10, 25, 10, 39, 1, 1], nodes, 41);
        assert_eq!(found, ("p t q m n p t q p v".to_string(), 41));
    }
    /// Where every node reads a quarter of all before it, no look at the heap or at a cost goes
    /// along all edges: whoever can say stop is asked often, and is heard.
    #[test]
    fn the_edges_of_a_dense_graph_are_counted() {
        let n = 300;
        let is_read = |i: u32, j: u32| (i + j).is_multiple_of(4) || j + 1 == i;
        let reads = |i: u32| (0..i).filter(|&j| is_read(i, j)).collect::<Vec<u32>>();
        let nodes = (1..=n).map(|i| node(&format!("n{i}"), Phase::Forward, &reads(i), &[i]));
        let graph = Graph::new(parts(&vec![10; n as usize], nodes.collect())).expect("a graph");
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        let budget = 5 * i64::from(n);
        let (told, most) = (Cell::new(0), Cell::new(0));
        let count = |edges: u64| {
            told.set(told.get() + edges);
            most.set(most.get().max(edges));
            told.get() > 100_000
        };
        let found = first(&problem, &problem.natural, budget, 1.0, 8, &count);
        assert_eq!(found, None);
        let storages = problem.bytes.len() as u64;
        let heap = STALE as u64 * storages * u64::from(LOOK_EDGES);
        assert!(most.get() <= heap + 2 * storages * u64::from(LOOK_EDGES));
        assert!(told.get() <= 100_000 + most.get());
    }
}
