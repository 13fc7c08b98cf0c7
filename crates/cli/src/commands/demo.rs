//! `rekindle demo`: the whole way from a model to a step in little memory, on two models at two
//! batch sizes each, with a report at the end.
//!
//! Everything that it shows is written to the folder as the other verbs would write it, so that
//! each can go on from there.

use std::path::{Path, PathBuf};
use std::time::Instant;

use rekindle::FitOptions;
use rekindle_analysis::write_profile;
use rekindle_engine::Layout;
use rekindle_graph::{Bytes, Graph, Store, write_atomically};
use rekindle_models::{Model, ModelOptions, build};
use rekindle_plan::{Effort, Options, Strategy};
use rekindle_profile::MeasureOptions;
use rekindle_program::Optimizer;
use rekindle_program::op::SgdOptions;
use serde_json::{Value, json};

use super::compare::{MeasuredPlan, Row, table};
use super::models::millions;
use super::offload::Offloading;
use super::profile::measured;
use super::run::check_text;
use super::stages::{self, Lines, Times};
use super::{frontier, pair, report};
use crate::exit::Promised;
use crate::output;
use crate::progress::Meter;

/// Train ResNet-152 and BERT-base in little memory: profile, plan, rewrite, verify, compare, report
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rekindle demo
  rekindle demo --small --out small-report
  rekindle demo --small --offload /var/tmp

It takes about three minutes on two cores, and 2 GiB of memory.")]
pub(crate) struct Arguments {
    /// Number of threads that compute [default: all cores]
    #[arg(long, value_name = "N", value_parser = super::step::parse_threads)]
    threads: Option<usize>,
    /// Folder for the results and the report; it is made if it does not exist
    #[arg(long, value_name = "DIR", default_value = "rekindle-report")]
    out: PathBuf,
    /// Use a tiny model, which takes seconds
    #[arg(long)]
    small: bool,
    /// Print the comparison as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    offloading: Offloading,
}

/// What is shown.
struct Example {
    title: &'static str,
    model: &'static str,
    batches: [usize; 2],
    /// Of the plain step's peak.
    budget_percent: u64,
}

/// Small enough for two cores and a few minutes, large enough that activations are most of what can
/// be saved. BERT's embedding and its gradient stay whatever the plan, so its budget is the larger
/// one.
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

/// Something that ends at once.
const SMALL_EXAMPLES: [Example; 1] = [Example {
    title: "A small transformer, texts of 128 tokens",
    model: "transformer-tiny",
    batches: [4, 8],
    budget_percent: 70,
}];

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
const OPTIMIZER: Optimizer =
    Optimizer::Sgd(SgdOptions { learning_rate: 0.01, momentum: 0.0, weight_decay: 0.0 });

/// How a demonstration goes.
struct Demo<'a> {
    options: FitOptions,
    offloading: &'a Offloading,
    out: &'a Path,
    /// What is told on the way; nothing if JSON is wanted.
    lines: Lines,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let started = Instant::now();
    let out = &arguments.out;
    arguments.offloading.check()?;
    output::make_folder(out)?;
    let mut options = FitOptions::default();
    options.threads = arguments.threads.unwrap_or(options.threads);
    options.plan.effort = effort(EFFORT);
    options.measure = MeasureOptions { measured: PROFILED_STEPS, ..options.measure };
    let lines = Lines { shown: !arguments.json, indent: "  " };
    if lines.shown {
        println!("Rekindle trains a model in the memory you have. Each model at two batch sizes:");
    }
    let demo = Demo { options, offloading: &arguments.offloading, out, lines };
    let examples = match arguments.small {
        true => &SMALL_EXAMPLES[..],
        false => &EXAMPLES[..],
    };
    let mut compared = Vec::new();
    for example in examples {
        compared.push((example, demo.example(example)?));
    }
    let page = out.join("index.html");
    report::make(out, &page)?;
    let page = page.canonicalize().unwrap_or(page);
    let seconds = started.elapsed().as_secs_f64();
    match arguments.json {
        true => println!("{:#}", demo.json(&compared, &page, seconds)),
        false => print_tables(&compared, &page, seconds),
    }
    Ok(())
}

fn print_tables(compared: &[(&Example, Vec<Row>)], page: &Path, seconds: f64) {
    for (example, rows) in compared {
        println!("\n{}", example.title);
        println!("{}", table::header());
        rows.iter().for_each(|row| println!("{}", table::line(row)));
    }
    println!(
        "\nThe same training, bit for bit, in less memory; every measured peak is the\npredicted \
         one, to the byte."
    );
    println!("report    {} (in {seconds:.0} s)", page.display());
}

