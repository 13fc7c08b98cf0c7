//! What a plan does, in words on the terminal and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use rekindle_graph::{Bytes, Graph};
use rekindle_plan::{Choice, Decision, Planned, Status};
use serde_json::{Value, json};

/// How many recomputations are listed.
const TOP: usize = 5;

/// The summary for a person. With `verbose`, every activation has a line.
pub(crate) fn text(graph: &Graph, planned: &Planned, took: Duration, verbose: bool) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: String| {
        writeln!(out, "{name:<12} {text}").expect("writing to a string cannot fail");
    };
    let (plan, stats) = (&planned.plan, &planned.stats);
    let share = |bytes: Bytes| percent(bytes.get() as f64 / stats.plain_peak.get().max(1) as f64);
    line("graph", format!("{}, {} nodes", graph.name(), graph.nodes().len()));
    line("budget", format!("{} ({} of the plain peak)", plan.budget, share(plan.budget)));
    line("strategy", plan.strategy.as_deref().unwrap_or("unknown").into());
    line("peak", format!("{} -> {} ({})", stats.plain_peak, plan.peak, share(plan.peak)));
    let overhead = percent(planned.overhead());
    line("time", format!("{} -> {} (+{overhead})", stats.plain_time, plan.time));
    line("bound", bound(planned));
    let (retained, recomputed) = by_choice(&planned.decisions);
    line("retained", format!("{} activations, {}", retained.len(), sum(&retained)));
    for (reason, (count, bytes)) in by_reason(&retained) {
        line("", format!("{count:>5} {:>12}  {reason}", bytes.to_string()));
    }
    let (count, bytes, runs) = (recomputed.len(), sum(&recomputed), stats.recomputed);
    line("recomputed", format!("{count} activations, {bytes}, in {runs} runs"));
    for d in top(&recomputed) {
        let name = graph.storage_name(d.storage);
        line("", format!("{:>12}  {:>10}  {name}", d.bytes.to_string(), d.spent.to_string()));
    }
    let at = stats.peak_node.map_or("the start", |id| &graph.node(id).name);
    let least = stats.incompressible;
    let later = plan.peak.saturating_sub(least);
    line(
        "at the peak",
        format!("{at}: {least} cannot be avoided there, {later} is kept for later"),
    );
    line("planned in", format!("{:.2} s", took.as_secs_f64()));
    if verbose {
        for d in &planned.decisions {
            let name = graph.storage_name(d.storage);
            let bytes = d.bytes.to_string();
            line(word(d.choice), format!("{bytes:>12}  {name}: {}", d.reason.text()));
        }
    }
    out
}

/// The summary for a program.
pub(crate) fn json(graph: &Graph, planned: &Planned, took: Duration) -> Value {
    let (plan, stats) = (&planned.plan, &planned.stats);
    let (retained, recomputed) = by_choice(&planned.decisions);
    let decision = |d: &Decision| {
        json!({
            "activation": graph.storage_name(d.storage),
            "storage": d.storage.0,
            "decision": word(d.choice),
            "reason": d.reason.text(),
            "bytes": d.bytes.get(),
            "recompute_time_us": d.recompute_time.get(),
            "spent_us": d.spent.get(),
        })
    };
    json!({
        "graph": graph.name(),
        "strategy": plan.strategy,
        "budget_bytes": plan.budget.get(),
        "plain_peak_bytes": stats.plain_peak.get(),
        "peak_bytes": plan.peak.get(),
        "plain_time_us": stats.plain_time.get(),
        "time_us": plan.time.get(),
        "overhead": planned.overhead(),
        "lower_bound_us": planned.lower_bound.get(),
        "status": status(planned.status),
        "recomputed_runs": stats.recomputed,
        "retained": {"activations": retained.len(), "bytes": sum(&retained).get()},
        "recomputed": {"activations": recomputed.len(), "bytes": sum(&recomputed).get()},
        "peak_node": stats.peak_node.map(|id| graph.node(id).name.clone()),
        "incompressible_bytes": stats.incompressible.get(),
        "seconds": took.as_secs_f64(),
        "decisions": planned.decisions.iter().map(decision).collect::<Vec<_>>(),
    })
}

/// A share as a person reads it.
pub(crate) fn percent(share: f64) -> String {
    // A tiny negative rounding error would print as -0.0.
    format!("{:.1} %", (100.0 * share).max(0.0))
}

fn status(status: Status) -> &'static str {
    match status {
        Status::Optimal => "optimal",
        Status::Feasible { .. } => "feasible",
        Status::LimitReached { .. } => "limit reached",
    }
}

fn bound(planned: &Planned) -> String {
    let least = planned.lower_bound - planned.stats.plain_time;
    let least = percent(least.get() / planned.stats.plain_time.get().max(f64::MIN_POSITIVE));
    match planned.status {
        Status::Optimal => "no plan under this budget is faster".into(),
        Status::Feasible { gap } => {
            format!("any plan takes at least +{least}; this one is within {} of it", percent(gap))
        }
        Status::LimitReached { gap } => format!(
            "any plan takes at least +{least}; stopped at the time limit within {} of it",
            percent(gap)
        ),
    }
}

fn word(choice: Choice) -> &'static str {
    match choice {
        Choice::Keep => "retained",
        Choice::Recompute { .. } => "recomputed",
        Choice::Move { .. } => "moved",
    }
}

fn by_choice(decisions: &[Decision]) -> (Vec<&Decision>, Vec<&Decision>) {
    decisions.iter().partition(|d| d.choice == Choice::Keep)
}

fn by_reason(decisions: &[&Decision]) -> BTreeMap<&'static str, (usize, Bytes)> {
    let mut counts = BTreeMap::new();
    for d in decisions {
        let entry = counts.entry(d.reason.text()).or_insert((0, Bytes::ZERO));
        *entry = (entry.0 + 1, entry.1 + d.bytes);
    }
    counts
}

fn sum(decisions: &[&Decision]) -> Bytes {
    decisions.iter().map(|d| d.bytes).sum()
}

/// The recomputations that cost the most time.
fn top<'d>(recomputed: &[&'d Decision]) -> Vec<&'d Decision> {
    let mut sorted = recomputed.to_vec();
    sorted.sort_by(|a, b| b.spent.get().total_cmp(&a.spent.get()).then(a.storage.cmp(&b.storage)));
    sorted.truncate(TOP);
    sorted
}
