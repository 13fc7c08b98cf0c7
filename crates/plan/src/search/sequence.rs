//! A sequence of runs that can be edited in place, with its peak always at hand.
//!
//! State: slots, of which each holds one run of a node or nothing. A storage is live from a run of
//! its writer to the last read that comes before the writer's next run; one that is `kept` stays
//! from its writer's last run to the end. So frees follow from the sequence, and a run that is
//! inserted in the middle of a storage's life cuts that life in two.
//!
//! Edits: [`insert`](Sequence::insert), [`remove`](Sequence::remove) and [`open`](Sequence::open)
//! (make an empty slot in front of a run). Each updates the bytes of the slots concerned in a
//! [`MaxTree`], in O(degree · log slots), and is noted in a journal, so that
//! [`rollback`](Sequence::rollback) restores the state exactly.
//!
//! Invariants between edits: lists of runs are sorted by slot; the tree's value of a slot with a
//! run is the bytes live during it, that of an empty slot is the bytes live across it (never above
//! its neighbour). Limits: an edit does not check that it leaves a valid sequence.
//! [`valid_at`](Sequence::valid_at) and [`serves_all`](Sequence::serves_all) are for the caller to
//! ask.

use std::cell::Cell;

use super::problem::Problem;
use super::tree::MaxTree;

/// A slot without a run.
const EMPTY: u32 = u32::MAX;

/// One edit, as the journal keeps it.
#[derive(Clone, Copy, Debug)]
enum Edit {
    Inserted {
        run: u32,
    },
    Removed {
        run: u32,
        slot: u32,
    },
    /// Runs of `first + 1..=last` moved one to the left; `first` was empty, with this value.
    Left {
        first: u32,
        last: u32,
        value: i64,
    },
    /// Runs of `first..last` moved one to the right; `last` was empty, with this value.
    Right {
        first: u32,
        last: u32,
        value: i64,
    },
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Sequence<'m> {
    pub(crate) problem: &'m Problem,
    slots: Vec<u32>,
    /// Node of each run id.
    node: Vec<u32>,
    /// Slot of each run id.
    at: Vec<u32>,
    /// Run ids that may be used again.
    spare: Vec<u32>,
    /// Runs of each node, by slot.
    runs: Vec<Vec<u32>>,
    /// Runs that read each storage, by slot.
    read_by: Vec<Vec<u32>>,
    tree: MaxTree,
    time: f64,
    count: usize,
    journal: Vec<Edit>,
    /// An edit had to move many runs: the empty slots should be spread again.
    crowded: bool,
    /// Storages touched by all edits so far.
    work: u64,
    /// Slots and storages looked at beside the edits: where empty slots were spread again, and
    /// where the whole order was read off.
    looked: Cell<u64>,
}

/// More moves than this for one empty slot, and the slots are spread again.
const CROWDED: u32 = 24;

/// Stretches whose overshoots count apart. One alone would not reward the repair of one of two
/// peaks.
const BLOCKS: u32 = 64;

