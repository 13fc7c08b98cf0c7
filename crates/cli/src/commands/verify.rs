//! `rekindle verify`: the independent check of a plan, or of a planned step's numbers.

use std::path::PathBuf;

use anyhow::Context as _;
use rekindle_analysis::transfers;
use rekindle_graph::read_plan;
use rekindle_verify::Violations;
use serde_json::json;

use super::numeric;
use crate::input;
use crate::summary::{add_transfers, store_text};

/// Replay a plan with independent code and report everything that is wrong with it
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rekindle verify corpus/unet-b8.json plan.json
  rekindle verify resnet18 --numeric --batch-size 4 --budget 60%")]
pub(crate) struct Arguments {
    /// Graph of the training step, a remat.graph/1 file; with --numeric, the name of a model
    graph: PathBuf,
    /// The plan, a remat.plan/1 or remat.plan/2 file
    #[arg(
        required_unless_present = "numeric",
        conflicts_with_all = [
            "numeric", "batch_size", "budget", "steps", "image_size", "sequence", "optimizer",
            "learning_rate",
            "threads", "seed", "strategy", "effort", "time_limit",
        ]
    )]
    plan: Option<PathBuf>,
    /// Plan and train a model, and compare every number with that of the plain step
    #[arg(long)]
    numeric: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    numbers: numeric::Arguments,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Some(path) = &arguments.plan else {
        let model = arguments.graph.to_string_lossy();
        return numeric::run(&model, &arguments.numbers, arguments.json);
    };
    let graph = input::graph(&arguments.graph)?;
    let plan = read_plan(path)?;
    let audit = rekindle_verify::verify(&graph, &plan);
    if let (Err(Violations(violations)), true) = (&audit, arguments.json) {
        let texts: Vec<String> = violations.iter().map(ToString::to_string).collect();
        println!("{:#}", json!({"valid": false, "violations": texts}));
    }
    let audit = audit.with_context(|| format!("{} is not valid", path.display()))?;
    let moves = transfers(&graph, &plan.schedule)?;
    if arguments.json {
        let mut told = json!({
            "valid": true,
            "budget_bytes": plan.budget.get(),
            "peak_bytes": audit.peak.get(),
            "peak_step": audit.peak_step.map(|s| s.0),
            "time_us": audit.time.get(),
            "recomputed_runs": audit.recomputed,
        });
        if let Some(moves) = &moves {
            add_transfers(&mut told, &store_text(&plan.schedule), moves);
        }
        println!("{told:#}");
        return Ok(());
    }
    println!(
        "valid: {} steps, {} recomputations, peak {} of {}, time {}",
        plan.schedule.steps.len(),
        audit.recomputed,
        audit.peak,
        plan.budget,
        audit.time
    );
    if let Some(moves) = &moves {
        println!(
            "moves {} out and {} in, {} hidden and {} waited; the store ({}) holds {} at most",
            moves.moved_out,
            moves.moved_in,
            moves.hidden,
            moves.waited,
            store_text(&plan.schedule),
            audit.store_peak
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Arguments;
    use clap::Args as _;

    /// A flag that is added for `--numeric` must be added to the conflicts, too.
    #[test]
    fn a_plan_excludes_every_flag_of_numeric() {
        let verify = Arguments::augment_args(clap::Command::new("verify"));
        let argument = |name: &str| verify.get_arguments().find(|a| a.get_id() == name);
        let plan = argument("plan").expect("it takes a plan");
        let excluded = verify.get_arg_conflicts_with(plan);
        for other in verify.get_arguments() {
            let shared = ["graph", "plan", "json"].map(|name| other.get_id() == name);
            let is_excluded = excluded.iter().any(|a| a.get_id() == other.get_id());
            assert_ne!(is_excluded, shared.contains(&true), "{}", other.get_id());
        }
    }
}