impl Demo<'_> {
    /// A line before others.
    fn title(&self, text: &str) {
        if self.lines.shown {
            println!("{text}");
        }
    }

    /// One model at all its batch sizes, with the table of the comparison written.
    fn example(&self, example: &Example) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for batch in example.batches {
            self.title("");
            rows.push(self.show(example, batch)?);
        }
        let csv = table::csv(example.model, self.strategy(), &rows);
        self.write(&format!("{}.compare.csv", example.model), &csv)?;
        Ok(rows)
    }

    fn strategy(&self) -> &'static str {
        self.options.plan.strategy.name
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        Ok(write_atomically(&self.out.join(name), text.as_bytes())?)
    }

    fn json(&self, compared: &[(&Example, Vec<Row>)], page: &Path, seconds: f64) -> Value {
        let rows = compared
            .iter()
            .flat_map(|(example, rows)| table::json(example.model, self.strategy(), rows));
        json!({
            "report": page.display().to_string(),
            "seconds": seconds,
            "compared": rows.collect::<Vec<_>>(),
        })
    }

    /// One model at one batch size: every stage, then both steps side by side.
    fn show(&self, example: &Example, batch: usize) -> anyhow::Result<Row> {
        let model = build(
            example.model,
            &ModelOptions { batch, optimizer: Some(OPTIMIZER), ..ModelOptions::default() },
        )?;
        let parameters = millions(model.parameter_count());
        self.title(&format!("{}, batch {batch} ({parameters} parameters)", example.title));
        let plain = rekindle::plain(&model, self.options.threads);
        let options = &self.offloading.add(self.options.clone(), &plain, &self.lines)?;
        let budget = Bytes(plain.predicted().arena.get() * example.budget_percent / 100);
        let started = Instant::now();
        let graph = self.profile(example.model, batch, &model, &plain, options)?;
        let times = Times::Given(Box::new(graph.clone()), started.elapsed());
        let staged = stages::fit(&model, &plain, budget, times, options, None, &self.lines)?;
        let fitted = staged.fitted;
        let stem = format!("{}_bs{batch}", example.model);
        let plan = stages::plan_of(&fitted).to_json();
        let kind =
            if fitted.planned.plan.schedule.has_transfers() { "moving.plan" } else { "plan" };
        self.write(&format!("{stem}.{kind}.json"), &plan)?;
        self.compare_plans(&graph, fitted.planned.plan.budget, options.plan.store, &stem)?;
        let pair = pair::measure(&model, &plain, &fitted, STEPS, options.seed)?;
        if let Err(error) = &pair.plain {
            return Err(anyhow::anyhow!("the plain step cannot run here: {error}"));
        }
        if pair.same_losses() != Some(true) {
            return Err(Promised("the planned step gave other losses".into()).into());
        }
        // Once for each model: the losses of both steps are compared at every batch size.
        let checked = Some(&batch) == example.batches.first();
        if checked {
            let start = &|_: &mut rekindle::Trainer<'_>| Ok(());
            let found = stages::check_numbers(&model, &plain, &fitted, CHECKED_STEPS, start)?;
            self.lines.line("check", check_text(&found)?);
        }
        Ok(Row {
            batch,
            plain: plain.predicted(),
            budget,
            planned: Ok(MeasuredPlan { fitted, pair, checked }),
        })
    }

    /// Profiles the plain step, and writes the profile's files.
    fn profile(
        &self,
        name: &str,
        batch: usize,
        model: &Model,
        plain: &Layout,
        options: &FitOptions,
    ) -> anyhow::Result<Graph> {
        let what = format!("profiling {name}, batch {batch}");
        let found = measured::measure(&what, model, plain, options, None)?;
        write_profile(self.out, &found.profile(name, batch, "cpu"), &found.graph)?;
        Ok(found.graph)
    }

    /// What other budgets would cost, and what μ-TWO would do under this one, for the report.
    fn compare_plans(
        &self,
        graph: &Graph,
        budget: Bytes,
        store: Option<Store>,
        stem: &str,
    ) -> anyhow::Result<()> {
        let mut meter = Meter::new(None);
        let options =
            |strategy, store| Options { strategy, effort: effort(FRONTIER_EFFORT), store };
        let mut found = Vec::new();
        for store in [None].into_iter().chain(store.map(Some)) {
            let search = options(Strategy::SEARCH, store);
            let frontier = rekindle_plan::frontier(graph, FRONTIER_POINTS, &search, &mut meter)?;
            found.extend(frontier::points_of(graph, frontier, &search));
        }
        self.write(&format!("{stem}.frontier.csv"), &frontier::csv(&found))?;
        // The greedy choice may not reach this budget; then there is nothing to show beside it.
        let greedy =
            rekindle_plan::plan(graph, budget, &options(Strategy::MUTWO, None), &mut meter);
        if let Ok(greedy) = greedy {
            self.write(&format!("{stem}.mutwo.plan.json"), &greedy.plan.to_json())?;
        }
        let points = found.len();
        self.lines.line(
            "frontier",
            format!("{points} plans, from the plain peak down to the smallest (for the report)"),
        );
        Ok(())
    }
}

fn effort(level: u8) -> Effort {
    Effort::new(level).expect("a level that there is")
}
