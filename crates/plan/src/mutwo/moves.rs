//! From the set of swapped activations to a schedule that really moves them.
//!
//! In: an order of runs, and for each swapped activation the node before which it should come back.
//! Out: the schedule. Method, as in μ-TWO's Algorithm C: an activation is copied out right after
//! its last use in the forward pass, freed as soon as the copy is complete by a clock without
//! waits, and fetched where its transfer starts, or before the first run that reads it if that is
//! earlier. One whose copy would not be complete before it has to come back stays in memory.

use rekindle_analysis::ActivationUses;
use rekindle_graph::{Graph, NodeId, Schedule, Step, Store};

/// A swapped activation, and the node at which it starts to come back.
pub(super) type Swap<'a> = (&'a ActivationUses, NodeId);

/// The schedule of `order` in which the activations of `swaps` are moved.
pub(super) fn schedule(
    graph: &Graph,
    order: &[NodeId],
    swaps: &[Swap<'_>],
    store: &Store,
) -> Schedule {
    let mut begins = vec![0.0];
    let mut first_run = vec![usize::MAX; graph.nodes().len()];
    for (i, &id) in order.iter().enumerate() {
        begins.push(begins[i] + graph.node(id).time.get());
        first_run[id.index()] = first_run[id.index()].min(i);
    }
    let mut moves = Moves { before: vec![Vec::new(); order.len() + 1] };
    let mut by_start: Vec<&Swap<'_>> = swaps.iter().collect();
    by_start.sort_by_key(|(a, _)| (first_run[a.idle_after().index()], a.storage));
    let mut channel = 0.0f64;
    for (activation, back) in by_start {
        let s = activation.storage;
        let idle = first_run[activation.idle_after().index()] + 1;
        let reads = |id: &NodeId| graph.node(*id).reads.contains(&s);
        let next = (idle..order.len()).find(|&i| reads(&order[i])).unwrap_or(order.len());
        let fetched = first_run[back.index()].clamp(idle, next);
        let takes = graph.storage(s).bytes.get() as f64 / store.out_rate.get();
        let copied = channel.max(begins[idle]) + store.latency.get() + takes;
        let freed = begins.partition_point(|&begin| begin < copied);
        if freed < fetched {
            channel = copied;
            moves.before[idle].push(Step::Offload(s));
            moves.before[freed].push(Step::Free(s));
            moves.before[fetched].push(Step::Fetch(s));
        }
    }
    moves.insert(graph, order, store)
}

struct Moves {
    /// What happens before each position.
    before: Vec<Vec<Step>>,
}

impl Moves {
    fn insert(self, graph: &Graph, order: &[NodeId], store: &Store) -> Schedule {
        let mut steps = Vec::new();
        let mut before = self.before.into_iter();
        // What the run before gives back is free before anything is fetched.
        let of_order = Schedule::of_order(graph, order).steps;
        let mut pending = before.next().unwrap_or_default();
        for step in of_order {
            if let Step::Run(_) = step {
                pending.sort_by_key(|step| matches!(step, Step::Fetch(_)));
                steps.append(&mut pending);
                pending = before.next().unwrap_or_default();
            }
            steps.push(step);
        }
        steps.append(&mut pending);
        Schedule { steps, store: Some(*store), stored_at_start: Vec::new() }
    }
}