impl<'m> Sequence<'m> {
    pub(crate) fn new(problem: &'m Problem, order: &[u32]) -> Sequence<'m> {
        let mut sequence = Sequence {
            problem,
            slots: Vec::new(),
            node: Vec::new(),
            at: Vec::new(),
            spare: Vec::new(),
            runs: vec![Vec::new(); problem.time.len()],
            read_by: vec![Vec::new(); problem.bytes.len()],
            tree: MaxTree::new(&[]),
            time: 0.0,
            count: 0,
            journal: Vec::new(),
            crowded: false,
            work: 0,
            looked: Cell::new(0),
        };
        sequence.load(order);
        sequence
    }

    /// Replaces the whole sequence, with the empty slots spread evenly.
    pub(crate) fn load(&mut self, order: &[u32]) {
        let problem = self.problem;
        let size = (2 * order.len()).next_power_of_two().max(8);
        self.look(size as u64);
        self.slots = vec![EMPTY; size];
        self.node = order.to_vec();
        self.spare.clear();
        self.journal.clear();
        self.crowded = false;
        self.count = order.len();
        self.runs.iter_mut().for_each(Vec::clear);
        self.read_by.iter_mut().for_each(Vec::clear);
        // The last slot stays empty, so that there is always one behind the last run.
        let slot = |i: usize| i * (size - 1) / order.len().max(1);
        self.at = (0..order.len()).map(|i| slot(i) as u32).collect();
        self.time = 0.0;
        for (i, &v) in order.iter().enumerate() {
            self.slots[slot(i)] = i as u32;
            self.runs[v as usize].push(i as u32);
            self.look(self.degree(v as usize));
            for &s in problem.reads.of(v as usize) {
                self.read_by[s as usize].push(i as u32);
            }
            self.time += problem.time[v as usize];
        }
        let mut change = vec![0i64; size + 1];
        for (i, &v) in order.iter().enumerate() {
            let p = slot(i);
            change[p] += problem.workspace[v as usize];
            change[p + 1] -= problem.workspace[v as usize];
            let k = self.runs[v as usize].partition_point(|&r| r < i as u32);
            for &s in problem.writes.of(v as usize) {
                change[p] += problem.bytes[s as usize];
                change[self.end(s as usize, k) + 1] -= problem.bytes[s as usize];
            }
        }
        let mut live = problem.base;
        for c in &mut change {
            live += *c;
            *c = live;
        }
        self.tree = MaxTree::new(&change[..size]);
    }

    /// The nodes in order.
    pub(crate) fn order(&self) -> Vec<u32> {
        self.look(self.slots.len() as u64);
        let runs = self.slots.iter().filter(|&&r| r != EMPTY);
        runs.map(|&r| self.node[r as usize]).collect()
    }

    /// Spreads the empty slots again if they have run out somewhere. Not within a transaction.
    pub(crate) fn relax(&mut self) {
        if self.crowded {
            let order = self.order();
            self.load(&order);
        }
    }

    pub(crate) fn peak(&self) -> i64 {
        self.tree.highest()
    }

    /// How far the sequence is above `budget`, summed over [`BLOCKS`] stretches of slots.
    pub(crate) fn above(&self, budget: i64) -> i64 {
        self.tree.above(budget, BLOCKS.ilog2())
    }

    pub(crate) fn time(&self) -> f64 {
        self.time
    }

    /// Storages touched by all edits so far.
    pub(crate) fn work(&self) -> u64 {
        self.work
    }

    /// Slots and storages looked at so far beside the edits.
    pub(crate) fn looked(&self) -> u64 {
        self.looked.get()
    }

    /// Counts so many slots or storages.
    pub(crate) fn look(&self, count: u64) {
        self.looked.set(self.looked.get() + count);
    }

    pub(crate) fn slot_count(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The run in a slot.
    pub(crate) fn run_in(&self, slot: u32) -> Option<u32> {
        let run = self.slots[slot as usize];
        (run != EMPTY).then_some(run)
    }

    pub(crate) fn node_of(&self, run: u32) -> usize {
        self.node[run as usize] as usize
    }

    pub(crate) fn slot_of(&self, run: u32) -> u32 {
        self.at[run as usize]
    }

    /// All runs of a node, by slot.
    pub(crate) fn runs_of(&self, node: usize) -> &[u32] {
        &self.runs[node]
    }

    /// All runs that read a storage, by slot.
    pub(crate) fn readers_of(&self, storage: usize) -> &[u32] {
        &self.read_by[storage]
    }

    /// How many of `runs` (sorted by slot) stand before `slot`.
    #[inline]
    pub(crate) fn before(&self, runs: &[u32], slot: u32) -> usize {
        if runs.len() > 12 {
            return runs.partition_point(|&r| self.at[r as usize] < slot);
        }
        let mut n = runs.len();
        while n > 0 && self.at[runs[n - 1] as usize] >= slot {
            n -= 1;
        }
        n
    }

    /// The last slot at which the life of `storage` that starts with its writer's `k`-th run is
    /// live.
    #[inline]
    fn end(&self, storage: usize, k: usize) -> usize {
        let writes = &self.runs[self.problem.writer[storage] as usize];
        let start = self.at[writes[k] as usize];
        let limit = match writes.get(k + 1) {
            Some(&next) => self.at[next as usize],
            None if self.problem.kept[storage] => return self.slots.len() - 1,
            None => self.slots.len() as u32,
        };
        self.last_read(storage, start, limit) as usize
    }

    /// The last read in `start..limit`, or `start`.
    #[inline]
    fn last_read(&self, storage: usize, start: u32, limit: u32) -> u32 {
        let reads = &self.read_by[storage];
        match self.before(reads, limit) {
            0 => start,
            n => self.at[reads[n - 1] as usize].max(start),
        }
    }

    /// The first and last slot of the life of `storage` that a read at `slot` falls into, and the
    /// last use before `slot`.
    pub(crate) fn life_at(&self, storage: usize, slot: u32) -> Option<(u32, u32, u32)> {
        let writes = &self.runs[self.problem.writer[storage] as usize];
        let k = self.before(writes, slot).checked_sub(1)?;
        let start = self.at[writes[k] as usize];
        let end = self.end(storage, k) as u32;
        Some((start, end, self.last_read(storage, start, slot)))
    }

    /// Makes an empty slot in front of `run`, moving as few runs as it can, and returns it.
    pub(crate) fn open(&mut self, run: u32) -> u32 {
        let r = self.at[run as usize];
        let mut reach = 1;
        loop {
            // Slot 0 belongs to the source.
            if r > reach && self.slots[(r - reach) as usize] == EMPTY {
                self.crowded |= reach > CROWDED;
                self.move_left(r - reach, r - 1);
                return r - 1;
            }
            if ((r + reach) as usize) + 1 < self.slots.len()
                && self.slots[(r + reach) as usize] == EMPTY
            {
                self.crowded |= reach > CROWDED;
                self.move_right(r, r + reach);
                return r;
            }
            reach += 1;
            assert!(
                (reach as usize) < self.slots.len(),
                "no empty slot among {}",
                self.slots.len()
            );
        }
    }

    /// Whether there is room for more runs.
    pub(crate) fn has_room(&self) -> bool {
        self.count + self.count / 8 < self.slots.len()
    }

    /// Asks for the slots to be spread again at the next [`relax`](Sequence::relax).
    pub(crate) fn wants_room(&mut self) {
        self.crowded = true;
    }

    fn move_left(&mut self, first: u32, last: u32) {
        if first == last {
            return;
        }
        let value = self.tree.get(first as usize);
        self.journal.push(Edit::Left { first, last, value });
        let emptied = self.across(last);
        self.rotate_left(first, last, emptied);
    }

    fn move_right(&mut self, first: u32, last: u32) {
        let value = self.tree.get(last as usize);
        self.journal.push(Edit::Right { first, last, value });
        let run = self.slots[first as usize];
        let emptied = self.tree.get(first as usize) - self.made(self.node_of(run));
        self.rotate_right(first, last, emptied);
    }

    /// Bytes live across `slot` once its run has moved left and the next slot's run stays.
    fn across(&self, slot: u32) -> i64 {
        let next = self.slots[slot as usize + 1];
        let value = self.tree.get(slot as usize + 1);
        match next {
            EMPTY => value,
            run => value - self.made(self.node_of(run)),
        }
    }

    /// Bytes that a run adds to those that were live before it.
    fn made(&self, node: usize) -> i64 {
        let writes = self.problem.writes.of(node).iter();
        let made: i64 = writes.map(|&s| self.problem.bytes[s as usize]).sum();
        made + self.problem.workspace[node]
    }

    fn rotate_left(&mut self, first: u32, last: u32, emptied: i64) {
        for i in first as usize..last as usize {
            let run = self.slots[i + 1];
            self.slots[i] = run;
            if run != EMPTY {
                self.at[run as usize] = i as u32;
            }
            let value = self.tree.get(i + 1);
            self.tree.set(i, value);
        }
        self.slots[last as usize] = EMPTY;
        self.tree.set(last as usize, emptied);
    }

    fn rotate_right(&mut self, first: u32, last: u32, emptied: i64) {
        for i in (first as usize + 1..=last as usize).rev() {
            let run = self.slots[i - 1];
            self.slots[i] = run;
            if run != EMPTY {
                self.at[run as usize] = i as u32;
            }
            let value = self.tree.get(i - 1);
            self.tree.set(i, value);
        }
        self.slots[first as usize] = EMPTY;
        self.tree.set(first as usize, emptied);
    }

    /// Puts a new run of `node` into an empty slot.
    pub(crate) fn insert(&mut self, node: usize, slot: u32) -> u32 {
        let run = match self.spare.pop() {
            Some(run) => run,
            None => {
                self.node.push(0);
                self.at.push(0);
                (self.node.len() - 1) as u32
            }
        };
        self.node[run as usize] = node as u32;
        self.link(run, slot);
        self.journal.push(Edit::Inserted { run });
        run
    }

    /// Takes a run out.
    pub(crate) fn remove(&mut self, run: u32) {
        let slot = self.at[run as usize];
        self.unlink(run);
        self.journal.push(Edit::Removed { run, slot });
    }

    fn link(&mut self, run: u32, slot: u32) {
        debug_assert_eq!(self.slots[slot as usize], EMPTY);
        let problem = self.problem;
        let node = self.node[run as usize] as usize;
        let p = slot as usize;
        self.slots[p] = run;
        self.at[run as usize] = slot;
        for &s in problem.reads.of(node) {
            let s = s as usize;
            let writes = &self.runs[problem.writer[s] as usize];
            if let Some(k) = self.before(writes, slot).checked_sub(1) {
                let end = self.end(s, k);
                self.tree.add(end + 1, p, problem.bytes[s]);
            }
            let place = self.before(&self.read_by[s], slot);
            self.read_by[s].insert(place, run);
        }
        let k = self.before(&self.runs[node], slot);
        for &s in problem.writes.of(node) {
            let s = s as usize;
            let bytes = problem.bytes[s];
            let before = k.checked_sub(1);
            let old_end = before.map(|k| self.end(s, k));
            match old_end {
                Some(end) if end > p => {
                    let start = self.at[self.runs[node][k - 1] as usize];
                    let new_end = self.last_read(s, start, slot) as usize;
                    self.tree.add(new_end + 1, p - 1, -bytes);
                }
                Some(_) => self.tree.add(p, p, bytes),
                None => {
                    let end = match self.runs[node].first() {
                        Some(&next) => self.last_read(s, slot, self.at[next as usize]) as usize,
                        None if problem.kept[s] => self.slots.len() - 1,
                        None => self.last_read(s, slot, self.slots.len() as u32) as usize,
                    };
                    self.tree.add(p, end, bytes);
                }
            }
        }
        self.tree.add(p, p, problem.workspace[node]);
        self.runs[node].insert(k, run);
        self.time += problem.time[node];
        self.count += 1;
        self.work += self.degree(node);
    }

    fn unlink(&mut self, run: u32) {
        let problem = self.problem;
        let node = self.node[run as usize] as usize;
        let slot = self.at[run as usize];
        let p = slot as usize;
        let k = self.before(&self.runs[node], slot);
        debug_assert_eq!(self.runs[node][k], run);
        for &s in problem.writes.of(node) {
            let s = s as usize;
            let bytes = problem.bytes[s];
            let end = self.end(s, k);
            match k.checked_sub(1) {
                Some(before) if end > p => {
                    let start = self.at[self.runs[node][before] as usize];
                    let before_end = self.last_read(s, start, slot) as usize;
                    self.tree.add(before_end + 1, p - 1, bytes);
                }
                Some(_) => self.tree.add(p, p, -bytes),
                None => self.tree.add(p, end, -bytes),
            }
        }
        self.tree.add(p, p, -problem.workspace[node]);
        self.runs[node].remove(k);
        for &s in problem.reads.of(node) {
            let s = s as usize;
            let place = self.before(&self.read_by[s], slot);
            self.read_by[s].remove(place);
            let writes = &self.runs[problem.writer[s] as usize];
            if let Some(k) = self.before(writes, slot).checked_sub(1) {
                let end = self.end(s, k);
                self.tree.add(end + 1, p, -problem.bytes[s]);
            }
        }
        self.slots[p] = EMPTY;
        self.time -= problem.time[node];
        self.count -= 1;
        self.work += self.degree(node);
    }

    pub(crate) fn degree(&self, node: usize) -> u64 {
        (self.problem.reads.of(node).len() + self.problem.writes.of(node).len()) as u64
    }

    /// Whether a run of `node` at `slot` finds everything that it reads written, and nothing of it
    /// overwritten.
    pub(crate) fn valid_at(&self, node: usize, slot: u32) -> bool {
        let problem = self.problem;
        let written = |&s: &u32| {
            let writes = &self.runs[problem.writer[s as usize] as usize];
            writes.first().is_some_and(|&w| self.at[w as usize] < slot)
        };
        let not_over = |&u: &u32| {
            let updates = &self.runs[u as usize];
            updates.first().is_none_or(|&u| slot < self.at[u as usize])
        };
        let all_before = |&n: &u32| {
            let runs = &self.runs[n as usize];
            runs.last().is_none_or(|&r| self.at[r as usize] < slot)
        };
        problem.reads.of(node).iter().all(written)
            && problem.not_after.of(node).iter().all(not_over)
            && problem.not_before.of(node).iter().all(all_before)
    }

    /// Whether the first run of `node` comes before everything that reads its writes.
    pub(crate) fn serves_all(&self, node: usize) -> bool {
        let first = self.runs[node].first().map(|&r| self.at[r as usize]);
        let served = |&s: &u32| match self.read_by[s as usize].first() {
            Some(&read) => first.is_some_and(|f| f < self.at[read as usize]),
            None => true,
        };
        self.problem.writes.of(node).iter().all(served)
    }

    /// Whether the sequence stays valid and keeps all reads served without `run`, and nothing reads
    /// what it wrote.
    pub(crate) fn is_useless(&self, run: u32) -> bool {
        let node = self.node_of(run);
        let runs = &self.runs[node];
        if runs.len() < 2 {
            return false;
        }
        let slot = self.at[run as usize];
        let k = self.before(runs, slot);
        let last = k + 1 == runs.len();
        let unread = |&s: &u32| {
            !(last && self.problem.kept[s as usize]) && self.end(s as usize, k) == slot as usize
        };
        self.problem.writes.of(node).iter().all(unread)
    }

    /// Keeps the edits since the last commit.
    pub(crate) fn commit(&mut self) {
        for edit in self.journal.drain(..) {
            if let Edit::Removed { run, .. } = edit {
                self.spare.push(run);
            }
        }
    }

    /// Undoes the edits since the last commit.
    pub(crate) fn rollback(&mut self) {
        while let Some(edit) = self.journal.pop() {
            match edit {
                Edit::Inserted { run } => {
                    self.unlink(run);
                    self.spare.push(run);
                }
                Edit::Removed { run, slot } => self.link(run, slot),
                Edit::Left { first, last, value } => self.rotate_right(first, last, value),
                Edit::Right { first, last, value } => self.rotate_left(first, last, value),
            }
        }
    }
}
