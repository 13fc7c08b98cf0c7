//! `rekindle compare`: peak memory and latency with and without recomputation, per batch size.

pub(super) mod table;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rekindle::{Error, FitOptions, Fitted};
use rekindle_engine::{Layout, Peak};
use rekindle_graph::{Budget, Bytes, Graph, parse_budget};
use rekindle_models::Model;
use rekindle_report::{Compared, comparison};

use super::Planning;
use super::offload::Offloading;
use super::pair::{self, Pair};
use super::report::Reported;
use super::run::check_text;
use super::stages::{self, Lines, Times};
use super::step::{StepArguments, parse_count};
use crate::exit::{NothingFits, is_out_of_memory};
use crate::output;
use crate::progress::Meter;

/// Measure peak memory and latency with and without recomputation, per batch size
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rekindle compare resnet152 --batch-sizes 4,8,16 --budget 50%
  rekindle compare bert-base --batch-sizes 8,16 --budget 4GiB --charts charts
  rekindle compare bert-base --batch-sizes 8 --budget 40% --offload /var/tmp")]
pub(crate) struct Arguments {
    /// Batch sizes to measure; each is a row of the table
    #[arg(
        long,
        value_name = "N,N,…",
        value_delimiter = ',',
        default_value = "4,8",
        value_parser = parse_count
    )]
    batch_sizes: Vec<usize>,
    /// Memory that the whole step may use: 3GiB, 800MiB, a number of bytes, or a share such as 60%
    /// of each plain step's peak
    #[arg(long, default_value = "50%", value_parser = parse_budget, allow_hyphen_values = true)]
    budget: Budget,
    /// Where no plan fits in the budget, use the smallest budget that has one
    #[arg(long)]
    or_smallest: bool,
    /// Number of measured steps, plain and planned, after one warm-up step each
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = parse_count)]
    steps: usize,
    /// Also compare all numbers of the planned and the plain step bit by bit
    #[arg(long)]
    check: bool,
    /// Write the table to this file
    #[arg(long, value_name = "FILE.csv")]
    csv: Option<PathBuf>,
    /// Draw peak memory and step time in this folder; it is made if it does not exist
    #[arg(long, value_name = "DIR")]
    charts: Option<PathBuf>,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reported: Reported,
    #[command(flatten)]
    step: StepArguments,
    #[command(flatten)]
    planning: Planning,
    #[command(flatten)]
    offloading: Offloading,
}

/// What one batch size gave.
pub(crate) struct Row {
    pub(crate) batch: usize,
    /// Of the plain step, predicted; the planned one's is in `planned`.
    pub(crate) plain: Peak,
    pub(crate) budget: Bytes,
    /// Or why there is none.
    pub(crate) planned: Result<MeasuredPlan, String>,
}

/// The planned side of a row.
pub(crate) struct MeasuredPlan {
    pub(crate) fitted: Fitted,
    pub(crate) pair: Pair,
    /// Whether every number was compared and is the same.
    pub(crate) checked: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    output::check_outputs(&[arguments.csv.as_ref()], &[])?;
    arguments.offloading.check()?;
    arguments.reported.folder()?;
    if let Some(folder) = &arguments.charts {
        output::make_folder(folder)?;
    }
    let options = arguments.step.training.fit_options(arguments.planning.options());
    let first = arguments.step.build(arguments.batch_sizes[0])?;
    let lines = Lines { shown: !arguments.json, indent: "" };
    let first = rekindle::plain(&first, options.threads);
    let options = arguments.offloading.add(options, &first, &lines)?;
    if !arguments.json {
        println!("{}", table::header());
    }
    let mut rows = Vec::new();
    for &batch in &arguments.batch_sizes {
        let row = measure(arguments, batch, &options)?;
        if !arguments.json {
            println!("{}", table::line(&row));
        }
        rows.push(row);
    }
    let strategy = arguments.planning.options().strategy.name;
    if let Some(path) = &arguments.csv {
        output::write(path, &table::csv(&arguments.step.model, strategy, &rows))?;
    }
    report(&arguments.step.model, strategy, &rows, &arguments.reported)?;
    if let Some(folder) = &arguments.charts {
        draw(folder, &arguments.step.model, &rows)?;
    }
    if arguments.json {
        let rows = table::json(&arguments.step.model, strategy, &rows);
        println!("{:#}", serde_json::Value::from(rows));
    }
    match rows.iter().any(|row| row.planned.is_ok()) {
        true => Ok(()),
        false => Err(NothingFits.into()),
    }
}

