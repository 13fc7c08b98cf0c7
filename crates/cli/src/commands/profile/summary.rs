//! What a profile says, in words on the terminal and as JSON.

use std::fmt::Write as _;

use rekindle_analysis::{ActivationStats, LAYERS, Seconds, gtype};
use rekindle_graph::{Bytes, Micros, Phase};
use serde_json::{Value, json};

use super::Profiled;
use super::measured::LimitedRun;
use crate::summary::percent;

/// How many nodes and activations each list has.
const TOP: usize = 5;

/// The summary for a person.
pub(crate) fn text(profiled: &Profiled) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: String| {
        writeln!(out, "{name:<12} {text}").expect("writing to a string cannot fail");
    };
    let profile = &profiled.profile;
    let step = profile.step_time();
    line(
        "model",
        format!("{}, batch {}: {} nodes", profile.model, profile.batch_size, profile.nodes.len()),
    );
    line("step", format!("{} ({})", show(step), passes(profiled)));
    let peak = &profiled.peak;
    let at = profile.peak().map_or("the start", |n| &n.name);
    line("peak", format!("{} at {at}", peak.total()));
    for ((name, _), bytes) in LAYERS.iter().zip(peak.layers()) {
        let share = percent(ratio(bytes, peak.total()));
        line("", format!("{:>12}  {share:>7}  {name}", bytes.to_string()));
    }
    if let Some(run) = &profiled.limited {
        let LimitedRun { limit, peak, recomputed, offloads, fetches } = run;
        let moved = format!("{offloads} copies out, {fetches} copies back");
        line(
            "limited",
            format!("ran in {peak} (limit {limit}): {recomputed} nodes recomputed, {moved}"),
        );
    }
    let sizes = profile.activations.iter().map(|a| a.memory_size);
    line("activations", format!("{}, {} in all", profile.activations.len(), sizes.sum::<Bytes>()));
    line("", "longest nodes".into());
    for n in top(&profile.nodes, |n| n.run_time.get()) {
        let share = percent(n.run_time.get() / step.get().max(f64::MIN_POSITIVE));
        line("", format!("{:>12}  {share:>7}  {}", show(n.run_time), n.name));
    }
    for (title, key) in ORDERS {
        out += &activations(title, &top(&profile.activations, key));
    }
    out
}

type Order = (&'static str, fn(&ActivationStats) -> f64);

/// The orders in which the first activations are listed.
const ORDERS: [Order; 3] = [
    ("size", |a| a.memory_size.get() as f64),
    ("inactive time", |a| a.inactive_time.map_or(0.0, Seconds::get)),
    ("recompute ratio", |a| a.recompute_ratio.unwrap_or(0.0)),
];

/// A table of activations. It starts at the left edge, since their names are long.
fn activations(order: &str, rows: &[&ActivationStats]) -> String {
    let columns = |cells: [&str; 5]| {
        let [size, idle, again, ratio, name] = cells;
        format!("{size:>11} {idle:>10} {again:>10} {ratio:>12}  {name}\n")
    };
    let mut out =
        columns(["size", "idle", "again in", "ratio", &format!("activations by {order}")]);
    let time = |t: Option<Seconds>| t.map_or("never".into(), show);
    for a in rows {
        let ratio = match a.recompute_ratio {
            Some(ratio) if ratio.is_finite() => format!("{}/s", Bytes(ratio as u64)),
            Some(_) => "free".into(),
            None => "-".into(),
        };
        out += &columns([
            &a.memory_size.to_string(),
            &time(a.inactive_time),
            &time(a.recomp_time),
            &ratio,
            &a.name,
        ]);
    }
    out
}

/// The summary for a program.
pub(crate) fn json(profiled: &Profiled) -> Value {
    let profile = &profiled.profile;
    let peak = &profiled.peak;
    let layers = LAYERS.iter().zip(peak.layers());
    let breakdown: serde_json::Map<String, Value> = layers
        .map(|((name, _), bytes)| {
            let key = name.replace(' ', "_") + "_bytes";
            (key, bytes.get().into())
        })
        .collect();
    let nodes = top(&profile.nodes, |n| n.run_time.get())
        .into_iter()
        .map(|n| json!({"name": n.name, "rank": n.rank, "run_time_s": n.run_time.get()}));
    let orders = ORDERS.iter().map(|(title, key)| {
        let names = top(&profile.activations, *key).into_iter().map(json_activation);
        (title.replace(' ', "_"), names.collect())
    });
    json!({
        "model": profile.model,
        "batch_size": profile.batch_size,
        "nodes": profile.nodes.len(),
        "activations": profile.activations.len(),
        "step_time_s": profile.step_time().get(),
        "peak_bytes": peak.total().get(),
        "peak_node": profile.peak().map(|n| &n.name),
        "peak_breakdown": breakdown,
        "limited": profiled.limited.as_ref().map(|run| json!({
            "limit_bytes": run.limit.get(),
            "peak_bytes": run.peak.get(),
            "recomputed_runs": run.recomputed,
            "offloads": run.offloads,
            "fetches": run.fetches,
        })),
        "longest_nodes": nodes.collect::<Vec<_>>(),
        "activations_by": orders.collect::<serde_json::Map<String, Value>>(),
    })
}

fn json_activation(a: &ActivationStats) -> Value {
    // JSON has no infinity; the word is the one of the CSV files.
    let ratio = match a.recompute_ratio {
        Some(ratio) if ratio.is_infinite() => json!("inf"),
        other => json!(other),
    };
    json!({
        "name": a.name,
        "memory_size_bytes": a.memory_size.get(),
        "inactive_time_s": a.inactive_time.map(Seconds::get),
        "swap_time_s": a.swap_time.map(Seconds::get),
        "recomp_time_s": a.recomp_time.map(Seconds::get),
        "recompute_ratio": ratio,
    })
}

/// The items with the largest keys, the first of equal ones first.
fn top<T>(items: &[T], key: impl Fn(&T) -> f64) -> Vec<&T> {
    let mut sorted: Vec<&T> = items.iter().collect();
    sorted.sort_by(|a, b| key(b).total_cmp(&key(a)));
    sorted.truncate(TOP);
    sorted
}

fn passes(profiled: &Profiled) -> String {
    let of = |phase| {
        let nodes = profiled.profile.nodes.iter().filter(|n| n.phase == phase);
        show(Seconds(nodes.map(|n| n.run_time.get()).sum()))
    };
    let passes = [Phase::Forward, Phase::Backward, Phase::Optimizer].map(Some);
    let passes = passes.map(|phase| format!("{} {}", gtype(phase), of(phase)));
    passes.join(", ")
}

fn show(time: Seconds) -> String {
    Micros::from(time).to_string()
}

fn ratio(part: Bytes, whole: Bytes) -> f64 {
    part.get() as f64 / whole.get().max(1) as f64
}
