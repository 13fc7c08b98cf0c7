//! Chen's √n segments (arXiv 1604.06174), for comparison.
//!
//! In: a graph. Out: a draft, whatever the budget: the method has no budget.
//!
//! Method. The n forward nodes, in their own order, are cut into about √n segments of about √n
//! nodes, each checkpointed (`segments`). The last segment is kept: its backward pass comes next.

use rekindle_graph::{Bytes, Graph, NodeId, Phase};

use crate::draft::Draft;
use crate::segments::{self, Segments};
use crate::{Options, Strategy, Watch};

/// See the module's documentation.
pub(crate) const STRATEGY: Strategy = Strategy {
    name: "sqrt",
    title: "√n segments",
    about: "cuts the forward pass into √n segments of √n nodes and checkpoints each.",
    heeds_budget: false,
    needs_store: false,
    draft,
    lowest: draft,
};

/// The draft of √n segments.
fn draft(graph: &Graph, _: Bytes, _: &Options, _: &mut dyn Watch) -> Draft {
    segments::draft(graph, &cut(graph))
}

fn cut(graph: &Graph) -> Segments {
    let is_forward = |id: &NodeId| graph.node(*id).phase == Phase::Forward;
    let forward: Vec<NodeId> = graph.node_ids().filter(is_forward).collect();
    let length = (forward.len() as f64).sqrt().ceil().max(1.0) as usize;
    let mut of = vec![None; graph.nodes().len()];
    for (i, id) in forward.iter().enumerate() {
        of[id.index()] = Some(i / length);
    }
    let mut kept = vec![false; forward.len().div_ceil(length)];
    if let Some(last) = kept.last_mut() {
        *last = true;
    }
    Segments { of, kept }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::chain;
    use rekindle_graph::Timeline;

    #[test]
    fn nine_nodes_make_three_segments_and_each_runs_again_from_its_boundary() {
        let graph = chain(9);
        let draft = segments::draft(&graph, &cut(&graph));
        let runs = draft.schedule.runs();
        let runs = runs.map(|id| graph.node(id).name.as_str());
        let runs: Vec<&str> = runs.collect();
        // Segments f0–f2, f3–f5, f6–f8; f2 and f5 cross and are kept, so they do not run again.
        let expected = "f0 f1 f2 f3 f4 f5 f6 f7 f8 b8 b7 b6 b5 f3 f4 b4 b3 b2 f0 f1 b1 b0";
        assert_eq!(runs.join(" "), expected);
        // Highest at b8: the input, f2, f5, f6, f7, f8 and the new gradient.
        let timeline = Timeline::new(&graph, &draft.schedule).expect("valid");
        assert_eq!(timeline.peak.get(), 1 + 6 * 10);
        assert_eq!(Timeline::natural(&graph).peak.get(), 1 + 10 * 10);
    }
}
