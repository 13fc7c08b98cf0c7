//! The search's own view of a graph: flat arrays of what can change, everything else summed up
//! once.
//!
//! In: a [`Graph`]. Out: a [`Problem`], in which
//! - *managed* storages are those whose life a schedule decides. A storage that is persistent and
//!   there from the start is a constant: its bytes go into `base` and nothing refers to it again.
//! - a storage of an input node that may be freed is written by one more node, `source`, which
//!   stands first in every sequence, takes no time and never moves.
//! - a storage that must be live at the end, or that is persistent and written by a node that runs,
//!   is `kept`: once written for the last time it stays.
//! - nodes that no output, target or update needs never run.
//!
//! Limits: by the rules, a node may run again for one of its outputs while another is still there
//! and cannot be freed, because it is persistent or was overwritten; its second copy is dropped.
//! The problem has no second copies, and does not run such a node again (`banned`). What is proven
//! in it holds for all schedules only if there is none; bounds come from [`Problem::relaxed`].
//!
//! Ids are plain `usize`/`u32` indices of the graph's own nodes and storages; `source` comes after
//! them.

use std::borrow::Cow;

use rekindle_graph::{Effect, Graph, NodeId, Phase, StorageId};

/// Lists of ids, one per item, in one array.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lists {
    start: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    /// Without any list.
    fn empty() -> Lists {
        Lists { start: vec![0], items: Vec::new() }
    }

    pub(crate) fn new(lists: impl IntoIterator<Item = Vec<u32>>) -> Lists {
        let mut all = Lists::empty();
        for list in lists {
            all.push(list);
        }
        all
    }

    /// Adds a list.
    fn push(&mut self, list: impl IntoIterator<Item = u32>) {
        self.items.extend(list);
        self.start.push(self.items.len() as u32);
    }

    /// For each of `count` items, the second numbers of the pairs that have it as their first, in
    /// the order of the pairs.
    pub(crate) fn by_first(count: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Lists {
        let mut start = vec![0; count + 1];
        for (first, _) in pairs.clone() {
            start[first as usize + 1] += 1;
        }
        for i in 0..count {
            start[i + 1] += start[i];
        }
        let mut place = start.clone();
        let mut items = vec![0; start[count] as usize];
        for (first, second) in pairs {
            items[place[first as usize] as usize] = second;
            place[first as usize] += 1;
        }
        Lists { start, items }
    }

    #[inline]
    pub(crate) fn of(&self, i: usize) -> &[u32] {
        &self.items[self.start[i] as usize..self.start[i + 1] as usize]
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// Microseconds of one run; indexed by node.
    pub(crate) time: Vec<f64>,
    /// Scratch bytes; indexed by node.
    pub(crate) workspace: Vec<i64>,
    /// Managed storages that a node reads.
    pub(crate) reads: Lists,
    /// Managed storages that a node writes.
    pub(crate) writes: Lists,
    /// Whether a node must run even if nothing reads its writes.
    pub(crate) targets: Vec<bool>,
    /// Whether a node may run more than once.
    pub(crate) rerun: Vec<bool>,
    /// Nodes that overwrite something that a node reads: it may not run after them.
    pub(crate) not_after: Lists,
    /// Nodes that may not run after this one, because it overwrites what they read or write.
    pub(crate) not_before: Lists,
    /// Indexed by storage; zero for those that are not managed.
    pub(crate) bytes: Vec<i64>,
    /// The node that writes a storage; `source` for managed storages of inputs.
    pub(crate) writer: Vec<u32>,
    /// The needed nodes that read a managed storage, ascending.
    pub(crate) readers: Lists,
    /// Whether a storage must be live at the end.
    pub(crate) kept: Vec<bool>,
    /// Bytes that are live from the start to the end, whatever the schedule.
    pub(crate) base: i64,
    /// The node that stands for all inputs whose storages may be freed.
    pub(crate) source: usize,
    /// The needed nodes in the graph's own order, `source` first.
    pub(crate) natural: Vec<u32>,
    /// Where in `natural` the backward pass begins; its length if there is none.
    pub(crate) turn: usize,
    /// Nodes that the rules let run again where the problem does not.
    pub(crate) banned: Vec<u32>,
}

impl Problem {
    pub(crate) fn new(graph: &Graph, needed: &[bool]) -> Problem {
        let source = graph.nodes().len();
        let persists = |s: &StorageId| graph.storage(*s).role.is_persistent();
        let mut is_input = vec![false; graph.storages().len()];
        for node in graph.nodes().iter().filter(|n| n.phase == Phase::Input) {
            for &s in &node.writes {
                is_input[s.index()] = true;
            }
        }
        let constant = |s: StorageId| is_input[s.index()] && persists(&s);
        let managed = |s: &&StorageId| !constant(**s);
        let runs = |n: NodeId| needed[n.index()];

        // All in one pass, since a large graph is slow to walk through.
        let (mut time, mut workspace) = (Vec::new(), Vec::new());
        let (mut reads, mut writes) = (Lists::empty(), Lists::empty());
        let (mut rerun, mut targets) = (Vec::new(), Vec::new());
        for n in graph.nodes() {
            let is_run = n.phase != Phase::Input;
            time.push(n.time.get());
            workspace.push(super::signed(n.workspace));
            reads.push(n.reads.iter().filter(managed).map(|s| s.0));
            let made = n.writes.iter().filter(|s| is_run && managed(s));
            writes.push(made.map(|s| s.0));
            let once = n.effect == Effect::Once || n.writes.iter().any(persists);
            rerun.push(is_run && !once);
            targets.push(!n.updates.is_empty());
        }
        time.push(0.0);
        workspace.push(0);
        reads.push([]);
        let from_start = graph.storage_ids().filter(|s| is_input[s.index()]);
        writes.push(from_start.filter(|&s| !constant(s)).map(|s| s.0));
        rerun.push(false);
        targets.push(false);
        for t in graph.targets() {
            targets[t.index()] = true;
        }

        let (not_after, not_before) = overwrites(graph, needed);
        let readers = graph.storage_ids().map(|s| match constant(s) {
            true => Vec::new(),
            false => graph.readers(s).iter().filter(|n| runs(**n)).map(|n| n.0).collect(),
        });
        let mut kept: Vec<bool> =
            graph.storage_ids().map(|s| persists(&s) && runs(graph.writer(s))).collect();
        for &s in graph.outputs() {
            kept[s.index()] |= !constant(s);
        }
        let natural = graph.natural_order().into_iter().filter(|&n| runs(n));
        let stays = |s: &StorageId| persists(s) || graph.updater(*s).is_some();
        let is_forward = |n: &NodeId| graph.node(*n).phase == Phase::Forward;
        let turn = 1 + natural.clone().take_while(is_forward).count();
        let is_banned = |n: &NodeId| {
            let node = graph.node(*n);
            node.effect != Effect::Once && node.writes.len() > 1 && node.writes.iter().any(stays)
        };
        let banned = natural.clone().filter(is_banned).map(|n| n.0).collect();
        Problem {
            time,
            workspace,
            reads,
            writes,
            targets,
            rerun,
            not_after: Lists::new(not_after),
            not_before: Lists::new(not_before),
            bytes: graph
                .storage_ids()
                .map(|s| match constant(s) {
                    true => 0,
                    false => super::signed(graph.storage(s).bytes),
                })
                .collect(),
            writer: graph
                .storage_ids()
                .map(|s| match is_input[s.index()] {
                    true => source as u32,
                    false => graph.writer(s).0,
                })
                .collect(),
            readers: Lists::new(readers),
            kept,
            base: graph
                .storage_ids()
                .filter(|&s| constant(s))
                .map(|s| super::signed(graph.storage(s).bytes))
                .sum(),
            source,
            natural: std::iter::once(source as u32).chain(natural.map(|n| n.0)).collect(),
            turn,
            banned,
        }
    }

    /// The problem in which every node may run again that may do so by the rules, without a second
    /// copy of anything: what every sequence takes in it, every schedule takes.
    pub(crate) fn relaxed(&self) -> Cow<'_, Problem> {
        let mut problem = Cow::Borrowed(self);
        for &v in &self.banned {
            problem.to_mut().rerun[v as usize] = true;
        }
        problem
    }

    /// Time of every needed node once.
    pub(crate) fn least_time(&self) -> f64 {
        self.natural.iter().map(|&v| self.time[v as usize]).sum()
    }

    /// The nodes that lead to `v`, without `v`.
    pub(crate) fn ancestors(&self, v: usize) -> Vec<bool> {
        let mut past = vec![false; self.time.len()];
        let mut stack = vec![v];
        while let Some(w) = stack.pop() {
            for &s in self.reads.of(w) {
                let from = self.writer[s as usize] as usize;
                if !std::mem::replace(&mut past[from], true) {
                    stack.push(from);
                }
            }
        }
        past
    }

    /// The nodes that `v` leads to, without `v`.
    pub(crate) fn descendants(&self, v: usize) -> Vec<bool> {
        let mut after = vec![false; self.time.len()];
        let mut stack = vec![v];
        while let Some(w) = stack.pop() {
            for &s in self.writes.of(w) {
                for &to in self.readers.of(s as usize) {
                    if !std::mem::replace(&mut after[to as usize], true) {
                        stack.push(to as usize);
                    }
                }
            }
        }
        after
    }

    /// Bytes live during each run of a sequence, if each storage is freed right after its last use.
    pub(crate) fn bytes_during(&self, order: &[u32]) -> Vec<i64> {
        // From the end: what is live before a run is what is live after it, less what it writes,
        // with what it reads.
        let mut live = self.kept.clone();
        let sizes = live.iter().zip(&self.bytes);
        let mut now = self.base + sizes.map(|(&live, bytes)| i64::from(live) * bytes).sum::<i64>();
        let mut during = vec![0; order.len()];
        for (&v, during) in order.iter().zip(&mut during).rev() {
            let (reads, writes) = (self.reads.of(v as usize), self.writes.of(v as usize));
            for &s in reads.iter().chain(writes) {
                if !std::mem::replace(&mut live[s as usize], true) {
                    now += self.bytes[s as usize];
                }
            }
            *during = now + self.workspace[v as usize];
            for &s in writes {
                live[s as usize] = false;
                now -= self.bytes[s as usize];
            }
        }
        during
    }
}

