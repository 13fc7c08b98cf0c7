//! `rekindle frontier`: the trade-off between peak and time.

use std::path::PathBuf;

use rekindle_plan::{Frontier, Planned, Status};
use serde_json::{Value, json};

use super::Planning;
use super::report::{Reported, stem_of};
use super::step::parse_count;
use crate::progress::Meter;
use crate::summary::percent;
use crate::{input, output};

/// Plan at many budgets, from the plain step's peak down to the smallest that is feasible
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rekindle frontier corpus/unet-b8.json --points 10 --out frontier.csv
  rekindle frontier bert-base --batch-size 8 --json")]
pub(crate) struct Arguments {
    /// Graph of the training step, a remat.graph/1 file; or the name of a model, with --batch-size
    graph: PathBuf,
    /// Batch size, if GRAPH is a model: its plain step is measured at this size, and then planned
    #[arg(long, value_name = "N", value_parser = parse_count)]
    batch_size: Option<usize>,
    /// Number of budgets to plan for
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(2..=1000))]
    points: u16,
    /// Write the table of budgets, peaks and times to this file
    #[arg(long, value_name = "FRONTIER.csv")]
    out: Option<PathBuf>,
    /// Print the points as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reported: Reported,
    #[command(flatten)]
    planning: Planning,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    output::check_outputs(&[arguments.out.as_ref()], &[Some(&arguments.graph)])?;
    arguments.reported.folder()?;
    let limit = arguments.planning.limit()?;
    let graph = input::graph_or_model(&arguments.graph, arguments.batch_size)?;
    let mut meter = Meter::new(limit);
    let options = arguments.planning.options();
    let points = usize::from(arguments.points);
    let frontier = rekindle_plan::frontier(&graph, points, &options, &mut meter);
    meter.clear();
    let frontier = frontier?;
    if let Some(path) = &arguments.out {
        output::write(path, &csv(&frontier))?;
    }
    let (reported, stem) = (&arguments.reported, stem_of(&graph));
    reported.add(&format!("{stem}.graph.json"), &graph.to_json())?;
    reported.add(&format!("{stem}.frontier.csv"), &csv(&frontier))?;
    reported.finish()?;
    match arguments.json {
        true => println!("{:#}", Value::from_iter(frontier.points.iter().map(point))),
        false => print!("{}", table(&frontier)),
    }
    Ok(())
}

fn gap(planned: &Planned) -> f64 {
    match planned.status {
        Status::Optimal => 0.0,
        Status::Feasible { gap } | Status::LimitReached { gap } => gap,
    }
}

pub(super) fn csv(frontier: &Frontier) -> String {
    let header = "budget_bytes,peak_bytes,time_us,overhead_percent,recomputed_runs,lower_bound_us,\
                  gap_percent\n";
    let line = |p: &Planned| {
        format!(
            "{},{},{},{:.4},{},{},{:.4}\n",
            p.plan.budget.get(),
            p.plan.peak.get(),
            p.plan.time.get(),
            100.0 * p.overhead().max(0.0),
            p.stats.recomputed,
            p.lower_bound.get(),
            100.0 * gap(p),
        )
    };
    header.to_owned() + &frontier.points.iter().map(line).collect::<String>()
}

fn point(p: &Planned) -> Value {
    json!({
        "budget_bytes": p.plan.budget.get(),
        "peak_bytes": p.plan.peak.get(),
        "time_us": p.plan.time.get(),
        "overhead": p.overhead(),
        "recomputed_runs": p.stats.recomputed,
        "lower_bound_us": p.lower_bound.get(),
        "gap": gap(p),
    })
}

fn table(frontier: &Frontier) -> String {
    let line = |[peak, share, time, overhead, gap]: [&str; 5]| {
        format!("{peak:>12} {share:>8} {time:>12} {overhead:>10} {gap:>8}\n")
    };
    let mut out = line(["peak", "of plain", "time", "overhead", "gap"]);
    for p in &frontier.points {
        let (peak, time) = (p.plan.peak.to_string(), p.plan.time.to_string());
        let share = p.plan.peak.get() as f64 / p.stats.plain_peak.get().max(1) as f64;
        out += &line([&peak, &percent(share), &time, &percent(p.overhead()), &percent(gap(p))]);
    }
    out
}
