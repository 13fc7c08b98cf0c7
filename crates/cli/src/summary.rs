//! What a plan does, in words on the terminal and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use rekindle_analysis::{Transfers, transfers};
use rekindle_graph::{Bytes, Graph, Schedule, one_line};
use rekindle_plan::{Choice, Decision, Planned, Status};
use serde_json::{Value, json};

/// How many recomputations and moves are listed.
const TOP: usize = 5;

/// The summary for a person. With `verbose`, every activation has a line.
pub(crate) fn text(graph: &Graph, planned: &Planned, took: Duration, verbose: bool) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: String| {
        writeln!(out, "{name:<12} {text}").expect("writing to a string cannot fail");
    };
    let (plan, stats) = (&planned.plan, &planned.stats);
    let share = |bytes: Bytes| percent(bytes.get() as f64 / stats.plain_peak.get().max(1) as f64);
    let name = |storage| graph.shown_storage_name(storage);
    line("graph", format!("{}, {} nodes", one_line(graph.name()), graph.nodes().len()));
    line("budget", format!("{} ({} of the plain peak)", plan.budget, share(plan.budget)));
    line("strategy", plan.strategy.as_deref().unwrap_or("unknown").into());
    line("peak", format!("{} -> {} ({})", stats.plain_peak, plan.peak, share(plan.peak)));
    let overhead = percent(planned.overhead());
    line("time", format!("{} -> {} (+{overhead})", stats.plain_time, plan.time));
    line("bound", bound(planned));
    let moving = moving(graph, planned);
    if let Some((store, _)) = &moving {
        line("store", store.clone());
    }
    let [retained, recomputed, moved] = by_choice(&planned.decisions);
    line("retained", format!("{} activations, {}", retained.len(), sum(&retained)));
    for (reason, (count, bytes)) in by_reason(&retained) {
        line("", format!("{count:>5} {:>12}  {reason}", bytes.to_string()));
    }
    let (count, bytes, runs) = (recomputed.len(), sum(&recomputed), stats.recomputed);
    line("recomputed", format!("{count} activations, {bytes}, in {runs} runs"));
    for d in costliest(&recomputed) {
        let [bytes, spent] = [d.bytes.to_string(), d.spent.to_string()];
        line("", format!("{bytes:>12}  {spent:>10}  {}", name(d.storage)));
    }
    if let Some((_, moves)) = &moving {
        line("moved", format!("{} activations, {}", moved.len(), sum(&moved)));
        for (reason, (count, bytes)) in by_reason(&moved) {
            line("", format!("{count:>5} {:>12}  {reason}", bytes.to_string()));
        }
        moves_text(moves, planned, &mut line);
    }
    let at = stats.peak_node.map_or("the start".into(), |id| graph.node(id).shown_name());
    let least = stats.incompressible;
    let later = plan.peak.saturating_sub(least);
    line(
        "at the peak",
        format!("{at}: {least} cannot be avoided there, {later} is kept for later"),
    );
    line("planned in", format!("{:.2} s", took.as_secs_f64()));
    if verbose {
        for d in &planned.decisions {
            let (bytes, name) = (d.bytes.to_string(), name(d.storage));
            line(word(d.choice), format!("{bytes:>12}  {name}: {}", d.reason.text()));
        }
    }
    out
}

/// What goes to the store and back, in all.
fn moves_text(moves: &Transfers, planned: &Planned, line: &mut impl FnMut(&str, String)) {
    let Transfers { moved_out, moved_in, hidden, waited, store_peak, .. } = moves;
    let share = waited.get() / planned.plan.time.get().max(f64::MIN_POSITIVE);
    line("transfers", format!("{moved_out} out and {moved_in} in, of tensors of any kind"));
    line("", format!("{hidden} of copying hidden behind computation"));
    line("", format!("{waited} waited ({} of the step)", percent(share)));
    let stored = match moves.stored_at_start {
        Bytes::ZERO => "nothing of it between steps".into(),
        stored => format!("{stored} of it between steps"),
    };
    line("in the store", format!("{store_peak} at most, {stored}"));
}

/// The store and the transfers of a plan; `None` if it moves nothing.
fn moving(graph: &Graph, planned: &Planned) -> Option<(String, Transfers)> {
    let schedule = &planned.plan.schedule;
    let moves = transfers(graph, schedule).expect("a checked plan can be replayed")?;
    Some((store_text(schedule), moves))
}

/// The store of a schedule, as it is typed.
pub(crate) fn store_text(schedule: &Schedule) -> String {
    schedule.store.map_or_else(String::new, |store| store.to_string())
}

/// What goes to a store and back, for a program: more keys of an object.
pub(crate) fn add_transfers(object: &mut Value, store: &str, moves: &Transfers) {
    object["store"] = json!(store);
    object["moved_out_bytes"] = json!(moves.moved_out.get());
    object["moved_in_bytes"] = json!(moves.moved_in.get());
    object["hidden_us"] = json!(moves.hidden.get());
    object["waited_us"] = json!(moves.waited.get());
    object["store_peak_bytes"] = json!(moves.store_peak.get());
    object["stored_between_steps_bytes"] = json!(moves.stored_at_start.get());
}

/// The summary for a program.
pub(crate) fn json(graph: &Graph, planned: &Planned, took: Duration) -> Value {
    let (plan, stats) = (&planned.plan, &planned.stats);
    let [retained, recomputed, moved] = by_choice(&planned.decisions);
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
    let mut summary = json!({
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
    });
    if let Some((store, moves)) = moving(graph, planned) {
        summary["moved"] = json!({"activations": moved.len(), "bytes": sum(&moved).get()});
        add_transfers(&mut summary, &store, &moves);
    }
    summary
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

/// Those that are kept, those that are recomputed, and those that are moved.
fn by_choice(decisions: &[Decision]) -> [Vec<&Decision>; 3] {
    let mut groups = [const { Vec::new() }; 3];
    for decision in decisions {
        let group = match decision.choice {
            Choice::Keep => 0,
            Choice::Recompute { .. } => 1,
            Choice::Move { .. } => 2,
        };
        groups[group].push(decision);
    }
    groups
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
fn costliest<'d>(recomputed: &[&'d Decision]) -> Vec<&'d Decision> {
    let mut sorted = recomputed.to_vec();
    sorted.sort_by(|a, b| b.spent.get().total_cmp(&a.spent.get()).then(a.storage.cmp(&b.storage)));
    sorted.truncate(TOP);
    sorted
}
