//! Per-block checkpointing, as PyTorch users do it by hand, for comparison.
//!
//! In: a graph whose nodes have the names of modules. Out: a draft, whatever the budget: the method
//! has no budget.
//!
//! Method. A *block* is an entry of a list of modules: the part of a node's name up to its first
//! number, such as `layer3.17` or `encoder.layer.4`. Each block is checkpointed (`segments`): its
//! input is kept, and all of it runs again for its backward pass, the last block too. What lies
//! outside of blocks is kept.
//!
//! Limits: without such names, as in a graph that was captured after its modules were gone, nothing
//! is dropped.

use rekindle_graph::{Bytes, Graph, Phase};

use crate::draft::Draft;
use crate::segments::{self, Segments};
use crate::{Options, Strategy, Watch};

/// See the module's documentation.
pub(crate) const STRATEGY: Strategy = Strategy {
    name: "blocks",
    title: "per-block",
    about: "checkpoints every residual block or layer, as is usual in PyTorch: its input is kept, \
            and all of it runs again.",
    heeds_budget: false,
    needs_store: false,
    draft,
    lowest: draft,
};

/// The draft that checkpoints every block.
fn draft(graph: &Graph, _: Bytes, _: &Options, _: &mut dyn Watch) -> Draft {
    segments::draft(graph, &cut(graph))
}

/// A segment for each stretch of forward nodes of one block, or of none.
fn cut(graph: &Graph) -> Segments {
    let mut segments = Segments { of: vec![None; graph.nodes().len()], kept: Vec::new() };
    let mut current = None;
    let nodes = graph.node_ids().zip(graph.nodes());
    for (id, node) in nodes.filter(|(_, node)| node.phase == Phase::Forward) {
        let block = block(&node.name);
        if current != Some(block) {
            current = Some(block);
            segments.kept.push(block.is_none());
        }
        segments.of[id.index()] = Some(segments.kept.len() - 1);
    }
    segments
}

/// The block that a node's name places it in.
fn block(name: &str) -> Option<&str> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        if is_number(part) && end > part.len() {
            return Some(&name[..end]);
        }
        end += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::chain;
    use rekindle_graph::Graph;

    #[test]
    fn a_block_is_the_name_up_to_its_first_number() {
        assert_eq!(block("layer3.17.conv2"), Some("layer3.17"));
        assert_eq!(block("layer1.0.downsample.0"), Some("layer1.0"));
        assert_eq!(block("encoder.layer.4.attention"), Some("encoder.layer.4"));
        assert_eq!(block("h.11"), Some("h.11"));
        for name in ["conv1", "fc", "add_3", "7", "bn1.stats", ""] {
            assert_eq!(block(name), None, "{name}");
        }
    }

    /// A chain whose middle forward nodes are two blocks of two.
    fn blocks() -> Graph {
        let mut parts = chain(6).into_parts();
        let names = ["stem", "h.0.a", "h.0.b", "h.1.a", "h.1.b", "head"];
        let forward = parts.nodes.iter_mut().filter(|n| n.phase == Phase::Forward);
        for (node, name) in forward.zip(names) {
            node.name = name.into();
        }
        Graph::new(parts).expect("renaming keeps a graph valid")
    }

    #[test]
    fn every_block_runs_again_from_its_input_and_nothing_else_does() {
        let graph = blocks();
        let draft = segments::draft(&graph, &cut(&graph));
        let runs = draft.schedule.runs();
        let runs = runs.map(|id| graph.node(id).name.as_str());
        // The last node of a block makes the next one's input, which is kept.
        let expected = "stem h.0.a h.0.b h.1.a h.1.b head b5 b4 h.1.a b3 b2 h.0.a b1 b0";
        assert_eq!(runs.collect::<Vec<_>>().join(" "), expected);
    }

    #[test]
    fn without_blocks_nothing_is_dropped() {
        let graph = chain(6);
        let draft = segments::draft(&graph, &cut(&graph));
        assert_eq!(draft.schedule, Draft::plain(&graph).schedule);
    }
}
