//! `rekindle plan`: decide what is kept, what is recomputed and, with a store, what is moved, under
//! a budget.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use rekindle_allocator::{Footprint, Segments, plan_reserved};
use rekindle_graph::{Budget, Bytes, Graph, Timeline, parse_budget};
use rekindle_plan::{Options, Planned, Strategy};
use serde_json::json;

use super::report::{Reported, stem_of};
use super::step::parse_count;
use super::{Planning, Stored, plan_profile};
use crate::exit::UsageError;
use crate::progress::Meter;
use crate::{input, output, summary};

/// Decide which activations to keep and which to recompute under a byte budget
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rekindle plan corpus/unet-b8.json --budget 60% --out plan.json
  rekindle plan resnet50 --batch-size 8 --budget 2GiB --decisions decisions.csv
  rekindle plan corpus/unet-b8.json --budget 40% --store out=25GB/s,in=25GB/s,latency=10us
  rekindle plan corpus/gpt2-b8-s512.json --budget 8GiB --allocator cuda
  rekindle plan --node-stats nodes.csv --activation-stats activations.csv --budget 60%")]
pub(crate) struct Arguments {
    /// Graph of the training step, a remat.graph/1 file; or the name of a model, with --batch-size
    #[arg(required_unless_present = "node_stats")]
    graph: Option<PathBuf>,
    /// Batch size, if GRAPH is a model: its plain step is measured at this size, and then planned
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "node_stats")]
    batch_size: Option<usize>,
    #[command(flatten)]
    profile: TableArguments,
    /// Memory that the whole step may use: 3GiB, 800MiB, a number of bytes, or a share such as 60%
    /// of the plain step's peak
    #[arg(long, value_parser = parse_budget, allow_hyphen_values = true)]
    budget: Budget,
    /// Write the plan to this file
    #[arg(long, value_name = "PLAN.json")]
    out: Option<PathBuf>,
    /// Write a table of what happens to each activation to this file
    #[arg(long, value_name = "FILE.csv")]
    decisions: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// List every activation, whether it is kept, recomputed or moved, and why
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    reported: Reported,
    #[command(flatten)]
    planning: Planning,
    #[command(flatten)]
    stored: Stored,
    /// Let the budget bound what the allocator of a GPU would reserve, and not only what is live
    #[arg(long, value_parser = allocators(), conflicts_with = "node_stats")]
    allocator: Option<Segments>,
}

/// Reads the name of an allocator.
fn allocators() -> impl TypedValueParser<Value = Segments> {
    PossibleValuesParser::new([
        PossibleValue::new("cuda")
            .help("PyTorch's caching allocator for CUDA, as it is by default"),
        PossibleValue::new("cuda-expandable").help("the same with expandable_segments:True"),
    ])
    .map(|name| match name.as_str() {
        "cuda" => Segments::Fixed,
        _ => Segments::Expandable,
    })
}

/// A profile without edges, in place of a graph.
#[derive(clap::Args)]
pub(crate) struct TableArguments {
    /// Plan from the profiler's two tables instead of a graph; this one is the table of nodes
    #[arg(
        long,
        value_name = "FILE.csv",
        requires = "activation_stats",
        conflicts_with_all = ["graph", "out"]
    )]
    pub(crate) node_stats: Option<PathBuf>,
    /// The table of activations that belongs to --node-stats
    #[arg(long, value_name = "FILE.csv", requires = "node_stats")]
    pub(crate) activation_stats: Option<PathBuf>,
    /// Swap an activation out where its swap time in the table makes that cheaper than recomputing
    /// it
    #[arg(long, requires = "node_stats")]
    pub(crate) swap: bool,
}

/// Refuses what needs a graph.
fn check_without_edges(arguments: &Arguments) -> Result<(), UsageError> {
    let strategy = arguments.planning.strategy;
    let why = match strategy.filter(|s| *s != Strategy::MUTWO) {
        Some(strategy) => format!("the strategy {} needs a graph", strategy.name),
        None if arguments.reported.is_wanted() => "a report needs a graph".into(),
        None if arguments.stored.store.is_some() => {
            "a store needs a graph (--swap takes the swap times of the table)".into()
        }
        None if arguments.verbose => {
            "a list of activations with their reasons needs a graph".into()
        }
        None => return Ok(()),
    };
    Err(UsageError(format!(
        "{why}; the profiler's two files have no edges, and are planned by mutwo alone"
    )))
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let TableArguments { node_stats, activation_stats, .. } = &arguments.profile;
    output::check_outputs(
        &[arguments.out.as_ref(), arguments.decisions.as_ref()],
        &[arguments.graph.as_ref(), node_stats.as_ref(), activation_stats.as_ref()],
    )?;
    let limit = arguments.planning.limit()?;
    let Some(path) = &arguments.graph else {
        check_without_edges(arguments)?;
        if arguments.planning.is_limited() {
            output::note("mutwo ends by itself: an effort or a time limit changes nothing here");
        }
        return plan_profile::run(
            &arguments.profile,
            arguments.budget,
            arguments.decisions.as_deref(),
            arguments.json,
        );
    };
    arguments.reported.folder()?;
    let graph = input::graph_or_model(path, arguments.batch_size)?;
    let plain_peak = Timeline::natural(&graph).peak;
    let budget = arguments.budget.resolve(plain_peak);
    if budget > plain_peak && arguments.allocator.is_none() {
        output::note(&format!(
            "the budget of {budget} is above the plain step's peak of {plain_peak}: nothing has \
             to be recomputed{}",
            if arguments.stored.store.is_some() { " or moved" } else { "" }
        ));
    }
    let mut meter = Meter::new(limit);
    let options = Options { store: arguments.stored.store, ..arguments.planning.options() };
    let planned = plan_for(&graph, budget, arguments.allocator, &options, &mut meter);
    meter.clear();
    let ((planned, footprint), took) = (planned?, meter.elapsed());
    if let Some(path) = &arguments.decisions {
        output::write(path, &output::decisions_of(&graph, &planned))?;
    }
    if let Some(path) = &arguments.out {
        output::write(path, &planned.plan.to_json())?;
    }
    let reported = &arguments.reported;
    reported.add_plan(&stem_of(&graph), &graph, &planned.plan)?;
    reported.finish()?;
    if arguments.json {
        let mut summary = summary::json(&graph, &planned, took);
        if let Some(footprint) = footprint {
            summary["predicted_allocated_bytes"] = json!(footprint.allocated.get());
            summary["predicted_reserved_bytes"] = json!(footprint.reserved.get());
        }
        println!("{summary:#}");
        return Ok(());
    }
    print!("{}", summary::text(&graph, &planned, took, arguments.verbose));
    if let Some(Footprint { allocated, reserved, .. }) = footprint {
        println!(
            "{:<12} {reserved} reserved and {allocated} allocated at most, by prediction",
            "allocator"
        );
    }
    Ok(())
}

/// A plan under the budget, and what the allocator makes of it if there is one.
fn plan_for(
    graph: &Graph,
    budget: Bytes,
    allocator: Option<Segments>,
    options: &Options,
    meter: &mut Meter,
) -> anyhow::Result<(Planned, Option<Footprint>)> {
    Ok(match allocator {
        None => (rekindle_plan::plan(graph, budget, options, meter)?, None),
        Some(segments) => {
            let (planned, found) = plan_reserved(graph, budget, segments, options, meter)?;
            (planned, Some(found))
        }
    })
}