/// Adds the table, and the plan of each batch size, to a report.
fn report(model: &str, strategy: &str, rows: &[Row], reported: &Reported) -> anyhow::Result<()> {
    let csv = table::csv(model, strategy, rows);
    reported.add(&format!("{model}.compare.csv"), &csv)?;
    for row in rows {
        if let Ok(MeasuredPlan { fitted, .. }) = &row.planned {
            let stem = format!("{model}_bs{}", row.batch);
            reported.add_plan(&stem, &fitted.graph, &stages::plan_of(fitted))?;
        }
    }
    reported.finish()
}

/// One row. That a batch size does not fit is told in it: the others may.
fn measure(arguments: &Arguments, batch: usize, options: &FitOptions) -> anyhow::Result<Row> {
    let model = arguments.step.build(batch)?;
    let plain = rekindle::plain(&model, options.threads);
    let mut budget = arguments.budget.resolve(plain.predicted().arena);
    let fitted = profile(arguments, &model, &plain, budget, options).and_then(|graph| {
        let fit = |budget| fit(arguments, &model, &graph, &plain, budget, options);
        let mut fitted = fit(budget);
        // With the same times, so that the plan which has this arena is found again.
        if let Some(smallest) = fitted.as_ref().err().and_then(|e| allowed(arguments, e)) {
            budget = smallest;
            fitted = fit(smallest);
        }
        fitted
    });
    let planned = fitted.and_then(|fitted| run_both(arguments, &model, &plain, fitted));
    let planned = match planned {
        Ok(planned) => Ok(planned),
        Err(error) if out_of_memory(&error) => Err(error.to_string()),
        Err(error) => match smallest_of(&error) {
            Some(smallest) => {
                Err(format!("no plan fits in {budget}; the smallest arena known has {smallest}"))
            }
            None => return Err(error),
        },
    };
    Ok(Row { batch, plain: plain.predicted(), budget, planned })
}

/// The step with its times: those of the plain step where it can run at all.
fn profile(
    arguments: &Arguments,
    model: &Model,
    plain: &Layout,
    budget: Bytes,
    options: &FitOptions,
) -> anyhow::Result<Graph> {
    let mut meter = Meter::new(None);
    let mut watch = |preparing| meter.prepare(preparing, "");
    match rekindle::profile_layout(model, plain, options, &mut watch).map_err(anyhow::Error::from) {
        Err(error) if out_of_memory(&error) => {}
        profiled => return profiled,
    }
    let mut within = |budget| Ok(rekindle::profile(model, plain, budget, options, &mut watch)?);
    let profiled = within(budget);
    match profiled.as_ref().err().and_then(|e| allowed(arguments, e)) {
        Some(smallest) => within(smallest),
        None => profiled,
    }
}

fn fit(
    arguments: &Arguments,
    model: &Model,
    graph: &Graph,
    plain: &Layout,
    budget: Bytes,
    options: &FitOptions,
) -> anyhow::Result<Fitted> {
    let silent = Lines { shown: false, indent: "" };
    let limit = arguments.planning.limit()?;
    let times = Times::Given(Box::new(graph.clone()), Duration::ZERO);
    let staged = stages::fit(model, plain, budget, times, options, limit, &silent)?;
    Ok(staged.fitted)
}

fn run_both(
    arguments: &Arguments,
    model: &Model,
    plain: &Layout,
    fitted: Fitted,
) -> anyhow::Result<MeasuredPlan> {
    let seed = arguments.step.training.seed;
    let pair = pair::measure(model, plain, &fitted, arguments.steps, seed)?;
    let checked = arguments.check && pair.plain.is_ok();
    if checked {
        check_text(&stages::check_numbers(model, plain, &fitted, 1, &|_| Ok(()))?)?;
    }
    Ok(MeasuredPlan { fitted, pair, checked })
}

/// Whether a step did not get its memory.
fn out_of_memory(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<Error>();
    error.is_some_and(|e| matches!(e, Error::Engine(error) if is_out_of_memory(error)))
}

/// The smallest arena known, if that is what stands in the way and may be taken.
fn allowed(arguments: &Arguments, error: &anyhow::Error) -> Option<Bytes> {
    smallest_of(error).filter(|_| arguments.or_smallest)
}

/// The smallest arena known, if that is what stands in the way.
fn smallest_of(error: &anyhow::Error) -> Option<Bytes> {
    match error.downcast_ref::<Error>() {
        Some(Error::DoesNotFit { smallest, .. }) => Some(*smallest),
        _ => None,
    }
}

/// The two charts of the comparison.
fn draw(folder: &Path, model: &str, rows: &[Row]) -> anyhow::Result<()> {
    let rows: Vec<Compared> = rows.iter().map(Row::compared).collect();
    let [memory, latency] = comparison(model, &rows);
    for (what, chart) in [("peak_memory", memory), ("latency", latency)] {
        let name = format!("{model}_{what}");
        chart.save(folder, &name)?;
        output::wrote(&folder.join(name + ".svg"));
    }
    Ok(())
}
