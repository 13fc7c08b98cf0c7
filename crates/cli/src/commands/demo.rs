//! `remat demo`: the whole way from a model to a step in half its memory, on two small examples.

use remat::{FitOptions, check_numbers, plain_peak};
use remat_graph::Bytes;
use remat_models::{BertConfig, Model, ModelError, ModelOptions, build, build_bert};
use remat_program::Optimizer;

use super::models::millions;
use super::pair::{self, Pair};
use super::stages::{self, Lines, Staged, Times};
use crate::exit::Promised;
use crate::summary::percent;

/// Train two models in half their memory: profile, plan, rewrite, verify, run, compare
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Threads that run a kernel [default: all cores]
    #[arg(long, value_name = "N", value_parser = super::step::parse_count)]
    threads: Option<usize>,
}

/// What is shown.
struct Example {
    title: &'static str,
    batch: usize,
    build: fn(&ModelOptions) -> Result<Model, ModelError>,
}

/// Small enough for two cores and a minute, large enough that activations are most of the peak.
const EXAMPLES: [Example; 2] = [
    Example {
        title: "ResNet-50, 16 images of 96 × 96",
        batch: 16,
        build: |options| build("resnet50", options),
    },
    Example {
        title: "BERT of 8 layers with 256 columns, 8 texts of 128 tokens",
        batch: 8,
        build: |options| build_bert("bert-small", SMALL_BERT, options),
    },
];

const IMAGE_SIZE: usize = 96;
const SEQUENCE: usize = 128;
/// The usual proportions, with a small vocabulary: logits cannot be recomputed away.
const SMALL_BERT: BertConfig = BertConfig {
    vocab: 8000,
    ..BertConfig::new(256, 8, 4)
};
/// Of the plain step's peak.
const BUDGET_PERCENT: u64 = 50;

/// Measured steps, after one of warm-up.
const STEPS: usize = 3;
/// Steps that are compared bit by bit.
const CHECKED_STEPS: u64 = 1;
/// Without momentum, so that the optimizer adds nothing to the memory.
const OPTIMIZER: Optimizer = Optimizer::Sgd {
    learning_rate: 0.01,
    momentum: 0.0,
    weight_decay: 0.0,
};

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    println!("Remat trains a model in the memory you have.");
    let mut options = FitOptions::default();
    options.threads = arguments.threads.unwrap_or(options.threads);
    let mut all_equal = true;
    for example in &EXAMPLES {
        println!();
        all_equal &= show(example, &options)?;
    }
    println!();
    match all_equal {
        true => {
            println!("The same training, bit for bit, in less memory. Try your own:");
            println!("  remat run resnet50 --batch-size 8 --budget 60% --steps 5");
            println!("  remat compare resnet50 --batch-sizes 8,16 --budget 60%");
            Ok(())
        }
        false => Err(Promised("the planned step gave other numbers".into()).into()),
    }
}

/// Runs one example; whether its numbers are the same.
fn show(example: &Example, options: &FitOptions) -> anyhow::Result<bool> {
    let model = (example.build)(&ModelOptions {
        batch: example.batch,
        image_size: IMAGE_SIZE,
        sequence: SEQUENCE,
        optimizer: Some(OPTIMIZER),
        ..ModelOptions::default()
    })?;
    let parameters = millions(model.parameter_count());
    println!("{} ({parameters} parameters)", example.title);
    let lines = Lines {
        shown: true,
        indent: "  ",
    };
    let plain = plain_peak(&model, options.threads)?;
    let budget = Bytes(plain.arena.get() * BUDGET_PERCENT / 100);
    let staged = stages::fit(&model, plain, budget, Times::Plain, options, None, &lines)?;
    let pair = pair::measure(&model, &staged.fitted, STEPS, options.seed)?;
    let checked = check_numbers(&model, &staged.fitted, CHECKED_STEPS, options.seed)?;
    let same = match checked.is_equal() {
        true => "every bit the same".to_owned(),
        false => format!("{} tensors differ", checked.differences.len()),
    };
    lines.line("check", format!(
        "{} numbers (losses, gradients, parameters, buffers) after {CHECKED_STEPS} step: {same}",
        millions(checked.numbers)
    ));
    println!();
    table(&model, &staged, &pair)?;
    Ok(checked.is_equal() && pair.same_losses() == Some(true))
}

/// Characters of the longest bar.
const BAR: usize = 24;

fn table(model: &Model, staged: &Staged, pair: &Pair) -> anyhow::Result<()> {
    let plain = match &pair.plain {
        Ok(plain) => plain,
        Err(error) => return Err(anyhow::anyhow!("the plain step cannot run here: {error}")),
    };
    let planned = &pair.planned;
    let largest = plain.measured.arena.get() as f64;
    println!(
        "  {:<9} {:<BAR$} {:>12} {:>10} {:>12}",
        "", "peak memory", "", "a step", "last loss"
    );
    for (name, side) in [("plain", plain), ("planned", planned)] {
        let filled = (BAR as f64 * side.measured.arena.get() as f64 / largest).round() as usize;
        println!(
            "  {name:<9} {:<BAR$} {:>12} {:>8.3} s {:>12.6}",
            "█".repeat(filled),
            side.measured.arena.to_string(),
            side.time.as_secs_f64(),
            side.losses.last().copied().unwrap_or(f32::NAN),
        );
    }
    let saved = 1.0 - planned.measured.arena.get() as f64 / largest;
    println!(
        "  {:<9} {} less memory for {} more time ({} predicted); measured peaks are the predicted ones, to the byte",
        "",
        percent(saved),
        percent(pair.overhead().unwrap_or(0.0)),
        percent(staged.fitted.planned.overhead()),
    );
    debug_assert_eq!(
        planned.measured, staged.fitted.predicted,
        "{}",
        model.program.name
    );
    Ok(())
}
