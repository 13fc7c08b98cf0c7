//! `rekindle plan --node-stats --activation-stats`: μ-TWO from the profiler's two files alone.
//!
//! The files have no edges, so nobody can say which nodes rebuild an activation: this works at the
//! level of activations, says so, and gives decisions but no schedule.

use std::collections::HashMap;
use std::path::Path;

use rekindle_analysis::{
    ActivationStats, NodeStats, TableError, read_activation_stats, read_node_stats,
};
use rekindle_graph::{Budget, Bytes, Micros, Phase};
use rekindle_plan::mutwo::{ActivationLevel, ActivationPlan, Candidate, Choice, plan_activations};
use serde_json::json;

use super::plan::Profile;
use crate::exit::UsageError;
use crate::output;
use crate::summary::percent;

pub(crate) fn run(
    profile: &Profile,
    budget: Budget,
    decisions: Option<&Path>,
    json: bool,
) -> anyhow::Result<()> {
    let (Some(node_file), Some(activation_file)) = (&profile.node_stats, &profile.activation_stats)
    else {
        return Err(
            UsageError("give a graph, or both --node-stats and --activation-stats".into()).into(),
        );
    };
    let nodes = read_node_stats(node_file)?;
    let activations = read_activation_stats(activation_file)?;
    output::note("without edges mutwo works at the level of activations; there is no schedule");
    let missing: Vec<&str> = nodes
        .missing
        .into_iter()
        .chain(activations.missing)
        .collect();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        output::note(&format!(
            "the files lack {missing}; planning goes on without"
        ));
    }
    check_ranks(node_file, &nodes.rows)?;
    let (level, rows) = activation_level(&nodes.rows, &activations.rows);
    if profile.swap && level.activations.iter().all(|a| a.swap_time.is_none()) {
        let why = "--swap needs the column avg_swap_time_s, which the activation table lacks";
        return Err(UsageError(why.into()).into());
    }
    let plain_peak = level
        .peak_bytes
        .iter()
        .copied()
        .max()
        .unwrap_or(Bytes::ZERO);
    let budget = budget.resolve(plain_peak);
    let plan = plan_activations(&level, budget, profile.swap)?;
    if let Some(path) = decisions {
        output::write(path, &csv(&activations.rows, &rows, &plan))?;
    }
    print(&level, &plan, budget, json);
    Ok(())
}

/// Ranks beyond this are damage: no step has so many nodes.
const HIGHEST_RANK: u32 = 10_000_000;

/// A rank is a node's position in the step, and no other row's. Some may be missing.
fn check_ranks(file: &Path, nodes: &[NodeStats]) -> Result<(), TableError> {
    let bad = |index: usize, why: String| TableError::Csv {
        path: file.to_owned(),
        message: format!(
            "row {} ({}): `rank` is {}, {why}; a rank is a node's position in the step",
            index + 1,
            nodes[index].name,
            nodes[index].rank
        ),
    };
    let mut row_of = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        if node.rank > HIGHEST_RANK {
            return Err(bad(index, format!("more than {HIGHEST_RANK}")));
        }
        if let Some(other) = row_of.insert(node.rank, index) {
            let why = format!("which is also that of row {}", other + 1);
            return Err(bad(index, why));
        }
    }
    Ok(())
}

