//! `rekindle frontier`: the trade-off between peak and time, without a store and with one.

use std::path::PathBuf;

use rekindle_analysis::{Transfers, csv_text, knee, text_cell, transfers};
use rekindle_graph::Graph;
use rekindle_plan::{Frontier, Options, Planned, Status};
use serde_json::{Value, json};

use super::report::{Reported, stem_of};
use super::step::parse_count;
use super::{Planning, Stored};
use crate::progress::Meter;
use crate::summary::{add_transfers, percent};
use crate::{input, output};

/// Plan at many budgets, from the plain step's peak down to the smallest that is feasible
#[derive(clap::Args)]
#[command(after_help = "\
With a store, the budgets are planned without it and with it, and both are shown.

Examples:
  rekindle frontier corpus/unet-b8.json --points 10 --out frontier.csv
  rekindle frontier corpus/unet-b8.json --points 10 --store out=25GB/s,in=25GB/s
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
    #[command(flatten)]
    stored: Stored,
}

/// A point of a frontier, and what it moves.
pub(super) struct Point {
    planned: Planned,
    /// The store that it was planned with, as it is typed; `None` without one.
    store: Option<String>,
    /// What goes to the store and back.
    moves: Transfers,
    /// Whether it is the knee of its frontier.
    is_knee: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    output::check_outputs(&[arguments.out.as_ref()], &[Some(&arguments.graph)])?;
    arguments.reported.folder()?;
    let limit = arguments.planning.limit()?;
    let store = arguments.stored.store;
    let graph = input::graph_or_model(&arguments.graph, arguments.batch_size)?;
    // Both frontiers together keep the limit.
    let mut meter = Meter::new(limit.map(|limit| limit / if store.is_some() { 2 } else { 1 }));
    let count = usize::from(arguments.points);
    let mut points = Vec::new();
    for store in [None].into_iter().chain(store.map(Some)) {
        if let Some(store) = store {
            meter.restart(format!("planning with {store}"));
        }
        let options = Options { store, ..arguments.planning.options() };
        let frontier = rekindle_plan::frontier(&graph, count, &options, &mut meter);
        meter.clear();
        points.extend(points_of(&graph, frontier?, &options));
    }
    if let Some(path) = &arguments.out {
        output::write(path, &csv(&points))?;
    }
    let (reported, stem) = (&arguments.reported, stem_of(&graph));
    reported.add(&format!("{stem}.graph.json"), &graph.to_json())?;
    reported.add(&format!("{stem}.frontier.csv"), &csv(&points))?;
    reported.finish()?;
    match arguments.json {
        true => println!("{:#}", json(&points)),
        false => print!("{}", table(&points)),
    }
    Ok(())
}

/// The points of a frontier that was planned with `options`.
pub(super) fn points_of(graph: &Graph, frontier: Frontier, options: &Options) -> Vec<Point> {
    let store = options.store.map(|store| store.to_string());
    let trade: Vec<_> = frontier.points.iter().map(|p| (p.plan.peak, p.plan.time)).collect();
    let knee = knee(&trade);
    let point = |(index, planned): (usize, Planned)| {
        let moves = transfers(graph, &planned.plan.schedule);
        let moves = moves.expect("a checked plan can be replayed").unwrap_or_default();
        Point { store: store.clone(), moves, is_knee: knee == Some(index), planned }
    };
    frontier.points.into_iter().enumerate().map(point).collect()
}

fn gap(planned: &Planned) -> f64 {
    match planned.status {
        Status::Optimal => 0.0,
        Status::Feasible { gap } | Status::LimitReached { gap } => gap,
    }
}

