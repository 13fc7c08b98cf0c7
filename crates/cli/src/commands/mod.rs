//! The verbs, one file each.

mod compare;
mod completions;
mod demo;
mod frontier;
mod max_batch;
mod models;
mod numeric;
mod offload;
mod pair;
mod plan;
mod plan_profile;
mod profile;
mod report;
mod rewrite;
mod run;
mod stages;
mod step;
mod verify;

use std::time::Duration;

use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use rekindle_graph::{Store, parse_store};
use rekindle_plan::{Effort, Options, Strategy};

use crate::exit::UsageError;

/// What to do.
#[derive(Subcommand)]
pub(crate) enum Command {
    Profile(profile::Arguments),
    Plan(plan::Arguments),
    Frontier(frontier::Arguments),
    Rewrite(rewrite::Arguments),
    Verify(verify::Arguments),
    Run(run::Arguments),
    Compare(compare::Arguments),
    MaxBatch(max_batch::Arguments),
    Report(report::Arguments),
    Models(models::Arguments),
    Demo(demo::Arguments),
    Completions(completions::Arguments),
}

impl Command {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        match self {
            Command::Profile(arguments) => profile::run(&arguments),
            Command::Plan(arguments) => plan::run(&arguments),
            Command::Frontier(arguments) => frontier::run(&arguments),
            Command::Rewrite(arguments) => rewrite::run(&arguments),
            Command::Verify(arguments) => verify::run(&arguments),
            Command::Run(arguments) => run::run(&arguments),
            Command::Compare(arguments) => compare::run(&arguments),
            Command::MaxBatch(arguments) => max_batch::run(&arguments),
            Command::Report(arguments) => report::run(&arguments),
            Command::Models(arguments) => models::run(&arguments),
            Command::Demo(arguments) => demo::run(&arguments),
            Command::Completions(arguments) => {
                completions::run(&arguments);
                Ok(())
            }
        }
    }
}

/// Reads the name of a strategy; the help lists them all with what they do.
fn strategies() -> impl TypedValueParser<Value = Strategy> {
    let value = |s: &Strategy| PossibleValue::new(s.name).help(s.about);
    PossibleValuesParser::new(Strategy::ALL.iter().map(value))
        .map(|name| Strategy::from_name(&name).expect("a possible value"))
}

/// How to plan: the same for every verb that plans.
#[derive(clap::Args)]
#[command(next_help_heading = "Planning")]
pub(crate) struct Planning {
    /// Planning algorithm [default: search]
    #[arg(long, value_parser = strategies())]
    pub(crate) strategy: Option<Strategy>,
    /// Amount of planning work, from 0 (take the first plan) to 10; each level does about twice the
    /// work of the one below [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=10))]
    effort: Option<u8>,
    /// Stop planning after this many seconds, and use the best plan found so far
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    time_limit: Option<f64>,
}

/// A store to plan with, for verbs that run nothing.
#[derive(clap::Args)]
#[command(next_help_heading = "Planning")]
pub(crate) struct Stored {
    /// Allow tensors to be moved to a store and back, at these rates: out=25GB/s,in=25GB/s. If need
    /// be, add latency=10us (of each transfer), half-duplex (one channel for both directions, as a
    /// disk has), limit=40GiB (the most that it may hold) and activations (parameters and all that
    /// is persistent stays in memory)
    #[arg(long, value_name = "STORE", value_parser = parse_store, allow_hyphen_values = true)]
    pub(crate) store: Option<Store>,
}

impl Planning {
    pub(crate) fn options(&self) -> Options {
        Options {
            strategy: self.strategy.unwrap_or_default(),
            effort: self.effort.map_or(Effort::default(), |level| {
                Effort::new(level).expect("clap allows no other level")
            }),
            store: None,
        }
    }

    /// Whether it was said how much work to spend.
    pub(crate) fn is_limited(&self) -> bool {
        self.effort.is_some() || self.time_limit.is_some()
    }

    pub(crate) fn limit(&self) -> Result<Option<Duration>, UsageError> {
        let Some(seconds) = self.time_limit else {
            return Ok(None);
        };
        match Duration::try_from_secs_f64(seconds) {
            Ok(limit) if seconds > 0.0 => Ok(Some(limit)),
            _ => Err(UsageError(format!(
                "a time limit of {seconds:e} seconds makes no sense; give a number above zero, in \
                 reason"
            ))),
        }
    }
}
