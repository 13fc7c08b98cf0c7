//! `remat demo`: the whole way from a model to a step in little memory, on two models at two batch sizes each, with a
//! report at the end.
//!
//! Everything that it shows is written to the folder as the other verbs would write it, so that each can go on from there.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use remat::{FitOptions, check_numbers, plain_peak};
use remat_engine::Engine;
use remat_graph::{Bytes, Graph, write_atomically};
use remat_models::{Model, ModelOptions, build};
use remat_plan::{Effort, Options, Strategy};
use remat_profile::{HostSpill, MeasureOptions, measure, write_profile};
use remat_program::Optimizer;

use super::compare::{Planned, Row, table};
use super::models::millions;
use super::profile::write_batch;
use super::run::check_text;
use super::stages::{self, Lines, Times};
use super::{frontier, pair, report};
use crate::exit::Promised;
use crate::progress::{Bar, Meter};

/// Train ResNet-152 and BERT-base in little memory: profile, plan, rewrite, verify, compare, report
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Threads that run a kernel [default: all cores]
    #[arg(long, value_name = "N", value_parser = super::step::parse_count)]
    threads: Option<usize>,
    /// Where the files and the report go; made if it is not there
    #[arg(long, value_name = "DIR", default_value = "remat-report")]
    out: PathBuf,
}

/// What is shown.
struct Example {
    title: &'static str,
    model: &'static str,
    batches: [usize; 2],
    /// Of the plain step's peak.
    budget_percent: u64,
}

/// Small enough for two cores and a few minutes, large enough that activations are most of what can be saved. BERT's
/// embedding and its gradient stay whatever the plan, so its budget is the larger one.
const EXAMPLES: [Example; 2] = [
    Example {
        title: "ResNet-152, images of 224 × 224",
        model: "resnet152",
        batches: [2, 4],
        budget_percent: 50,
    },
    Example {
        title: "BERT-base, texts of 128 tokens",
        model: "bert-base",
        batches: [3, 4],
        budget_percent: 75,
    },
];

/// Steps whose times count in a profile, after one of warm-up.
const PROFILED_STEPS: usize = 1;
/// Measured steps of the comparison, after one of warm-up.
const STEPS: usize = 2;
/// Steps that are compared bit by bit.
const CHECKED_STEPS: u64 = 1;
/// Points of each frontier, and the work for each: a curve in a few seconds.
const FRONTIER_POINTS: usize = 12;
const FRONTIER_EFFORT: u8 = 2;
/// Work for the plans that run: a quarter of the default, for plans that are nearly as good.
const EFFORT: u8 = 3;
/// Without momentum, so that the optimizer adds nothing to the memory.
const OPTIMIZER: Optimizer = Optimizer::Sgd {
    learning_rate: 0.01,
    momentum: 0.0,
    weight_decay: 0.0,
};