/// For each node, those that it may not run after, and those that may not run after it.
fn overwrites(graph: &Graph, needed: &[bool]) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let count = graph.nodes().len() + 1;
    let mut not_after = vec![Vec::new(); count];
    let mut not_before = vec![Vec::new(); count];
    for s in graph.storage_ids() {
        let Some(updater) = graph.updater(s) else {
            continue;
        };
        let touching = graph.readers(s).iter().copied().chain([graph.writer(s)]);
        for n in touching.filter(|n| *n != updater && needed[n.index()]) {
            not_after[n.index()].push(updater.0);
            not_before[updater.index()].push(n.0);
        }
    }
    for list in not_after.iter_mut().chain(&mut not_before) {
        list.sort_unstable();
        list.dedup();
    }
    (not_after, not_before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::needed_nodes;
    use crate::testing::{node, parts};

    /// What a node would leave for ever takes no room where the node does not run.
    #[test]
    fn what_is_never_written_has_no_bytes() {
        let mut parts = parts(
            &[10, 100, 10],
            vec![
                node("a", Phase::Forward, &[0], &[1]),
                node("spare", Phase::Forward, &[1], &[2]),
                node("b", Phase::Forward, &[1], &[3]),
            ],
        );
        parts.storages[2].role = rekindle_graph::Role::OptimizerState;
        let graph = Graph::new(parts).expect("a graph");
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        assert_eq!(problem.bytes_during(&problem.natural), [1, 11, 21]);
    }
}