/// The table; with columns for what is moved if a store is among what was planned with.
pub(super) fn csv(points: &[Point]) -> String {
    let columns = "budget_bytes,peak_bytes,time_us,overhead_percent,recomputed_runs,\
                   lower_bound_us,gap_percent";
    let mut columns: Vec<&str> = columns.split(',').collect();
    let has_store = points.iter().any(|p| p.store.is_some());
    if has_store {
        columns.extend(["store", "moved_out_bytes", "moved_in_bytes", "waited_us"]);
    }
    let cells = |point: &Point| {
        let p = &point.planned;
        let mut cells = vec![
            p.plan.budget.get().to_string(),
            p.plan.peak.get().to_string(),
            p.plan.time.get().to_string(),
            format!("{:.4}", 100.0 * p.overhead().max(0.0)),
            p.stats.recomputed.to_string(),
            p.lower_bound.get().to_string(),
            format!("{:.4}", 100.0 * gap(p)),
        ];
        if has_store {
            cells.extend(moved_cells(point));
        }
        cells
    };
    csv_text(&columns, points.iter().map(cells))
}

/// The store and what is moved; empty without a store.
fn moved_cells(point: &Point) -> [String; 4] {
    let Some(store) = &point.store else {
        return Default::default();
    };
    let Transfers { moved_out, moved_in, waited, .. } = &point.moves;
    [
        text_cell(store),
        moved_out.get().to_string(),
        moved_in.get().to_string(),
        waited.get().to_string(),
    ]
}

/// The points; where a store is among what was planned with, each says with which.
fn json(points: &[Point]) -> Value {
    let has_store = points.iter().any(|p| p.store.is_some());
    let point = |point: &Point| {
        let p = &point.planned;
        let mut value = json!({
            "budget_bytes": p.plan.budget.get(),
            "peak_bytes": p.plan.peak.get(),
            "time_us": p.plan.time.get(),
            "overhead": p.overhead(),
            "recomputed_runs": p.stats.recomputed,
            "lower_bound_us": p.lower_bound.get(),
            "gap": gap(p),
            "knee": point.is_knee,
        });
        match &point.store {
            Some(store) => add_transfers(&mut value, store, &point.moves),
            None if has_store => value["store"] = Value::Null,
            None => {}
        }
        value
    };
    Value::from_iter(points.iter().map(point))
}

/// The points for a person: those without a store, and under them those with one.
fn table(points: &[Point]) -> String {
    let (without, with): (Vec<&Point>, Vec<&Point>) =
        points.iter().partition(|p| p.store.is_none());
    let store = with.first().and_then(|p| p.store.as_deref());
    let Some(store) = store else {
        return lines(&without);
    };
    format!("without a store\n{}\nwith {store}\n{}", lines(&without), lines(&with))
}

fn lines(points: &[&Point]) -> String {
    let moves = points.iter().any(|p| p.store.is_some());
    let line = |[peak, share, time, overhead, gap, moved, waited]: [&str; 7]| {
        let moved = if moves { format!(" {moved:>12} {waited:>10}") } else { String::new() };
        format!("{peak:>12} {share:>8} {time:>12} {overhead:>10} {gap:>8}{moved}\n")
    };
    let mut out = line(["peak", "of plain", "time", "overhead", "gap", "moved", "waits"]);
    for point in points {
        let p = &point.planned;
        let (peak, time) = (p.plan.peak.to_string(), p.plan.time.to_string());
        let share = p.plan.peak.get() as f64 / p.stats.plain_peak.get().max(1) as f64;
        let moved = (point.moves.moved_out + point.moves.moved_in).to_string();
        out += &line([
            &peak,
            &percent(share),
            &time,
            &percent(p.overhead()),
            &percent(gap(p)),
            &moved,
            &point.moves.waited.to_string(),
        ]);
    }
    let knee = points.iter().find(|point| point.is_knee).map(|point| &point.planned);
    out + &knee.map_or_else(String::new, knee_line)
}

/// What the knee of a frontier means to who looks for a budget.
fn knee_line(planned: &Planned) -> String {
    let (peak, overhead) = (planned.plan.peak, percent(planned.overhead()));
    format!("The knee is at {peak} (+{overhead}): more memory saves little, less costs much.\n")
}
