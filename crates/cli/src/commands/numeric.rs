//! `rekindle verify --numeric`: the planned step's numbers against the plain step's.

use rekindle::plain;
use serde_json::json;

use super::Planning;
use super::run::check_text;
use super::stages::{self, Lines, Times};
use super::step::{Training, parse_count};
use rekindle_graph::{Budget, parse_budget};

/// What is run.
#[derive(clap::Args)]
#[group(id = "numeric_arguments")] // Flattened into another struct of the same name.
#[command(next_help_heading = "With --numeric")]
pub(crate) struct Arguments {
    /// Number of samples in a batch
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = parse_count)]
    batch_size: usize,
    /// Memory that the planned step may use: 3GiB, 800MiB, a number of bytes, or a share such as
    /// 60% of the plain step's peak
    #[arg(long, default_value = "60%", value_parser = parse_budget, allow_hyphen_values = true)]
    budget: Budget,
    /// Number of steps to run before the numbers are compared
    #[arg(long, value_name = "K", default_value_t = 2, value_parser = parse_count)]
    steps: usize,
    #[command(flatten)]
    training: Training,
    #[command(flatten)]
    planning: Planning,
}

pub(crate) fn run(name: &str, arguments: &Arguments, json: bool) -> anyhow::Result<()> {
    let model = arguments.training.build(name, arguments.batch_size)?;
    let options = arguments.training.fit_options(arguments.planning.options());
    let plain = plain(&model, options.threads);
    let budget = arguments.budget.resolve(plain.predicted().arena);
    let lines = Lines { shown: !json, indent: "" };
    let limit = arguments.planning.limit()?;
    let times = Times::Plain;
    let staged = stages::fit(&model, &plain, budget, times, &options, limit, &lines)?;
    let steps = arguments.steps as u64;
    let checked = stages::check_numbers(&model, &plain, &staged.fitted, steps, &|_| Ok(()))?;
    let text = check_text(&checked)?;
    lines.line("check", text);
    if json {
        let found = json!({
            "equal": true,
            "model": model.program.name,
            "steps": checked.steps,
            "tensors": checked.tensors,
            "numbers": checked.numbers,
            "recomputed_runs": staged.fitted.audit.recomputed,
        });
        println!("{found:#}");
    }
    Ok(())
}
