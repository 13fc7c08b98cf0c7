//! An order of runs, as the walk sees it: who is used where, and what is live if nothing moves.
//!
//! In: a graph and an order of runs, with whatever runs again. Out: [`Lives`]. Positions `0..n` are
//! the runs, position `n` is the end of the training step.

use rekindle_graph::{Graph, NodeId, Phase, Schedule, Step, StorageId};

use crate::search::problem::Lists;
use crate::search::signed;

/// See the module's documentation.
pub(super) struct Lives {
    /// The runs.
    pub(super) order: Vec<NodeId>,
    /// The positions at which each storage is read or written, ascending.
    pub(super) uses: Lists,
    /// What is used for the last time at each position, and goes; one more list, at the end, for
    /// what is there at the start and is never used.
    pub(super) dead_after: Lists,
    /// Bytes during each run, scratch included, and at the end, if nothing is moved.
    pub(super) during: Vec<i64>,
    /// When each position begins if nothing waits.
    pub(super) begins: Vec<f64>,
    /// Where each storage is overwritten; past the end if nowhere.
    pub(super) updated_at: Vec<u32>,
    /// The size of each storage.
    pub(super) bytes: Vec<i64>,
    /// Whether a storage is there when the training step begins.
    pub(super) is_source: Vec<bool>,
    /// Whether a storage must be in memory at the end, unless it lives in the store.
    pub(super) ends_in_memory: Vec<bool>,
}

impl Lives {
    pub(super) fn new(graph: &Graph, order: Vec<NodeId>) -> Lives {
        let count = graph.storages().len();
        let mut is_source = vec![false; count];
        for s in graph.sources() {
            is_source[s.index()] = true;
        }
        let mut ends_in_memory: Vec<bool> =
            (0..count).map(|s| is_source[s] && graph.storages()[s].role.is_persistent()).collect();
        for s in graph.outputs() {
            ends_in_memory[s.index()] = true;
        }
        let touched = order.iter().enumerate().flat_map(|(i, &id)| {
            let node = graph.node(id);
            node.reads.iter().chain(&node.writes).map(move |s| (s.0, i as u32))
        });
        let mut begins = Vec::with_capacity(order.len() + 1);
        let mut now = 0.0;
        for &id in &order {
            begins.push(now);
            now += graph.node(id).time.get();
        }
        begins.push(now);
        let mut updated_at = vec![u32::MAX; count];
        for (i, &id) in order.iter().enumerate() {
            for u in &graph.node(id).updates {
                updated_at[u.index()] = i as u32;
            }
        }
        let (during, dead_after) = bytes_and_deaths(graph, &order, &is_source);
        Lives {
            uses: Lists::by_first(count, touched),
            dead_after,
            during,
            begins,
            updated_at,
            bytes: graph.storages().iter().map(|s| signed(s.bytes)).collect(),
            is_source,
            ends_in_memory,
            order,
        }
    }

    /// The position of the end.
    pub(super) fn end(&self) -> usize {
        self.order.len()
    }
}

/// Bytes during each run and at the end, and what goes after each run, with every storage freed
/// after its last use.
fn bytes_and_deaths(graph: &Graph, order: &[NodeId], is_source: &[bool]) -> (Vec<i64>, Lists) {
    let mut live = is_source.to_vec();
    let bytes = |s: StorageId| signed(graph.storage(s).bytes);
    let mut now: i64 = graph.sources().map(bytes).sum();
    let mut during = Vec::with_capacity(order.len() + 1);
    let mut deaths = Vec::new();
    for step in Schedule::of_order(graph, order).steps {
        match step {
            Step::Run(id) => {
                let node = graph.node(id);
                let mut scratch = signed(node.workspace);
                for &w in &node.writes {
                    match std::mem::replace(&mut live[w.index()], true) {
                        true => scratch += bytes(w),
                        false => now += bytes(w),
                    }
                }
                during.push(now + scratch);
            }
            Step::Free(s) => {
                live[s.index()] = false;
                now -= bytes(s);
                let after = during.len().checked_sub(1).unwrap_or(order.len());
                deaths.push((after as u32, s.0));
            }
            Step::Offload(_) | Step::Fetch(_) => {
                unreachable!("an order of runs moves nothing")
            }
        }
    }
    during.push(now);
    (during, Lists::by_first(order.len() + 1, deaths.iter().copied()))
}

/// `order` with every node that updates storages in place as early as it can run: after the last
/// run of whatever reads what it overwrites, and after what it reads is made. What it alone still
/// reads (a gradient) does not pile up then.
pub(super) fn with_early_updates(graph: &Graph, order: &[NodeId]) -> Vec<NodeId> {
    let mut last_touch = vec![0usize; graph.storages().len()];
    let mut early: Vec<Vec<NodeId>> = vec![Vec::new(); order.len() + 1];
    let mut stays = Vec::new();
    for (i, &id) in order.iter().enumerate() {
        let node = graph.node(id);
        let is_update = !node.updates.is_empty() && node.writes.is_empty();
        let at = match is_update && node.phase == Phase::Optimizer {
            true => {
                let reads = node.reads.iter().map(|r| last_touch[r.index()]);
                let at = reads.max().unwrap_or(0);
                early[at].push(id);
                at
            }
            false => {
                stays.push((i, id));
                i + 1
            }
        };
        for s in node.reads.iter().chain(&node.writes) {
            last_touch[s.index()] = at;
        }
    }
    let mut hoisted = Vec::with_capacity(order.len());
    hoisted.append(&mut early[0]);
    for (i, id) in stays {
        hoisted.push(id);
        hoisted.append(&mut early[i + 1]);
    }
    hoisted
}
