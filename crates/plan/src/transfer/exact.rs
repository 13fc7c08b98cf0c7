//! The best schedule of a tiny graph with a store, by exhaustion.
//!
//! In: a graph, a budget, a store. Out: the fastest schedule under the budget, or that there is
//! none, or nothing where the graph is too large.
//!
//! Method: best first over *labels*: what is in memory, of what there is a copy, what has run, what
//! lives in the store, and when compute, the channels and each transfer are done. From a label a
//! node runs, a storage is copied out, or one is fetched. Freeing later never costs time, so
//! storages are freed only where a run or a fetch does not fit otherwise, and no more of them than
//! needed. A label is dropped if another with the same places has everything done no later. Labels
//! are taken in the order of the least time that they can still lead to, so the first that has all
//! done is the best.
//!
//! A store with a limit holds what lives there and every copy that is not stale. A copy that is
//! never fetched goes when its storage is freed; here it is given up then or at any time after
//! that, since only the next copy asks for its room.
//!
//! Limits: [`MOST_STORAGES`], [`MOST_NODES`] and [`MOST_LABELS`], and no persistent storage that is
//! written by a node and might live in the store.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use rekindle_graph::{Bytes, Effect, Graph, NodeId, Phase, Schedule, Step, StorageId, Store};

use crate::draft::needed_nodes;
use crate::search::signed;

/// Storages up to which it is tried.
const MOST_STORAGES: usize = 20;
/// Nodes that run up to which it is tried.
const MOST_NODES: usize = 10;
/// Labels after which it is given up: some hundredths of a second.
const MOST_LABELS: usize = 40_000;
/// Storages that may live in the store up to which it is tried: every choice of them is a start.
const MOST_STORED: usize = 6;

/// What exhaustion found.
pub(super) enum Exact {
    /// No schedule under the budget is faster; with its time.
    Fastest(Schedule, f64),
    /// There is no schedule under the budget.
    Impossible,
    /// Too large to tell.
    Unknown,
}

/// Where everything is. Bits are storages, and nodes for `done`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Places {
    live: u32,
    copied: u32,
    /// Copies that were given up.
    dropped: u32,
    done: u32,
    at_start: u32,
}

#[derive(Clone)]
struct Label {
    places: Places,
    compute: f64,
    channel: [f64; 2],
    /// When what is in memory is complete, when its offload ends, when its copy is complete; no
    /// earlier than `compute`, since what is over does not matter.
    arrives: Vec<f64>,
    leaves: Vec<f64>,
    copies: Vec<f64>,
    from: usize,
    steps: Vec<Step>,
    is_end: bool,
}

struct Entry {
    least: f64,
    index: usize,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        other.least.total_cmp(&self.least).then(other.index.cmp(&self.index))
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

/// The fastest schedule under `budget`.
pub(super) fn exact(graph: &Graph, budget: i64, store: &Store) -> Exact {
    let needed = needed_nodes(graph);
    let runs: Vec<NodeId> =
        graph.natural_order().into_iter().filter(|n| needed[n.index()]).collect();
    let may_be_stored = |s: &StorageId| store.keeps(graph.storage(*s).role);
    let stored = graph.sources().filter(may_be_stored).count();
    let is_written = graph.storage_ids().filter(may_be_stored).count() > stored;
    let is_large = graph.storages().len() > MOST_STORAGES
        || graph.nodes().len() > 32
        || runs.len() > MOST_NODES
        || stored > MOST_STORED;
    if is_large || is_written {
        return Exact::Unknown;
    }
    let all: i64 = graph.storages().iter().map(|s| signed(s.bytes)).sum();
    let limit = store.limit.map(signed).filter(|&limit| limit < all);
    Space { graph, budget, store, limit, runs, labels: Vec::new(), heap: BinaryHeap::new() }
        .search()
}

struct Space<'a> {
    graph: &'a Graph,
    budget: i64,
    store: &'a Store,
    /// What the store may hold, where that is less than everything.
    limit: Option<i64>,
    runs: Vec<NodeId>,
    labels: Vec<Label>,
    heap: BinaryHeap<Entry>,
}

fn mask(storages: &[StorageId]) -> u32 {
    storages.iter().map(|s| 1 << s.0).fold(0, |all, bit: u32| all | bit)
}

fn bits(mask: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |b| mask & (1 << b) != 0)
}

