//! Checkpointed segments of the forward pass: what √n segments and per-block checkpointing share.
//!
//! In: a graph, and [`Segments`] of its forward nodes. Out: a draft, whatever the budget: the
//! method has no budget.
//!
//! Method. What another segment's forward pass reads is kept, and everything that a segment not to
//! be run again makes. The rest is dropped at the end of the forward pass. When the backward pass
//! first reads something that was dropped, the whole segment it belongs to runs again, as far as
//! the backward pass needs it.
//!
//! Invariants: the natural order is kept; a node runs at most twice. What cannot be made again
//! (its node may run only once, or reads what has been overwritten by then) is kept.
//!
//! Limits: on a graph without a backward phase nothing is dropped.

use rekindle_graph::{Effect, Graph, NodeId, StorageId};

use crate::draft::Draft;
use crate::rebuild::Rebuild;

/// A division of the forward pass.
pub(crate) struct Segments {
    /// Which segment each node belongs to; `None` outside the forward pass. Indexed by node.
    pub(crate) of: Vec<Option<usize>>,
    /// Whether each segment keeps all that it makes and never runs again. Indexed by segment.
    pub(crate) kept: Vec<bool>,
}

/// The draft that runs each segment again for its backward pass.
pub(crate) fn draft(graph: &Graph, segments: &Segments) -> Draft {
    let kept = kept_storages(graph, segments);
    Draft::of_order(graph, &order(graph, &segments.of, &kept))
}

/// What is kept from the forward pass to the backward pass; indexed by storage.
fn kept_storages(graph: &Graph, segments: &Segments) -> Vec<bool> {
    let Segments { of, kept: all_kept } = segments;
    let mut kept = vec![false; graph.storages().len()];
    for s in graph.storage_ids() {
        let home = of[graph.writer(s).index()];
        let crosses = |r: &NodeId| of[r.index()].is_some() && of[r.index()] != home;
        kept[s.index()] = home.is_none_or(|segment| all_kept[segment])
            || graph.storage(s).role.is_persistent()
            || graph.readers(s).iter().any(crosses);
    }
    for &s in graph.outputs() {
        kept[s.index()] = true;
    }
    // Keeping more makes a segment run again later or not at all; later, more of what it reads may
    // have been overwritten. Each round keeps at least one storage more, so this ends.
    while keep_outputs_of_fixed_nodes(graph, of, &mut kept) {}
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
    let runs_again: Vec<Option<NodeId>> =
        dropped.iter().map(|list| list.iter().filter_map(first_use).min()).collect();
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
