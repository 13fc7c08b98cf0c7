//! `rekindle max-batch`: the largest batch that trains in a budget, plain and planned.

use rekindle::{BatchWatch, LARGEST, MaxBatch, MaxBatchOptions, Preparing, Refusal, max_batch};
use rekindle_analysis::Transfers;
use rekindle_graph::{Budget, Bytes, Micros, parse_budget, parse_share, typed_bytes};
use serde_json::{Value, json};

use super::Planning;
use super::offload::Offloading;
use super::stages::{Lines, moves_of};
use super::step::StepArguments;
use crate::exit::UsageError;
use crate::progress::Meter;
use crate::summary::{add_transfers, percent, store_text};

/// Find the largest batch that trains in a byte budget, plain and planned, and what it costs
#[derive(clap::Args)]
#[command(after_help = "\
Nothing larger than a small batch is run: peaks are computed (a run has exactly the same), times \
are measured at a small batch size and scaled node by node. `rekindle compare` measures the batch \
size that was found.

Examples:
  rekindle max-batch resnet152 --budget 8GiB
  rekindle max-batch bert-base --budget 4GiB --max-overhead 20%
  rekindle max-batch bert-base --budget 1GiB --offload /var/tmp")]
pub(crate) struct Arguments {
    /// Memory that the whole step may use: 8GiB, 800MiB or a number of bytes
    #[arg(long, value_parser = parse_budget, allow_hyphen_values = true)]
    budget: Budget,
    /// The most time that recomputation may add, as a share of the plain step: 20%
    #[arg(long, value_name = "PERCENT", value_parser = parse_share, allow_hyphen_values = true)]
    max_overhead: Option<f64>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    step: StepArguments,
    #[command(flatten)]
    planning: Planning,
    #[command(flatten)]
    offloading: Offloading,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let Budget::Bytes(budget) = arguments.budget else {
        let why =
            "--budget is a share, but of which batch size? Give it in bytes, for example 8GiB";
        return Err(UsageError(why.into()).into());
    };
    let training = &arguments.step.training;
    training.check()?;
    arguments.offloading.check()?;
    let lines = Lines { shown: !arguments.json, indent: "" };
    let fit = training.fit_options(arguments.planning.options());
    let build = |batch| training.model(&arguments.step.model, batch);
    let one = rekindle::plain(&build(1)?, fit.threads);
    let fit = arguments.offloading.add(fit, &one, &lines)?;
    let options = MaxBatchOptions { budget, max_overhead: arguments.max_overhead, fit };
    let mut meter = Meter::new(arguments.planning.limit()?);
    let found = max_batch(&build, &options, &mut meter);
    meter.clear();
    let found = found?;
    match arguments.json {
        true => println!("{:#}", report(arguments, budget, &found)),
        false => print!("{}", text(arguments, budget, &found)),
    }
    Ok(())
}

impl BatchWatch for Meter {
    fn preparing(&mut self, batch: usize, preparing: Preparing) {
        self.prepare(preparing, &format!(" for batch {batch}"));
    }

    fn trying(&mut self, batch: usize) {
        self.restart(format!("planning batch {batch}"));
    }
}

fn text(arguments: &Arguments, budget: Bytes, found: &MaxBatch) -> String {
    let mut lines = vec![format!(
        "{:<9} {:>8} {:>12} {:>10} {:>12} {:>10}",
        "", "batch", "arena", "a step", "a sample", "overhead"
    )];
    let row = |name: &str, batch: usize, arena: Bytes, time: Micros, overhead: &str| {
        let [arena, sample] = [arena.to_string(), Micros(time.get() / batch as f64).to_string()];
        let time = time.to_string();
        format!("{name:<9} {batch:>8} {arena:>12} {time:>10} {sample:>12} {overhead:>10}")
    };
    let MaxBatch { plain, fitted, .. } = found;
    lines.extend(plain.map(|plain| row("plain", plain.batch, plain.peak.arena, plain.time, "-")));
    let (arena, time) = (fitted.predicted().arena, fitted.planned.plan.time);
    let overhead = format!("+{}", percent(fitted.overhead()));
    lines.push(row("planned", found.batch, arena, time, &overhead));
    if plain.is_none() {
        lines.push(format!("Without a plan not even one sample fits in {budget}."));
    }
    lines.push(refusal(found, arguments.max_overhead, budget));
    lines.push(format!(
        "Verified: {} runs replayed, {} of them recomputations, no violation.",
        fitted.audit.runs.iter().sum::<u32>(),
        fitted.audit.recomputed
    ));
    if let Some(Transfers { moved_out, moved_in, waited, .. }) = moves_of(fitted) {
        lines.push(format!(
            "It moves {moved_out} out and {moved_in} in, and waits {waited} for them."
        ));
    }
    lines.push(format!(
        "Times are predicted from batch {}, node by node. To measure this batch:",
        found.measured_at
    ));
    lines.push(format!(
        "  rekindle compare {} --batch-sizes {} --budget {}{}",
        arguments.step.words(),
        found.batch,
        typed_bytes(budget),
        arguments.offloading.words()
    ));
    lines.join("\n") + "\n"
}

fn refusal(found: &MaxBatch, allowed: Option<f64>, budget: Bytes) -> String {
    let Some((batch, why)) = found.refused else {
        return format!("No larger batch than {LARGEST} is tried.");
    };
    match why {
        Refusal::Memory(smallest) => format!(
            "Batch {batch} does not fit: the smallest arena known has {smallest} ({} too many).",
            smallest.saturating_sub(budget)
        ),
        Refusal::Floor(floor) => {
            format!("Batch {batch} cannot fit: any plan needs at least {floor}.")
        }
        Refusal::Overhead(overhead) => format!(
            "Batch {batch} fits, but the best plan found takes +{}, more than +{}.",
            percent(overhead),
            percent(allowed.unwrap_or(0.0))
        ),
    }
}

fn report(arguments: &Arguments, budget: Bytes, found: &MaxBatch) -> Value {
    let refused = found.refused.map(|(batch, why)| match why {
        Refusal::Memory(smallest) => {
            json!({"batch": batch, "smallest_arena_bytes": smallest.get()})
        }
        Refusal::Floor(floor) => json!({"batch": batch, "floor_bytes": floor.get()}),
        Refusal::Overhead(overhead) => json!({"batch": batch, "predicted_overhead": overhead}),
    });
    let mut told = json!({
        "model": arguments.step.model,
        "budget_bytes": budget.get(),
        "max_overhead": arguments.max_overhead,
        "measured_at_batch": found.measured_at,
        "plain": found.plain.map(|plain| json!({
            "batch": plain.batch,
            "arena_bytes": plain.peak.arena.get(),
            "predicted_time_us": plain.time.get(),
        })),
        "planned": {
            "batch": found.batch,
            "arena_bytes": found.fitted.predicted().arena.get(),
            "live_peak_bytes": found.fitted.predicted().live.get(),
            "predicted_time_us": found.fitted.time().get(),
            "predicted_overhead": found.fitted.overhead(),
            "recomputed_runs": found.fitted.audit.recomputed,
            "strategy": found.fitted.planned.plan.strategy,
        },
        "refused": refused,
    });
    if let Some(moves) = moves_of(&found.fitted) {
        let store = store_text(&found.fitted.planned.plan.schedule);
        add_transfers(&mut told["planned"], &store, &moves);
    }
    told
}
