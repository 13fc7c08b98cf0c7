//! `rekindle models`: what there is to train.

use rekindle_analysis::activations;
use rekindle_graph::Bytes;
use rekindle_models::{Model, ModelOptions, build, names};
use serde_json::json;

/// List the models: their parameters, and the bytes of activations that each sample of a batch adds
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rekindle models
  rekindle models --json
  rekindle models --ops")]
pub(crate) struct Arguments {
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
    /// List the operators of ONNX files that can be trained through, instead
    #[arg(long)]
    ops: bool,
}

/// What is told about one model.
struct Row {
    name: &'static str,
    parameters: usize,
    activations: Bytes,
    input: &'static str,
}

/// Activations are counted at two batch sizes; their difference is what a sample adds.
const BATCHES: [usize; 2] = [1, 2];

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.ops {
        return list_operators(arguments.json);
    }
    let rows = names().map(row).collect::<anyhow::Result<Vec<Row>>>()?;
    if arguments.json {
        let row = |r: &Row| {
            json!({
                "name": r.name,
                "parameters": r.parameters,
                "activation_bytes_per_sample": r.activations.get(),
                "input": r.input,
            })
        };
        println!("{:#}", json!(rows.iter().map(row).collect::<Vec<_>>()));
        return Ok(());
    }
    println!("{:<18} {:>12} {:>22}   of a sample of", "model", "parameters", "activations");
    for row in &rows {
        println!(
            "{:<18} {:>12} {:>22}   {}",
            row.name,
            millions(row.parameters),
            row.activations.to_string(),
            row.input
        );
    }
    Ok(())
}

fn list_operators(json: bool) -> anyhow::Result<()> {
    let operators = rekindle_onnx::operators();
    match json {
        true => println!("{:#}", json!(operators)),
        false => operators.iter().for_each(|operator| println!("{operator}")),
    }
    Ok(())
}

fn row(name: &'static str) -> anyhow::Result<Row> {
    let [one, two] =
        BATCHES.map(|batch| build(name, &ModelOptions { batch, ..Default::default() }));
    let (one, two) = (one?, two?);
    let counted = |model: &Model| -> Bytes {
        let graph = rekindle_engine::lower(&model.program, 1);
        activations(&graph).iter().map(|a| a.bytes).sum()
    };
    let input = match one.program.tensor(one.inputs[0].tensor).shape.len() {
        4 => "224 × 224 pixels",
        _ if name.starts_with("mlp") => "1024 features",
        _ => "128 tokens",
    };
    let activations = counted(&two) - counted(&one);
    Ok(Row { name, parameters: one.parameter_count(), activations, input })
}

/// `25.6 M`
pub(crate) fn millions(count: usize) -> String {
    format!("{:.1} M", count as f64 / 1e6)
}