impl Space<'_> {
    fn search(mut self) -> Exact {
        let mut best: HashMap<Places, Vec<usize>> = HashMap::new();
        for label in self.starts() {
            self.push(label, &mut best);
        }
        while let Some(Entry { least, index }) = self.heap.pop() {
            let label = self.labels[index].clone();
            if label.is_end {
                return Exact::Fastest(self.schedule(index), least);
            }
            let is_beaten = best[&label.places].iter().all(|&i| i != index);
            if is_beaten {
                continue;
            }
            for next in self.next(&label, index) {
                self.push(next, &mut best);
            }
            if self.labels.len() > MOST_LABELS {
                return Exact::Unknown;
            }
        }
        Exact::Impossible
    }

    /// Takes note of a label, unless one that is no later is known.
    fn push(&mut self, label: Label, best: &mut HashMap<Places, Vec<usize>>) {
        let index = self.labels.len();
        if !label.is_end {
            let known = best.entry(label.places).or_default();
            if known.iter().any(|&i| is_no_later(&self.labels[i], &label)) {
                return;
            }
            known.retain(|&i| !is_no_later(&label, &self.labels[i]));
            known.push(index);
        }
        let left = self.runs.iter().filter(|n| label.places.done & (1 << n.0) == 0);
        let left: f64 = left.map(|&n| self.graph.node(n).time.get()).sum();
        let least = (label.compute + left).max(label.channel[0]).max(label.channel[1]);
        self.labels.push(label);
        self.heap.push(Entry { least, index });
    }

    /// One label for each choice of what lives in the store.
    fn starts(&self) -> Vec<Label> {
        let sources: Vec<StorageId> = self.graph.sources().collect();
        let storable: Vec<StorageId> = sources
            .iter()
            .copied()
            .filter(|&s| self.store.keeps(self.graph.storage(s).role))
            .collect();
        let count = self.graph.storages().len();
        let choices = (0u32..1 << storable.len()).map(|choice| {
            let stored: Vec<StorageId> = bits(choice).map(|b| storable[b]).collect();
            mask(&stored)
        });
        let label = |at_start: u32| Label {
            places: Places {
                live: mask(&sources) & !at_start,
                copied: at_start,
                dropped: 0,
                done: 0,
                at_start,
            },
            compute: 0.0,
            channel: [0.0; 2],
            arrives: vec![0.0; count],
            leaves: vec![0.0; count],
            copies: vec![0.0; count],
            from: usize::MAX,
            steps: Vec::new(),
            is_end: false,
        };
        let fits = |l: &Label| self.bytes(l.places.live) <= self.budget && self.may_hold(l, 0);
        choices.map(label).filter(fits).collect()
    }

    /// Whether the store has room for one more copy of these storages.
    fn may_hold(&self, label: &Label, more: u32) -> bool {
        let Places { copied, at_start, .. } = label.places;
        self.limit.is_none_or(|limit| self.bytes(copied | at_start | more) <= limit)
    }

    fn bytes(&self, live: u32) -> i64 {
        bits(live).map(|s| signed(self.graph.storages()[s].bytes)).sum()
    }

    fn next(&self, label: &Label, index: usize) -> Vec<Label> {
        let mut all = Vec::new();
        let label = Label { from: index, steps: Vec::new(), ..label.clone() };
        all.extend(self.end(&label));
        for &id in &self.runs {
            self.run(&label, id, &mut all);
        }
        for s in 0..self.graph.storages().len() {
            let bit = 1u32 << s;
            let (is_live, is_copied) =
                (label.places.live & bit != 0, label.places.copied & bit != 0);
            let block = &self.graph.storages()[s];
            let may_go = self.store.takes(block.role) && block.bytes > Bytes::ZERO;
            let is_dropped = label.places.dropped & bit != 0;
            let may_leave = may_go && !is_dropped && self.store.out_rate.get() > 0.0;
            if is_live && !is_copied && may_leave && self.may_hold(&label, bit) {
                all.push(self.offload(&label, s));
            }
            if is_copied && self.limit.is_some() {
                all.extend(self.drop_copy(&label, s));
            }
            if !is_live && is_copied && self.store.in_rate.get() > 0.0 {
                self.fetch(&label, s, &mut all);
            }
        }
        all
    }

    /// What would be freed so that `need` bytes more fit: every set of which no member can stay.
    fn rooms(&self, label: &Label, need: i64, keep: u32) -> Vec<u32> {
        let over = self.bytes(label.places.live) + need - self.budget;
        let freeable: Vec<usize> = bits(label.places.live & !keep)
            .filter(|&s| {
                let is_persistent = self.graph.storages()[s].role.is_persistent();
                !is_persistent || label.places.copied & (1 << s) != 0
            })
            .collect();
        let mut sets = Vec::new();
        self.add_rooms(&freeable, over, 0, &mut sets);
        sets
    }

    fn add_rooms(&self, freeable: &[usize], over: i64, set: u32, sets: &mut Vec<u32>) {
        if over <= 0 {
            let spare = bits(set).any(|s| over + signed(self.graph.storages()[s].bytes) <= 0);
            if !spare {
                sets.push(set);
            }
            return;
        }
        let Some((&s, rest)) = freeable.split_first() else {
            return;
        };
        let bytes = signed(self.graph.storages()[s].bytes);
        self.add_rooms(rest, over - bytes, set | 1 << s, sets);
        self.add_rooms(rest, over, set, sets);
    }

    fn free(&self, label: &mut Label, s: usize) {
        label.compute = label.compute.max(label.leaves[s]).max(label.arrives[s]);
        label.places.live &= !(1 << s);
        label.steps.push(Step::Free(StorageId(s as u32)));
    }

    fn run(&self, label: &Label, id: NodeId, all: &mut Vec<Label>) {
        let node = self.graph.node(id);
        let reads = mask(&node.reads);
        let again = label.places.done & (1 << id.0) != 0 && node.effect == Effect::Once;
        let is_over = |s: &StorageId| {
            let updater = self.graph.updater(*s);
            updater.is_some_and(|u| label.places.done & (1 << u.0) != 0)
        };
        let never = node.phase == Phase::Input || again || node.reads.iter().any(is_over);
        if never || label.places.live & reads != reads {
            return;
        }
        let writes: i64 = node.writes.iter().map(|&w| signed(self.graph.storage(w).bytes)).sum();
        let need = writes + signed(node.workspace);
        // What it writes may be there already: as a copy to drop, or freed before.
        for set in self.rooms(label, need, reads) {
            let mut next = label.clone();
            bits(set).for_each(|s| self.free(&mut next, s));
            for r in bits(reads) {
                next.compute = next.compute.max(next.arrives[r]);
            }
            for u in &node.updates {
                next.compute = next.compute.max(next.leaves[u.index()]);
                next.places.copied &= !(1 << u.0);
            }
            for w in &node.writes {
                if next.places.live & (1 << w.0) == 0 {
                    (next.arrives[w.index()], next.leaves[w.index()]) = (0.0, 0.0);
                }
            }
            next.places.live |= mask(&node.writes);
            next.places.done |= 1 << id.0;
            next.compute += node.time.get();
            next.steps.push(Step::Run(id));
            all.push(settled(next));
        }
    }

    fn transfer(&self, label: &mut Label, way: usize, s: usize, not_before: f64) -> f64 {
        let rate = [self.store.out_rate, self.store.in_rate][way].get();
        let begin = label.compute.max(label.channel[way]).max(not_before);
        let bytes = self.graph.storages()[s].bytes.get() as f64;
        let end = begin + self.store.latency.get() + bytes / rate;
        match self.store.duplex {
            true => label.channel[way] = end,
            false => label.channel = [end; 2],
        }
        end
    }

    fn offload(&self, label: &Label, s: usize) -> Label {
        let mut next = label.clone();
        let arrives = next.arrives[s];
        let end = self.transfer(&mut next, 0, s, arrives);
        (next.leaves[s], next.copies[s]) = (end, end);
        next.places.copied |= 1 << s;
        next.steps.push(Step::Offload(StorageId(s as u32)));
        settled(next)
    }

    /// The copy of `s` is never fetched, and goes with the storage.
    fn drop_copy(&self, label: &Label, s: usize) -> Option<Label> {
        let bit = 1u32 << s;
        let is_live = label.places.live & bit != 0;
        let must_stay = self.graph.storages()[s].role.is_persistent();
        if label.places.at_start & bit != 0 || must_stay {
            return None;
        }
        let mut next = label.clone();
        if is_live {
            self.free(&mut next, s);
        }
        next.places.copied &= !bit;
        next.places.dropped |= bit;
        Some(settled(next))
    }

    fn fetch(&self, label: &Label, s: usize, all: &mut Vec<Label>) {
        for set in self.rooms(label, signed(self.graph.storages()[s].bytes), 0) {
            let mut next = label.clone();
            bits(set).for_each(|s| self.free(&mut next, s));
            let copied = next.copies[s];
            next.arrives[s] = self.transfer(&mut next, 1, s, copied);
            next.leaves[s] = 0.0;
            next.places.live |= 1 << s;
            next.steps.push(Step::Fetch(StorageId(s as u32)));
            all.push(settled(next));
        }
    }

    /// The label after the last free, if nothing else is left to do.
    fn end(&self, label: &Label) -> Option<Label> {
        let Places { live, copied, done, at_start, .. } = label.places;
        let graph = self.graph;
        let persistent = graph.sources().filter(|&s| graph.storage(s).role.is_persistent());
        let must: Vec<StorageId> = persistent.chain(graph.outputs().iter().copied()).collect();
        let must = mask(&must) & !at_start;
        let all_ran = self.runs.iter().all(|n| {
            let node = graph.node(*n);
            let matters = graph.targets().contains(n) || !node.updates.is_empty();
            !matters || done & (1 << n.0) != 0
        });
        if live & must != must || copied & at_start != at_start || !all_ran {
            return None;
        }
        let mut next = label.clone();
        bits(live & at_start).for_each(|s| self.free(&mut next, s));
        // No other run is to come.
        next.places.done = u32::MAX;
        next.is_end = true;
        Some(next)
    }

    fn schedule(&self, index: usize) -> Schedule {
        let mut parts = Vec::new();
        let mut at = index;
        while at != usize::MAX {
            parts.push(&self.labels[at].steps);
            at = self.labels[at].from;
        }
        let at_start = self.labels[index].places.at_start;
        let steps: Vec<Step> = parts.into_iter().rev().flatten().copied().collect();
        Schedule {
            steps: freeing_after_last_run(self.graph, &steps),
            store: Some(*self.store),
            stored_at_start: bits(at_start).map(|s| StorageId(s as u32)).collect(),
        }
    }
}

