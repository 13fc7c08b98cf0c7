//! From the set of dropped activations to an order of runs.
//!
//! Method: the natural order is kept. A dropped activation is forgotten after its last forward use.
//! Just before its first backward use, its sub-graph runs from what is live; what the sub-graph
//! makes on the way is forgotten at once, and the activation itself after its last backward use.
//! Activations that are first used by the same node are rebuilt together.

use rekindle_analysis::ActivationUses;
use rekindle_graph::{Effect, Graph, NodeId, Phase, StorageId};

use crate::rebuild::Rebuild;

/// The order in which the activations marked in `dropped` are recomputed; `None` if that would run
/// a node that cannot run again at that point.
pub(super) fn order(
    graph: &Graph,
    activations: &[ActivationUses],
    dropped: &[bool],
) -> Option<Vec<NodeId>> {
    let events = Events::new(graph, activations, dropped);
    let mut rebuild = Rebuild::new(graph);
    let mut updated = vec![false; graph.storages().len()];
    for id in graph.natural_order() {
        let at = id.index();
        let (first, mut made) = (rebuild.order.len(), Vec::new());
        for &storage in &events.rebuilt_before[at] {
            made.extend(rebuild.ensure(storage));
        }
        let mut again = rebuild.order[first..].iter();
        if !again.all(|&n| may_run_again(graph, n, &updated)) {
            return None;
        }
        for storage in made {
            let on_the_way = !events.rebuilt_before[at].contains(&storage);
            if on_the_way && events.forgotten_by_default[storage.index()] {
                rebuild.drop_storage(storage);
            }
        }
        rebuild.run(id);
        for u in &graph.node(id).updates {
            updated[u.index()] = true;
        }
        for &storage in &events.forgotten_after[at] {
            rebuild.drop_storage(storage);
        }
    }
    Some(rebuild.order)
}

fn may_run_again(graph: &Graph, id: NodeId, updated: &[bool]) -> bool {
    let node = graph.node(id);
    node.effect != Effect::Once && !node.reads.iter().any(|r| updated[r.index()])
}

/// What happens where; indexed by node, or by storage.
struct Events {
    /// Dropped activations whose first backward use this is.
    rebuilt_before: Vec<Vec<StorageId>>,
    /// Storages that are not there for a recomputation after this node.
    forgotten_after: Vec<Vec<StorageId>>,
    /// Storages that do not stay when they are made on the way to something else.
    forgotten_by_default: Vec<bool>,
}

impl Events {
    fn new(graph: &Graph, activations: &[ActivationUses], dropped: &[bool]) -> Events {
        let nodes = graph.nodes().len();
        let mut events = Events {
            rebuilt_before: vec![Vec::new(); nodes],
            forgotten_after: vec![Vec::new(); nodes],
            forgotten_by_default: vec![false; graph.storages().len()],
        };
        let mut is_kept = vec![false; graph.storages().len()];
        for (activation, &dropped) in activations.iter().zip(dropped) {
            if !dropped {
                is_kept[activation.storage.index()] = true;
                continue;
            }
            let storage = activation.storage;
            events.rebuilt_before[activation.first_backward.index()].push(storage);
            for after in [activation.idle_after(), activation.last] {
                events.forgotten_after[after.index()].push(storage);
            }
        }
        for &s in graph.outputs() {
            is_kept[s.index()] = true;
        }
        events.forget_temporaries(graph, &is_kept);
        events
    }

    /// What only the forward pass uses is gone after its last use there.
    fn forget_temporaries(&mut self, graph: &Graph, is_kept: &[bool]) {
        for s in graph.storage_ids() {
            let writer = graph.writer(s);
            let stays = is_kept[s.index()] || graph.storage(s).role.is_persistent();
            if graph.node(writer).phase == Phase::Forward && !stays {
                let last_use = *graph.readers(s).last().unwrap_or(&writer);
                self.forgotten_by_default[s.index()] = true;
                self.forgotten_after[last_use.index()].push(s);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rekindle_analysis::activations;

    use super::*;
    use crate::testing::chain;

    /// f0 → f1 → f2 → f3, then b3, b2, b1, b0 in which `b_i` reads what `f_i` made.
    #[test]
    fn a_dropped_activation_is_rebuilt_just_before_its_first_backward_use() {
        let graph = chain(4);
        let activations = activations(&graph);
        let names = |dropped: [bool; 4]| -> Vec<String> {
            let order = order(&graph, &activations, &dropped).expect("all may run again");
            order.iter().map(|&n| graph.node(n).name.clone()).collect()
        };
        assert_eq!(names([false; 4]), ["f0", "f1", "f2", "f3", "b3", "b2", "b1", "b0"]);
        assert_eq!(
            names([false, true, false, false]),
            ["f0", "f1", "f2", "f3", "b3", "b2", "f1", "b1", "b0"]
        );
        // f2 is made from f1, which is dropped too: f1 runs for it, is forgotten, and runs again.
        assert_eq!(
            names([false, true, true, false]),
            ["f0", "f1", "f2", "f3", "b3", "f1", "f2", "b2", "f1", "b1", "b0"]
        );
    }
}