/// The profile as the planner takes it, and which row of the file each of its activations is. Ranks
/// have been checked. An activation that the backward pass does not use, or that cannot be made
/// again, is kept anyway.
fn activation_level(
    nodes: &[NodeStats],
    activations: &[ActivationStats],
) -> (ActivationLevel, Vec<usize>) {
    let ranks = nodes.iter().map(|n| n.rank as usize + 1).max().unwrap_or(0);
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

/// What happens to each row of the file.
fn choices(count: usize, rows: &[usize], plan: &ActivationPlan) -> Vec<Choice> {
    let mut choices = vec![Choice::Keep; count];
    for (&row, &choice) in rows.iter().zip(&plan.choices) {
        choices[row] = choice;
    }
    choices
}

fn csv(activations: &[ActivationStats], rows: &[usize], plan: &ActivationPlan) -> String {
    let mut csv = String::from(output::DECISIONS_HEADER);
    let choices = choices(activations.len(), rows, plan);
    for (a, choice) in activations.iter().zip(choices) {
        let Some(first_backward) = a.first_backward else {
            continue;
        };
        let word = match choice {
            Choice::Recompute => "RECOMPUTE",
            // The format has two words; a swapped activation is not made again.
            Choice::Keep | Choice::Swap { .. } => "RETAINED",
        };
        output::decision_row(
            &mut csv,
            &a.name,
            word,
            a.memory_size.get(),
            a.recomp_time.map_or(0.0, |t| t.get()),
            [a.creation as usize, first_backward as usize],
        );
    }
    csv
}

fn print(level: &ActivationLevel, plan: &ActivationPlan, budget: Bytes, json: bool) {
    let step: Micros = level.run_time.iter().copied().sum();
    let overhead = plan.overhead.get() / step.get().max(f64::MIN_POSITIVE);
    let of = |wanted: fn(&Choice) -> bool| {
        let each = plan.choices.iter().zip(&level.activations);
        let chosen: Vec<Bytes> = each
            .filter(|(choice, _)| wanted(choice))
            .map(|(_, a)| a.bytes)
            .collect();
        (chosen.len(), chosen.iter().copied().sum::<Bytes>())
    };
    let kept = of(|c| matches!(c, Choice::Keep));
    let recomputed = of(|c| matches!(c, Choice::Recompute));
    let swapped = of(|c| matches!(c, Choice::Swap { .. }));
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
    println!(
        "peak         {} -> {} (simulated)",
        plan.peak_before, plan.peak
    );
    println!("time         {step} (+{}, estimated)", percent(overhead));
    println!("retained     {} activations, {}", kept.0, kept.1);
    println!(
        "recomputed   {} activations, {}",
        recomputed.0, recomputed.1
    );
    if swapped.0 > 0 {
        println!("swapped      {} activations, {}", swapped.0, swapped.1);
    }
}

#[cfg(test)]
mod tests {
    use rekindle_analysis::{Kind, Seconds};

    use super::*;

    fn node(rank: u32) -> NodeStats {
        NodeStats {
            rank,
            name: format!("node_{rank}"),
            kind: Kind::Activation,
            phase: Some(Phase::Forward),
            run_time: Seconds::default(),
            peak_mem: Bytes(1),
            active_mem: Bytes(1),
            device: "cpu".into(),
        }
    }

    #[track_caller]
    fn check_refused(ranks: &[u32], words: &str) {
        let nodes: Vec<NodeStats> = ranks.iter().copied().map(node).collect();
        let error = check_ranks(Path::new("nodes.csv"), &nodes).expect_err("bad ranks");
        assert!(error.to_string().contains(words), "{error}");
        let code = format!("{:?}", crate::exit::code(&error.into()));
        let file = std::process::ExitCode::from(crate::exit::BAD_FILE);
        assert_eq!(code, format!("{file:?}"));
    }

    #[test]
    fn ranks_are_the_positions_in_the_step_in_any_order() {
        for (ranks, count) in [(&[][..], 0), (&[0], 1), (&[2, 0, 1], 3), (&[1, 3], 4)] {
            let nodes: Vec<NodeStats> = ranks.iter().copied().map(node).collect();
            assert!(check_ranks(Path::new("nodes.csv"), &nodes).is_ok());
            assert_eq!(activation_level(&nodes, &[]).0.run_time.len(), count);
        }
        check_refused(
            &[0, u32::MAX],
            "nodes.csv: row 2 (node_4294967295): `rank` is 4294967295, more than 10000000",
        );
        check_refused(
            &[1, 0, 1],
            "row 3 (node_1): `rank` is 1, which is also that of row 1",
        );
    }
}
