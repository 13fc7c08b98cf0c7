//! An order of its own: every node once, with as few bytes live as a greedy choice gives.
//!
//! In: a problem. Out: the needed nodes in an order that respects reads and overwrites, `source`
//! first.
//!
//! Method: among the nodes whose reads are written and before which nothing has to run any more,
//! the one that adds the fewest bytes goes next: what it writes and is read later, less what it
//! reads for the last time. Ties go to the node that became ready last, which goes deep before it
//! goes wide, then to the smaller one. A node's count changes only when it becomes the last reader
//! of a storage, so a heap with stale entries serves: O(degrees · log n).
//!
//! Limits: it does not look ahead. On random graphs it is often far below the graph's own order, on
//! training steps rarely.

use std::collections::BinaryHeap;

use super::problem::Problem;

/// Ready nodes: the fewest added bytes first, then the latest, then the smaller id.
type Entry = (std::cmp::Reverse<i64>, u32, std::cmp::Reverse<u32>);

/// See the module's documentation.
pub(crate) fn with_few_bytes(problem: &Problem) -> Vec<u32> {
    let mut greedy = Greedy::new(problem);
    for &v in &problem.natural {
        if greedy.waits[v as usize] == 0 {
            greedy.release(v);
        }
    }
    let mut order = Vec::with_capacity(problem.natural.len());
    while let Some((std::cmp::Reverse(added), _, std::cmp::Reverse(v))) = greedy.heap.pop() {
        if greedy.done[v as usize] || added != greedy.added(v as usize) {
            continue;
        }
        order.push(v);
        greedy.run(v as usize);
    }
    debug_assert_eq!(order.len(), problem.natural.len());
    order
}

struct Greedy<'m> {
    problem: &'m Problem,
    heap: BinaryHeap<Entry>,
    done: Vec<bool>,
    /// Nodes that have to run before each node.
    waits: Vec<u32>,
    /// Readers of each storage that have not run.
    readers: Vec<u32>,
    /// Counts the nodes that became ready.
    turn: u32,
    /// When each node became ready.
    since: Vec<u32>,
}

impl<'m> Greedy<'m> {
    fn new(problem: &'m Problem) -> Greedy<'m> {
        let mut waits = vec![0; problem.time.len()];
        for &v in &problem.natural {
            let v = v as usize;
            waits[v] = (problem.reads.of(v).len() + problem.not_before.of(v).len()) as u32;
        }
        let readers = (0..problem.bytes.len()).map(|s| problem.readers.of(s).len() as u32);
        Greedy {
            problem,
            heap: BinaryHeap::new(),
            done: vec![false; problem.time.len()],
            waits,
            readers: readers.collect(),
            turn: 0,
            since: vec![0; problem.time.len()],
        }
    }

    /// Bytes live after a run of `v`, less those before it.
    fn added(&self, v: usize) -> i64 {
        let problem = self.problem;
        let stays = |s: usize| problem.kept[s] || self.readers[s] > 0;
        let writes = problem.writes.of(v).iter().map(|&s| s as usize);
        let made: i64 = writes.filter(|&s| stays(s)).map(|s| problem.bytes[s]).sum();
        let reads = problem.reads.of(v).iter().map(|&s| s as usize);
        let last = reads.filter(|&s| self.readers[s] == 1 && !problem.kept[s]);
        made - last.map(|s| problem.bytes[s]).sum::<i64>()
    }

    fn offer(&mut self, v: u32) {
        let added = self.added(v as usize);
        let since = self.since[v as usize];
        self.heap.push((std::cmp::Reverse(added), since, std::cmp::Reverse(v)));
    }

    /// `v` may run from now on.
    fn release(&mut self, v: u32) {
        self.turn += 1;
        self.since[v as usize] = self.turn;
        self.offer(v);
    }

    /// One thing less that `v` waits for.
    fn advance(&mut self, v: u32) {
        self.waits[v as usize] -= 1;
        if self.waits[v as usize] == 0 {
            self.release(v);
        }
    }

    fn run(&mut self, v: usize) {
        let problem = self.problem;
        self.done[v] = true;
        for &s in problem.reads.of(v) {
            self.readers[s as usize] -= 1;
            if self.readers[s as usize] == 1 {
                let mut readers = problem.readers.of(s as usize).iter();
                let last = readers.find(|&&r| !self.done[r as usize]);
                if let Some(&last) = last.filter(|&&r| self.waits[r as usize] == 0) {
                    self.offer(last);
                }
            }
        }
        for &s in problem.writes.of(v) {
            for &r in problem.readers.of(s as usize) {
                self.advance(r);
            }
        }
        for &u in problem.not_after.of(v) {
            self.advance(u);
        }
    }
}

#[cfg(test)]
mod tests {
    use rekindle_graph::Graph;

    use super::*;
    use crate::draft::needed_nodes;
    use crate::search::anneal::Found;
    use crate::testing::{chain, node};
    use rekindle_graph::{Bytes, Phase, Role, Storage, StorageId};

    /// Three branches from one input, each a large storage that is then made small. The graph's own
    /// order makes all the large ones first; one branch after the other holds one of them at a
    /// time.
    #[test]
    fn branches_go_one_after_the_other() {
        let mut parts = chain(1).into_parts();
        let storage = |bytes, role| Storage { bytes: Bytes(bytes), role };
        parts.storages = vec![storage(1, Role::Input)];
        parts.storages.extend(vec![storage(100, Role::Activation); 3]);
        parts.storages.extend(vec![storage(1, Role::Other); 3]);
        parts.nodes = vec![node("x", Phase::Input, &[], &[0])];
        for i in 1..4 {
            parts.nodes.push(node("large", Phase::Forward, &[0], &[i]));
        }
        for i in 1..4 {
            parts.nodes.push(node("small", Phase::Forward, &[i], &[i + 3]));
        }
        parts.outputs = (4..7).map(StorageId).collect();
        parts.targets.clear();
        let graph = Graph::new(parts).expect("a graph");
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        assert_eq!(Found::of_order(&problem, &problem.natural).peak, 302);
        let order = with_few_bytes(&problem);
        assert_eq!(Found::of_order(&problem, &order).peak, 104);
    }

    #[test]
    fn an_update_waits_for_the_last_reader() {
        let mut parts = chain(2).into_parts();
        let mut update = node("update", Phase::Optimizer, &[0], &[]);
        update.updates = vec![StorageId(0)];
        update.effect = rekindle_graph::Effect::Once;
        parts.nodes.push(update);
        let graph = Graph::new(parts).expect("a graph");
        let problem = Problem::new(&graph, &needed_nodes(&graph));
        let order = with_few_bytes(&problem);
        let at = |v: u32| order.iter().position(|&w| w == v);
        // Node 1 reads the input.
        assert!(at(5) > at(1));
        assert_eq!(order.len(), problem.natural.len());
    }
}
