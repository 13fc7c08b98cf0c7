//! `rekindle plan --node-stats --activation-stats`: μ-TWO from the profiler's two files alone.
//!
//! The files have no edges, so nobody can say which nodes rebuild an activation: this works at the
//! level of activations, says so, and gives decisions but no schedule.

use std::path::Path;

use rekindle_analysis::{
    ActivationStats, NodeStats, check_tables, read_activation_stats, read_node_stats,
};
use rekindle_graph::{Budget, Bytes, Micros, Phase};
use rekindle_plan::mutwo::{
    ActivationLevel, ActivationPlan, Candidate, TableChoice, plan_activations,
};
use serde_json::json;

use super::plan::TableArguments;
use crate::exit::UsageError;
use crate::output;
use crate::summary::percent;

pub(crate) fn run(
    profile: &TableArguments,
    budget: Budget,
    decisions: Option<&Path>,
    json: bool,
) -> anyhow::Result<()> {
    let (Some(node_file), Some(activation_file)) = (&profile.node_stats, &profile.activation_stats)
    else {
        let why = "give a graph, or both --node-stats and --activation-stats";
        return Err(UsageError(why.into()).into());
    };
    let nodes = read_node_stats(node_file)?;
    let activations = read_activation_stats(activation_file)?;
    output::note("without edges mutwo works at the level of activations; there is no schedule");
    let missing: Vec<&str> = nodes.missing.into_iter().chain(activations.missing).collect();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        output::note(&format!("the files lack {missing}; planning goes on without"));
    }
    check_tables(node_file, &nodes.rows, activation_file, &activations.rows)?;
    let (level, rows) = activation_level(&nodes.rows, &activations.rows);
    if profile.swap && level.activations.iter().all(|a| a.swap_time.is_none()) {
        let why = "--swap needs the column avg_swap_time_s, which the activation table lacks";
        return Err(UsageError(why.into()).into());
    }
    let plain_peak = level.peak_bytes.iter().copied().max().unwrap_or(Bytes::ZERO);
    let budget = budget.resolve(plain_peak);
    let plan = plan_activations(&level, budget, profile.swap)?;
    if let Some(path) = decisions {
        output::write(path, &csv(&activations.rows, &rows, &plan))?;
    }
    print(&level, &plan, budget, json);
    Ok(())
}

/// The profile as the planner takes it, and which row of the file each of its activations is. The
/// tables have been checked. An activation that the backward pass does not use, or that cannot be
/// made again, is kept anyway.
fn activation_level(
    nodes: &[NodeStats],
    activations: &[ActivationStats],
) -> (ActivationLevel, Vec<usize>) {
    let ranks = nodes.len();
    let mut level = ActivationLevel {
        run_time: vec![Micros::ZERO; ranks],
        peak_bytes: vec![Bytes::ZERO; ranks],
        backward: ranks,
        activations: Vec::new(),
    };
    for node in nodes {
        let rank = node.rank as usize;
        level.run_time[rank] = node.run_time.into();
        level.peak_bytes[rank] = node.peak_mem;
        if node.phase == Some(Phase::Backward) {
            level.backward = level.backward.min(rank);
        }
    }
    let mut rows = Vec::new();
    for (row, a) in activations.iter().enumerate() {
        if let Some(activation) = profiled(a) {
            level.activations.push(activation);
            rows.push(row);
        }
    }
    (level, rows)
}

fn profiled(a: &ActivationStats) -> Option<Candidate> {
    let first_backward = a.first_backward? as usize;
    Some(Candidate {
        name: a.name.clone(),
        bytes: a.memory_size,
        created: a.creation as usize,
        last_forward: a.last_forward.unwrap_or(a.creation) as usize,
        first_backward,
        last_backward: a.last_backward.map_or(first_backward, |r| r as usize),
        inactive_time: a.inactive_time.map_or(Micros::ZERO, Micros::from),
        recompute_time: a.recomp_time?.into(),
        recompute_memory: a.recomp_memory.unwrap_or(a.memory_size),
        swap_time: a.swap_time.map(Micros::from),
        sources: Vec::new(),
    })
}

fn csv(activations: &[ActivationStats], rows: &[usize], plan: &ActivationPlan) -> String {
    let mut choices = vec![TableChoice::Keep; activations.len()];
    for (&row, &choice) in rows.iter().zip(&plan.choices) {
        choices[row] = choice;
    }
    let each = activations.iter().zip(choices);
    output::decisions_csv(each.filter_map(|(a, choice)| {
        Some(output::DecisionRow {
            name: a.name.clone(),
            // A swapped activation is not made again, and there is no schedule that moves it.
            word: match choice {
                TableChoice::Recompute => "RECOMPUTE",
                TableChoice::Keep | TableChoice::Swap { .. } => "RETAINED",
            },
            reason: None,
            bytes: a.memory_size.get(),
            seconds: a.recomp_time.map_or(0.0, |t| t.get()),
            created: a.creation,
            first_backward: a.first_backward?,
        })
    }))
}

fn print(level: &ActivationLevel, plan: &ActivationPlan, budget: Bytes, json: bool) {
    let step: Micros = level.run_time.iter().copied().sum();
    let overhead = plan.overhead.get() / step.get().max(f64::MIN_POSITIVE);
    let of = |wanted: fn(&TableChoice) -> bool| {
        let each = plan.choices.iter().zip(&level.activations);
        let chosen: Vec<Bytes> =
            each.filter(|(choice, _)| wanted(choice)).map(|(_, a)| a.bytes).collect();
        (chosen.len(), chosen.iter().copied().sum::<Bytes>())
    };
    let kept = of(|c| matches!(c, TableChoice::Keep));
    let recomputed = of(|c| matches!(c, TableChoice::Recompute));
    let swapped = of(|c| matches!(c, TableChoice::Swap { .. }));
    if json {
        let summary = json!({
            "level": "activations",
            "budget_bytes": budget.get(),
            "plain_peak_bytes": plan.peak_before.get(),
            "peak_bytes": plan.peak.get(),
            "overhead": overhead,
            "retained": {"activations": kept.0, "bytes": kept.1.get()},
            "recomputed": {"activations": recomputed.0, "bytes": recomputed.1.get()},
            "swapped": {"activations": swapped.0, "bytes": swapped.1.get()},
        });
        println!("{summary:#}");
        return;
    }
    println!("budget       {budget}");
    println!("peak         {} -> {} (simulated)", plan.peak_before, plan.peak);
    println!("time         {step} (+{}, estimated)", percent(overhead));
    println!("retained     {} activations, {}", kept.0, kept.1);
    println!("recomputed   {} activations, {}", recomputed.0, recomputed.1);
    if swapped.0 > 0 {
        println!("swapped      {} activations, {}", swapped.0, swapped.1);
    }
}