const INDENTED: Lines = Lines {
    shown: true,
    indent: "  ",
};

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let started = Instant::now();
    let out = &arguments.out;
    std::fs::create_dir_all(out)
        .with_context(|| format!("cannot make the folder {}", out.display()))?;
    let mut options = FitOptions::default();
    options.threads = arguments.threads.unwrap_or(options.threads);
    options.plan.effort = effort(EFFORT);
    options.measure = MeasureOptions {
        measured: PROFILED_STEPS,
        ..options.measure
    };
    println!("Remat trains a model in the memory you have. Two models, two batch sizes each:");
    let mut compared = Vec::new();
    for example in &EXAMPLES {
        let mut rows = Vec::new();
        for batch in example.batches {
            println!();
            rows.push(show(example, batch, &options, out)?);
        }
        let name = format!("{}.compare.csv", example.model);
        let strategy = options.plan.strategy.name();
        let csv = table::csv(example.model, strategy, &rows);
        write_atomically(&out.join(name), csv.as_bytes())?;
        compared.push((example, rows));
    }
    for (example, rows) in &compared {
        println!("\n{}", example.title);
        println!("{}", table::header());
        rows.iter().for_each(|row| println!("{}", table::line(row)));
    }
    let page = out.join("index.html");
    report::make(out, &page)?;
    println!(
        "\nThe same training, bit for bit, in less memory; every measured peak is the predicted one, to the byte."
    );
    println!(
        "report    {} (in {:.0} s)",
        page.canonicalize().unwrap_or(page).display(),
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// One model at one batch size: every stage, then both steps side by side.
fn show(example: &Example, batch: usize, options: &FitOptions, out: &Path) -> anyhow::Result<Row> {
    let model = build(
        example.model,
        &ModelOptions {
            batch,
            optimizer: Some(OPTIMIZER),
            ..ModelOptions::default()
        },
    )?;
    let parameters = millions(model.parameter_count());
    println!("{}, batch {batch} ({parameters} parameters)", example.title);
    let plain = plain_peak(&model, options.threads)?;
    let budget = Bytes(plain.arena.get() * example.budget_percent / 100);
    let started = Instant::now();
    let graph = profile(example.model, batch, &model, options, out)?;
    let times = Times::Measured(Box::new(graph.clone()), started.elapsed());
    let fitted = stages::fit(&model, plain, budget, times, options, None, &INDENTED)?.fitted;
    let stem = format!("{}_bs{batch}", example.model);
    let plan = stages::plan_of(&fitted).to_json();
    write_atomically(&out.join(format!("{stem}.plan.json")), plan.as_bytes())?;
    compare_plans(&graph, fitted.planned.plan.budget, &stem, out)?;
    let pair = pair::measure(&model, &fitted, STEPS, options.seed)?;
    if let Err(error) = &pair.plain {
        return Err(anyhow::anyhow!("the plain step cannot run here: {error}"));
    }
    if pair.same_losses() != Some(true) {
        return Err(Promised("the planned step gave other losses".into()).into());
    }
    // Once for each model: the losses of both steps are compared at every batch size.
    let checked = Some(&batch) == example.batches.first();
    if checked {
        let found = check_numbers(&model, &fitted, CHECKED_STEPS, options.seed)?;
        INDENTED.line("check", check_text(&found)?);
    }
    Ok(Row {
        batch,
        plain,
        budget,
        planned: Ok(Planned {
            fitted,
            pair,
            checked,
        }),
    })
}

/// Profiles the plain step, and writes the profile's files.
fn profile(
    name: &str,
    batch: usize,
    model: &Model,
    options: &FitOptions,
    out: &Path,
) -> anyhow::Result<Graph> {
    let mut engine = Engine::new(&model.program, options.threads)?;
    engine.fill_sources(options.seed);
    write_batch(&mut engine, model, options.seed)?;
    let mut bar = Bar::new(format!("profiling {name}, batch {batch}"));
    let mut watch = |at: remat_profile::Progress| bar.show(at.done as u64, at.total as u64, "");
    let measured = measure(
        &mut engine,
        &options.measure,
        &mut HostSpill::new(),
        &mut watch,
    )?;
    write_profile(out, &measured.profile(name, batch, "cpu"), &measured.graph)?;
    Ok(measured.graph)
}

/// What other budgets would cost, and what μ-TWO would do under this one, for the report.
fn compare_plans(graph: &Graph, budget: Bytes, stem: &str, out: &Path) -> anyhow::Result<()> {
    let options = |strategy| Options {
        strategy,
        effort: effort(FRONTIER_EFFORT),
    };
    let mut meter = Meter::new(None);
    let search = options(Strategy::Search);
    let found = remat_plan::frontier(graph, FRONTIER_POINTS, &search, &mut meter)?;
    let csv = frontier::csv(&found);
    write_atomically(&out.join(format!("{stem}.frontier.csv")), csv.as_bytes())?;
    // The greedy choice may not reach this budget; then there is nothing to show beside it.
    let greedy = remat_plan::plan(graph, budget, &options(Strategy::Mutwo), &mut meter);
    if let Ok(greedy) = greedy {
        let plan = greedy.plan.to_json();
        write_atomically(
            &out.join(format!("{stem}.mutwo.plan.json")),
            plan.as_bytes(),
        )?;
    }
    let points = found.points.len();
    INDENTED.line(
        "frontier",
        format!("{points} plans, from the plain peak down to the smallest (for the report)"),
    );
    Ok(())
}

fn effort(level: u8) -> Effort {
    Effort::new(level).expect("a level that there is")
}
