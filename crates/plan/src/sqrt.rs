//! Chen's √n segments (arXiv 1604.06174), for comparison.
//!
//! In: a graph. Out: a draft, whatever the budget: the method has no budget.
//!
//! Method. The n forward nodes, in their own order, are cut into about √n segments of about √n nodes.
//! What a later segment's forward pass reads is kept, and so is the last segment, whose backward pass
//! comes next; everything else that a segment makes is dropped at the end of the forward pass. When the backward pass first reads something that was dropped, the
//! whole segment it belongs to runs again, as far as the backward pass needs it.
//!
//! Invariants: the natural order is kept; a node runs at most twice. What cannot be made again
//! (its node may run only once, or reads what has been overwritten by then) is kept.
//!
//! Limits: on a graph without a backward phase nothing is dropped.

use remat_graph::{Effect, Graph, NodeId, Phase, StorageId};

use crate::draft::Draft;
use crate::rebuild::Rebuild;

/// The draft of √n segments.
pub(crate) fn draft(graph: &Graph) -> Draft {
    let segments = segments(graph);
    let kept = kept_storages(graph, &segments);
    Draft::of_order(graph, &order(graph, &segments, &kept))
}

/// Which segment each node belongs to; `None` outside the forward pass.
fn segments(graph: &Graph) -> Vec<Option<usize>> {
    let is_forward = |id: &NodeId| graph.node(*id).phase == Phase::Forward;
    let forward: Vec<NodeId> = graph.node_ids().filter(is_forward).collect();
    let length = (forward.len() as f64).sqrt().ceil().max(1.0) as usize;
    let mut segments = vec![None; graph.nodes().len()];
    for (i, id) in forward.iter().enumerate() {
        segments[id.index()] = Some(i / length);
    }
    segments
}

/// What is kept from the forward pass to the backward pass; indexed by storage.
fn kept_storages(graph: &Graph, segments: &[Option<usize>]) -> Vec<bool> {
    let mut kept = vec![false; graph.storages().len()];
    let last = segments.iter().flatten().max().copied();
    for s in graph.storage_ids() {
        let home = segments[graph.writer(s).index()];
        let crosses = |r: &NodeId| segments[r.index()].is_some() && segments[r.index()] != home;
        kept[s.index()] = home.is_none()
            || home == last
            || graph.storage(s).role.is_persistent()
            || graph.readers(s).iter().any(crosses);
    }
    for &s in graph.outputs() {
        kept[s.index()] = true;
    }
    // Keeping more makes a segment run again later or not at all; later, more of what it reads may
    // have been overwritten. Each round keeps at least one storage more, so this ends.
    while keep_outputs_of_fixed_nodes(graph, segments, &mut kept) {}
    kept
}

/// Keeps what nodes make that cannot run again with their segment. Says whether anything changed.
fn keep_outputs_of_fixed_nodes(
    graph: &Graph,
    segments: &[Option<usize>],
    kept: &mut [bool],
) -> bool {
    let dropped = dropped_by_segment(graph, segments, kept);
    let end = end_of_forward(segments);
    let first_use = |s: &StorageId| {
        let mut readers = graph.readers(*s).iter();
        readers.find(|r| r.index() > end).copied()
    };
    let runs_again: Vec<Option<NodeId>> = dropped
        .iter()
        .map(|list| list.iter().filter_map(first_use).min())
        .collect();
    let mut changed = false;
    for (id, node) in graph.node_ids().zip(graph.nodes()) {
        let Some(when) = segments[id.index()].and_then(|segment| runs_again[segment]) else {
            continue;
        };
        let overwritten = |&r: &StorageId| graph.updater(r).is_some_and(|u| u < when);
        if node.effect == Effect::Once || node.reads.iter().any(overwritten) {
            for w in &node.writes {
                changed |= !std::mem::replace(&mut kept[w.index()], true);
            }
        }
    }
    changed
}

fn order(graph: &Graph, segments: &[Option<usize>], kept: &[bool]) -> Vec<NodeId> {
    let dropped_by_segment = dropped_by_segment(graph, segments, kept);
    let mut rebuild = Rebuild::new(graph);
    let end = end_of_forward(segments);
    for id in graph.natural_order() {
        for &read in &graph.node(id).reads {
            if !rebuild.is_live(read) {
                let segment = segments[graph.writer(read).index()].expect("only those are dropped");
                for &storage in &dropped_by_segment[segment] {
                    rebuild.ensure(storage);
                }
            }
        }
        rebuild.run(id);
        if id.index() == end {
            for s in graph.storage_ids().filter(|s| !kept[s.index()]) {
                rebuild.drop_storage(s);
            }
        }
    }
    rebuild.order
}

/// The last forward node, after which storages are dropped.
fn end_of_forward(segments: &[Option<usize>]) -> usize {
    segments.iter().rposition(Option::is_some).unwrap_or(0)
}

/// The dropped storages of each segment that are read after the forward pass, ascending.
fn dropped_by_segment(
    graph: &Graph,
    segments: &[Option<usize>],
    kept: &[bool],
) -> Vec<Vec<StorageId>> {
    let count = segments.iter().flatten().max().map_or(0, |last| last + 1);
    let end = end_of_forward(segments);
    let mut dropped = vec![Vec::new(); count];
    for s in graph.storage_ids().filter(|s| !kept[s.index()]) {
        if let Some(segment) = segments[graph.writer(s).index()]
            && graph.readers(s).iter().any(|r| r.index() > end)
        {
            dropped[segment].push(s);
        }
    }
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::chain;
    use remat_graph::Timeline;

    #[test]
    fn nine_nodes_make_three_segments_and_each_runs_again_from_its_boundary() {
        let graph = chain(9);
        let draft = draft(&graph);
        let runs = draft.steps.iter().filter_map(|step| match step {
            remat_graph::Step::Run(id) => Some(graph.node(*id).name.as_str()),
            remat_graph::Step::Free(_) => None,
        });
        let runs: Vec<&str> = runs.collect();
        // Segments f0–f2, f3–f5, f6–f8; f2 and f5 cross and are kept, so they do not run again.
        let expected = "f0 f1 f2 f3 f4 f5 f6 f7 f8 b8 b7 b6 b5 f3 f4 b4 b3 b2 f0 f1 b1 b0";
        assert_eq!(runs.join(" "), expected);
        // Highest at b8: the input, f2, f5, f6, f7, f8 and the new gradient.
        let timeline = Timeline::new(&graph, &draft.steps).expect("valid");
        assert_eq!(timeline.peak.get(), 1 + 6 * 10);
        assert_eq!(Timeline::natural(&graph).peak.get(), 1 + 10 * 10);
    }
}
