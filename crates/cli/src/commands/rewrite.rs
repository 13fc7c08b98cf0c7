//! `rekindle rewrite`: a plan becomes an ordinary graph.

use std::path::PathBuf;

use rekindle_graph::{NodeId, StorageId, Transfer, one_line, read_plan};
use rekindle_rewrite::{Extraction, Rewritten, dot, rewrite};
use rekindle_verify::{Audit, verify_rewritten};
use serde_json::{Value, json};

use crate::{input, output};

/// Turn a plan into an ordinary graph in which recomputations and transfers are nodes
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rekindle rewrite corpus/unet-b8.json plan.json --out rewritten.json
  rekindle rewrite corpus/unet-b8.json plan.json --explain --dot rewritten.dot")]
pub(crate) struct Arguments {
    /// Graph of the training step, a remat.graph/1 file
    graph: PathBuf,
    /// The plan, a remat.plan/1 or remat.plan/2 file
    plan: PathBuf,
    /// Write the rewritten graph to this file (remat.graph/1)
    #[arg(long, value_name = "GRAPH.json")]
    out: Option<PathBuf>,
    /// List each recomputation: the nodes that run again, what they read and where they run
    #[arg(long)]
    explain: bool,
    /// Write the rewritten graph to this file for Graphviz, with recomputed nodes and transfers
    /// coloured
    #[arg(long, value_name = "FILE.dot")]
    dot: Option<PathBuf>,
    /// Print the summary and the sub-graphs as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let inputs = [Some(&arguments.graph), Some(&arguments.plan)];
    output::check_outputs(&[arguments.out.as_ref(), arguments.dot.as_ref()], &inputs)?;
    let graph = input::graph(&arguments.graph)?;
    let plan = read_plan(&arguments.plan)?;
    let rewritten = rewrite(&graph, &plan)?;
    let origins = rewritten.origins();
    let audit = verify_rewritten(&graph, &plan, &rewritten.graph, origins)?;
    if let Some(path) = &arguments.out {
        output::write(path, &rewritten.graph.to_json())?;
    }
    if let Some(path) = &arguments.dot {
        output::write(path, &dot(&rewritten))?;
    }
    if arguments.json {
        println!("{:#}", report(&rewritten, &audit));
        return Ok(());
    }
    let moves = match transfers(&rewritten) {
        [0, 0, 0] => String::new(),
        [out, back, waits] => format!(", {out} offload, {back} fetch and {waits} wait"),
    };
    println!(
        "{}: {} nodes, of which {} recompute{moves}; {} storages rebuilt; peak {}",
        one_line(graph.name()),
        rewritten.graph.nodes().len(),
        audit.recomputed,
        rewritten.extractions.len(),
        audit.peak
    );
    if arguments.explain {
        for extraction in &rewritten.extractions {
            print!("{}", explain(&rewritten, extraction));
        }
    }
    Ok(())
}

/// Names of nodes and storages are those of the rewritten graph.
fn report(rewritten: &Rewritten, audit: &Audit) -> Value {
    let graph = &rewritten.graph;
    let name = |id: &NodeId| graph.node(*id).name.as_str();
    let extraction = |e: &Extraction| {
        json!({
            "storage": graph.storage_name(e.storage),
            "bytes": graph.storage(e.storage).bytes.get(),
            "nodes": e.nodes.iter().map(name).collect::<Vec<_>>(),
            "sources": e.sources.iter().map(|&s| graph.storage_name(s)).collect::<Vec<_>>(),
            "before": e.before.as_ref().map(name),
        })
    };
    let mut told = json!({
        "graph": graph.name(),
        "nodes": graph.nodes().len(),
        "recomputed_runs": audit.recomputed,
        "peak_bytes": audit.peak.get(),
        "time_us": audit.time.get(),
        "extractions": rewritten.extractions.iter().map(extraction).collect::<Vec<_>>(),
    });
    let [out, back, waits] = transfers(rewritten);
    if out + back + waits > 0 {
        told["offloads"] = json!(out);
        told["fetches"] = json!(back);
        told["waits"] = json!(waits);
    }
    told
}

/// How many nodes offload, fetch and wait.
fn transfers(rewritten: &Rewritten) -> [usize; 3] {
    let nodes = rewritten.graph.nodes();
    Transfer::ALL.map(|kind| nodes.iter().filter(|n| n.transfer() == Some(kind)).count())
}

fn explain(rewritten: &Rewritten, extraction: &Extraction) -> String {
    let graph = &rewritten.graph;
    let name = |id: &NodeId| graph.node(*id).shown_name();
    let storage = |id: StorageId| graph.shown_storage_name(id);
    let nodes: Vec<String> = extraction.nodes.iter().map(name).collect();
    let before = extraction.before.as_ref().map_or("the end of the step".into(), name);
    let sources = extraction.sources.iter().map(|&source| storage(source));
    let sources = match extraction.sources.is_empty() {
        true => "nothing".into(),
        false => sources.collect::<Vec<_>>().join(", "),
    };
    format!(
        "{} ({}), before {before}\n  runs {}\n  starts from {sources}\n",
        storage(extraction.storage),
        graph.storage(extraction.storage).bytes,
        nodes.join(", "),
    )
}
