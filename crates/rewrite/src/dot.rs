//! A drawing of a rewritten graph in Graphviz's language: recomputed nodes and transfers are
//! coloured.

use std::fmt::Write as _;

use rekindle_graph::{NodeId, Phase};

use crate::Rewritten;

/// The whole graph: an arrow for each read, labelled with its bytes.
pub fn dot(rewritten: &Rewritten) -> String {
    let graph = &rewritten.graph;
    let mut out = format!("digraph \"{}\" {{\n", escape(graph.name()));
    out.push_str("  rankdir=TB; node [shape=box, style=filled, fillcolor=white];\n");
    for id in graph.node_ids() {
        let node = graph.node(id);
        let colour = match (rewritten.is_clone[id.index()], node.phase) {
            (true, _) => "orange",
            _ if node.transfer().is_some() => "plum",
            (false, Phase::Input) => "lightgrey",
            (false, Phase::Forward) => "white",
            (false, Phase::Backward) => "lightblue",
            (false, Phase::Optimizer) => "palegreen",
        };
        let name = escape(&node.name);
        writeln!(out, "  {id} [label=\"{name}\", fillcolor={colour}];").expect("a string");
    }
    for id in graph.node_ids() {
        for &read in &graph.node(id).reads {
            let writer: NodeId = graph.writer(read);
            let bytes = graph.storage(read).bytes;
            writeln!(out, "  {writer} -> {id} [label=\"{bytes}\"];").expect("a string");
        }
    }
    out.push_str("}\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
