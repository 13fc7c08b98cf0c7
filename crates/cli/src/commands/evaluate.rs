//! `rekindle evaluate`: how good trained weights are on data.

use std::path::PathBuf;
use std::sync::Arc;

use rekindle::Error;
use rekindle::train::{Evaluation, Metrics};
use rekindle_data::{Batches, Dataset, Skipped};
use rekindle_engine::{Engine, Layout, resident_peak};
use rekindle_graph::{Budget, Bytes, open_file, parse_budget};
use rekindle_models::weights;
use serde_json::json;

use super::stages::{self, Lines};
use super::train::budget::Memory;
use super::train::{DataArguments, ModelArguments, Source, check_classes};
use crate::exit::UsageError;
use crate::output::note;
use crate::progress::Bar;
use crate::summary::percent;

/// Evaluate trained weights on data: loss, accuracy, perplexity
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rekindle evaluate resnet18 --weights trained.safetensors --data images
  rekindle evaluate trained.onnx --data images
  rekindle evaluate gpt2 --weights trained.safetensors --tokenizer tokenizer.json --data text")]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    data: DataArguments,
    /// Weights, as `rekindle train --out` writes them [default: those of the ONNX file]
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Memory that the whole process may use: 3GiB, 800MiB or a number of bytes
    #[arg(long, value_parser = parse_budget, allow_hyphen_values = true)]
    budget: Option<Budget>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    use anyhow::Context as _;
    if let Some(path) = &arguments.weights {
        open_file(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    arguments.data.check()?;
    let lines = Lines { shown: !arguments.json, indent: "" };
    let source = Source::new(&arguments.model)?;
    if arguments.weights.is_none() && !source.is_file() {
        let why = "a model that is built in has no weights of its own; give those of a training \
                   with --weights";
        return Err(UsageError(why.into()).into());
    }
    let (wanted, answers) = source.wanted(&arguments.model)?;
    let options = arguments.data.options(arguments.model.classes, answers);
    let dataset = Dataset::open(&arguments.data.data, wanted, &options).map_err(Error::from)?;
    let classes = arguments.model.classes.or(dataset.class_count());
    let model = source.inferring(&arguments.model, classes)?;
    check_classes(&model, &dataset)?;
    lines.line("data", dataset.about());
    let threads = rekindle::FitOptions::default().threads;
    let layout = Layout::plain(&model.program, arguments.model.threads.unwrap_or(threads));
    let needed = layout.predicted().arena;
    let room = match arguments.budget {
        Some(Budget::Share(_)) => {
            let why = "a share of what? An evaluation recomputes nothing; give a budget in bytes";
            return Err(UsageError(why.into()).into());
        }
        budget => Memory { data: arguments.data.memory() }.arena(budget, needed)?,
    };
    if let Some(budget) = room.filter(|&room| needed > room) {
        return Err(Error::EvaluationDoesNotFit { budget, needed }.into());
    }
    lines.line("place", format!("an arena of {needed}"));
    let mut engine: Engine = stages::engine(&layout, 0)?;
    match &arguments.weights {
        Some(path) => weights::load(path, &model, |id, fill| engine.write_pieces(id, fill))
            .map_err(Error::from)?,
        None => source.load_into(&model, &mut engine)?,
    }
    let all = (0..dataset.len() as u32).collect();
    let (batch, bad_files) = (arguments.model.batch_size, arguments.data.bad_files());
    let batches = Batches::evaluation(Arc::new(dataset), all, batch, bad_files);
    let mut evaluation = Evaluation::beside(&layout, &model, batches)?;
    let mut bar = Bar::new("evaluating");
    let mut bad: Vec<PathBuf> = Vec::new();
    let metrics = evaluation.run(&mut engine, &mut |done, total, skipped: &[Skipped]| {
        for Skipped { path, why } in skipped {
            if !bad.contains(path) {
                note(&format!("skipped {}: {why}", path.display()));
                bad.push(path.clone());
            }
        }
        bar.show(done, total, "");
    })?;
    bar.clear();
    show(arguments, &metrics, &bad, needed);
    Ok(())
}

fn show(arguments: &Arguments, metrics: &Metrics, bad: &[PathBuf], arena: Bytes) {
    if arguments.json {
        let result = json!({
            "loss": metrics.loss,
            "accuracy": metrics.accuracy,
            "top5": metrics.top5,
            "perplexity": metrics.perplexity(),
            "rows": metrics.rows,
            "skipped_files": bad,
            "arena_bytes": arena.get(),
            "highest_resident_bytes": resident_peak().map(Bytes::get),
        });
        println!("{result:#}");
        return;
    }
    println!("\nloss        {:.6}", metrics.loss);
    if metrics.accuracy.is_finite() {
        println!("accuracy    {}", percent(metrics.accuracy));
        println!("top 5       {}", percent(metrics.top5));
        println!("perplexity  {:.4}", metrics.perplexity());
    }
    println!("of {} rows", metrics.rows);
}
