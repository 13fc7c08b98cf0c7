//! Local improvement: an order with recomputations gives up those that moving makes needless.
//!
//! In: an order of runs and the time of its best walk. Out: an order whose best walk takes no more
//! time.
//!
//! Method. A run that makes again what has been made before can be left out of any order: what it
//! would have made stays as it was made the last time, in memory or in the store, and the walk
//! decides which. Runs that only served it go too. The runs are tried by the time that is won for
//! each byte that then has to stay: several at once, fewer where that is no gain, more where it is.

use rekindle_graph::{Graph, NodeId};

/// Left out at once at the beginning, as a share of all that might be.
const FIRST_SHARE: usize = 8;

/// Tries to leave out runs of `order`, whose walk takes `time`. `walk` gives the time of an order's
/// best walk, or `None` when there is no more work to be done.
pub(super) fn leave_out(
    graph: &Graph,
    mut order: Vec<NodeId>,
    mut time: f64,
    walk: &mut dyn FnMut(&[NodeId]) -> Option<f64>,
) -> (Vec<NodeId>, f64) {
    let mut left: Vec<Run> = by_gain(graph, &order);
    let mut count = (left.len() / FIRST_SHARE).max(1);
    while !left.is_empty() {
        let chunk = count.min(left.len());
        let shorter = without(graph, &order, &left[..chunk]);
        let Some(found) = walk(&shorter) else {
            break;
        };
        if found < time {
            (order, time) = (shorter, found);
            left.drain(..chunk);
            count *= 2;
        } else if chunk == 1 {
            left.remove(0);
        } else {
            count = chunk / 2;
        }
    }
    (order, time)
}

/// A run: its node, and how many runs of that node come before it.
type Run = (NodeId, u32);

/// The runs that make something again, those first that win the most time for each byte.
fn by_gain(graph: &Graph, order: &[NodeId]) -> Vec<Run> {
    let mut runs: Vec<(f64, Run)> = Vec::new();
    let mut serves = vec![0.0f64; graph.storages().len()];
    let mut seen = vec![0u32; graph.nodes().len()];
    for &id in order {
        let node = graph.node(id);
        let before = seen[id.index()];
        seen[id.index()] += 1;
        let made = node.reads.iter().map(|r| std::mem::take(&mut serves[r.index()]));
        // What was made again for this run alone would go with it.
        let gain = node.time.get() + made.sum::<f64>();
        if before == 0 {
            continue;
        }
        let bytes: u64 = node.writes.iter().map(|&w| graph.storage(w).bytes.get()).sum();
        runs.push((gain / bytes.max(1) as f64, (id, before)));
        if let [only] = node.writes[..] {
            serves[only.index()] = gain;
        }
    }
    runs.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    runs.into_iter().map(|(_, run)| run).collect()
}

/// `order` without some runs, and without those that made something again for nobody else.
fn without(graph: &Graph, order: &[NodeId], out: &[Run]) -> Vec<NodeId> {
    let mut is_out = std::collections::BTreeSet::new();
    is_out.extend(out.iter().copied());
    let mut seen = vec![0u32; graph.nodes().len()];
    let mut kept: Vec<(NodeId, bool)> = Vec::with_capacity(order.len());
    for &id in order {
        let before = seen[id.index()];
        seen[id.index()] += 1;
        if !is_out.contains(&(id, before)) {
            kept.push((id, before > 0));
        }
    }
    let mut wanted = vec![false; graph.storages().len()];
    for s in graph.outputs() {
        wanted[s.index()] = true;
    }
    let mut shorter = Vec::with_capacity(kept.len());
    for (id, again) in kept.into_iter().rev() {
        let node = graph.node(id);
        if again && !node.writes.iter().any(|w| wanted[w.index()]) {
            continue;
        }
        for w in &node.writes {
            wanted[w.index()] = false;
        }
        for r in &node.reads {
            wanted[r.index()] = true;
        }
        shorter.push(id);
    }
    shorter.reverse();
    shorter
}