/// The same steps, with what is never used again freed right after the run that uses it last, as
/// every other schedule does. What has a transfer under way stays: freeing it would wait.
fn freeing_after_last_run(graph: &Graph, steps: &[Step]) -> Vec<Step> {
    let mut is_needed = vec![false; graph.storages().len()];
    for &s in graph.outputs() {
        is_needed[s.index()] = true;
    }
    let is_moved =
        |s: StorageId| steps.iter().any(|&step| step == Step::Offload(s) || step == Step::Fetch(s));
    let plain = |s: StorageId| !graph.storage(s).role.is_persistent() && !is_moved(s);
    // From the end, where it is known what is needed later; turned round at last.
    let mut turned = Vec::new();
    for &step in steps.iter().rev() {
        match step {
            Step::Free(s) if plain(s) => {}
            Step::Run(id) => {
                let node = graph.node(id);
                for &s in node.reads.iter().chain(&node.writes).filter(|&&s| plain(s)) {
                    if !is_needed[s.index()] {
                        turned.push(Step::Free(s));
                    }
                }
                turned.push(step);
                for &s in &node.writes {
                    is_needed[s.index()] = graph.updater(s).is_some();
                }
                for &s in &node.reads {
                    is_needed[s.index()] = true;
                }
            }
            other => turned.push(other),
        }
    }
    // What is there at the start and no run touches goes first.
    let is_idle = |s: &StorageId| plain(*s) && !is_needed[s.index()];
    turned.extend(graph.sources().filter(is_idle).map(Step::Free));
    turned.reverse();
    turned
}

/// What is over counts as over now.
fn settled(mut label: Label) -> Label {
    let now = label.compute;
    let Places { live, copied, .. } = label.places;
    for s in 0..label.arrives.len() {
        if live & (1 << s) == 0 {
            (label.arrives[s], label.leaves[s]) = (now, now);
        }
        if copied & (1 << s) == 0 {
            label.copies[s] = now;
        }
    }
    let times = label.arrives.iter_mut().chain(&mut label.leaves).chain(&mut label.copies);
    times.chain(&mut label.channel).for_each(|time| *time = time.max(now));
    label
}

/// Whether everything of one is done no later than of the other.
fn is_no_later(one: &Label, other: &Label) -> bool {
    let no_later = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| a <= b);
    one.compute <= other.compute
        && no_later(&one.channel, &other.channel)
        && no_later(&one.arrives, &other.arrives)
        && no_later(&one.leaves, &other.leaves)
        && no_later(&one.copies, &other.copies)
}
