//! From what is in a folder to what the page shows.
//!
//! A graph is a step. A plan belongs to the graph whose digest it carries, and a frontier to the
//! graph whose plain peak is its largest budget, so nothing depends on how files are called. Tables
//! of a profile without a graph are a step too, of which less is known.

use std::path::Path;

use rekindle_analysis::{
    ActivationStats, Analysis, Kind, LAYERS, Measurements, NodeStats, Profile, Seconds, node_peaks,
};
use rekindle_graph::{Graph, Phase, Plan, Schedule, StorageId, Timeline};
use rekindle_plan::{Choice, NoWatch, Options, Strategy, decisions};
use rekindle_report::page::{
    ActivationRow, Beside, DecisionRow, FrontierPoint, NodeRow, Page, StepReport, StoredFrontier,
    Tensor,
};

use super::folder::{Folder, Found};
use super::missing::{of_graph, step_words, the_comparison, the_graph};
use super::schedule::schedule;
use super::tables::knee_of;

/// Everything that the page shows.
pub(super) fn page(found: Folder, folder: &Path) -> anyhow::Result<Page> {
    let mut steps = Vec::new();
    let mut missing = Vec::new();
    // How each step is named in a command.
    let mut words: Vec<Option<String>> = Vec::new();
    for (index, graph) in found.graphs.iter().enumerate() {
        // The same step may have come from two commands.
        let same = |other: &Found<Graph>| other.content.to_json() == graph.content.to_json();
        if found.graphs[..index].iter().any(same) {
            continue;
        }
        let step = step_of(graph, &found)?;
        missing.extend(of_graph(&step, steps.len(), graph, folder)?);
        words.push(step_words(&step, graph.content.name()));
        steps.push(step);
    }
    for nodes in &found.nodes {
        if !steps.iter().any(|step| is_profile_of(&nodes.content, step)) {
            let step = step_without_graph(nodes, &found);
            let command = step_words(&step, "");
            missing.push(the_graph(&step, steps.len(), command.as_deref(), folder));
            words.push(command);
            steps.push(step);
        }
    }
    let comparisons: Vec<_> = found.comparisons.into_iter().flat_map(|c| c.content).collect();
    for (index, step) in steps.iter().enumerate() {
        if !comparisons.iter().any(|row| row.model == step.model) {
            missing.push(the_comparison(step, index, words[index].as_deref(), folder));
        }
    }
    let mut names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    if names.is_empty() {
        names.push("training");
    }
    Ok(Page {
        title: format!("Rekindle: {}", names.join(" · ")),
        version: env!("CARGO_PKG_VERSION").into(),
        steps,
        comparisons,
        training: found.training.into_iter().map(|run| run.content).collect(),
        missing,
    })
}

fn step_of(found: &Found<Graph>, folder: &Folder) -> anyhow::Result<StepReport> {
    let graph = &found.content;
    let analysis = Analysis::new(graph);
    let (model, batch) = model_and_batch(&found.path, graph.name());
    let plain = Timeline::natural(graph);
    let tensors = tensors(graph, &analysis);
    let activations = activations(graph, &model, batch, &analysis, folder);
    let storages: Vec<StorageId> = analysis.activations.iter().map(|a| a.storage).collect();
    let mut schedules =
        vec![schedule("plain".into(), graph, &tensors, &Schedule::plain(graph), None, Vec::new())?];
    for plan in plans_of(graph, folder) {
        let store = if plan.schedule.has_transfers() { ", with a store" } else { "" };
        let name = format!("{}, {}{store}", strategy_of(plan), plan.budget);
        let decisions = decision_rows(graph, plan, &storages)?;
        let budget = Some(plan.budget.get());
        let drawn = schedule(name, graph, &tensors, &plan.schedule, budget, decisions)?;
        schedules.push(drawn);
    }
    let (frontier, stored_frontier) = frontiers_of(&plain, folder);
    Ok(StepReport {
        name: display_name(&model, batch),
        model,
        batch,
        nodes: graph.nodes().iter().map(node_row).collect(),
        layers: LAYERS.iter().map(|(name, _)| (*name).into()).collect(),
        tensors,
        schedules,
        knee: knee_of(&frontier),
        frontier,
        stored_frontier,
        beside: beside(graph, folder)?,
        activations,
    })
}

/// The plans of `graph`, of the search first. A plan without a digest belongs to the graph of its
/// name, if it can be replayed on it.
fn plans_of<'f>(graph: &Graph, folder: &'f Folder) -> Vec<&'f Plan> {
    let fits = |plan: &&Plan| {
        plan.check_graph(graph).is_ok() && Timeline::new(graph, &plan.schedule).is_ok()
    };
    let mut plans: Vec<&Plan> = folder.plans.iter().map(|p| &p.content).filter(fits).collect();
    plans.sort_by_key(|plan| strategy_of(plan) != Strategy::SEARCH.name);
    plans
}

fn strategy_of(plan: &Plan) -> &str {
    plan.strategy.as_deref().unwrap_or("a plan")
}

/// The frontiers whose largest budget is this plain step's peak, without a store and with one. What
/// they do there takes the plain step's time, in an order that may need less.
fn frontiers_of(plain: &Timeline, folder: &Folder) -> (Vec<FrontierPoint>, Option<StoredFrontier>) {
    let is_plain = |p: &FrontierPoint| {
        let close = (p.seconds - plain.time.seconds()).abs() <= 1e-9 * plain.time.seconds();
        p.recomputed == 0 && p.budget == plain.peak.get() && close
    };
    let own = |points: &[FrontierPoint]| points.iter().any(is_plain);
    let tables = || folder.frontiers.iter().map(|f| &f.content);
    let without = tables().map(|t| &t.points).find(|points| own(points));
    let with = tables().filter_map(|t| t.stored.as_ref()).find(|stored| own(&stored.points));
    (without.cloned().unwrap_or_default(), with.cloned())
}

/// What other methods reach: those without a budget are made here, those with one are plans of the
/// folder.
fn beside(graph: &Graph, folder: &Folder) -> anyhow::Result<Vec<Beside>> {
    let plain = Timeline::natural(graph).peak;
    let mut beside = Vec::new();
    for &strategy in Strategy::ALL {
        if strategy.heeds_budget {
            continue;
        }
        let options = Options { strategy, ..Options::default() };
        let planned = rekindle_plan::smallest(graph, &options, &mut NoWatch)?;
        if planned.plan.peak < plain {
            beside.push(point(strategy, &planned.plan));
        }
    }
    for plan in plans_of(graph, folder) {
        let strategy = Strategy::from_name(strategy_of(plan));
        let other = strategy.filter(|s| s.heeds_budget && *s != Strategy::SEARCH);
        beside.extend(other.map(|strategy| point(strategy, plan)));
    }
    Ok(beside)
}

fn point(strategy: Strategy, plan: &Plan) -> Beside {
    Beside {
        name: strategy.title.into(),
        about: strategy.about.into(),
        peak: plan.peak.get(),
        seconds: plan.time.seconds(),
    }
}

fn decision_rows(
    graph: &Graph,
    plan: &Plan,
    storages: &[StorageId],
) -> anyhow::Result<Vec<DecisionRow>> {
    let decisions = decisions(graph, plan)?;
    let row = |storage: &StorageId| {
        let decision = decisions.iter().find(|d| d.storage == *storage);
        let (recomputed, moved) = match decision.map(|d| d.choice) {
            Some(Choice::Recompute { times }) => (times, 0),
            Some(Choice::Move { times }) => (0, times),
            Some(Choice::Keep) | None => (0, 0),
        };
        DecisionRow {
            recomputed,
            moved,
            reason: decision.map_or("", |d| d.reason.text()).into(),
            spent_seconds: decision.map_or(0.0, |d| d.spent.seconds()),
        }
    };
    Ok(storages.iter().map(row).collect())
}

/// The activations with what follows from the graph's times, and the swap times that were measured,
/// if any.
fn activations(
    graph: &Graph,
    model: &str,
    batch: Option<usize>,
    analysis: &Analysis,
    folder: &Folder,
) -> Vec<ActivationRow> {
    let measured = folder.activations.iter().map(|a| &a.content);
    let mut same = measured.filter(|rows| {
        let pairs = rows.iter().zip(&analysis.activations);
        rows.len() == analysis.activations.len()
            && pairs
                .into_iter()
                .all(|(row, a)| row.memory_size == a.bytes && row.creation == a.made.0)
    });
    let swap_times: Vec<Option<Seconds>> = match same.next() {
        Some(rows) => rows.iter().map(|row| row.swap_time).collect(),
        None => vec![None; analysis.activations.len()],
    };
    let peaks = node_peaks(graph);
    let measured = Measurements { device: "", peak_mem: &peaks, swap_times: &swap_times };
    let profile = Profile::new(model, batch.unwrap_or(0), graph, &measured);
    profile.activations.iter().map(activation_row).collect()
}

fn activation_row(a: &ActivationStats) -> ActivationRow {
    let seconds = |s: Option<Seconds>| s.map(Seconds::get);
    ActivationRow {
        name: a.name.clone(),
        bytes: a.memory_size.get(),
        created: a.creation,
        first_backward: a.first_backward,
        inactive_seconds: seconds(a.inactive_time),
        recompute_seconds: seconds(a.recomp_time),
        swap_seconds: seconds(a.swap_time),
    }
}

fn node_row(node: &rekindle_graph::Node) -> NodeRow {
    let runs = node.phase != Phase::Input;
    NodeRow {
        name: node.name.clone(),
        op: node.op.clone(),
        phase: Some(node.phase),
        seconds: if runs { node.time.seconds() } else { 0.0 },
    }
}

fn tensors(graph: &Graph, analysis: &Analysis) -> Vec<Tensor> {
    let layer = |kind: Kind| LAYERS.iter().position(|(_, kinds)| kinds.contains(&kind));
    let tensor = |id: StorageId| Tensor {
        name: graph.storage_name(id),
        bytes: graph.storage(id).bytes.get(),
        layer: layer(analysis.storage_kinds[id.index()]).expect("every kind has a layer"),
    };
    graph.storage_ids().map(tensor).collect()
}

/// Whether the node table is that of a step whose graph is there.
fn is_profile_of(nodes: &[NodeStats], step: &StepReport) -> bool {
    let pairs = nodes.iter().zip(&step.nodes);
    nodes.len() == step.nodes.len() && pairs.into_iter().all(|(a, b)| a.name == b.name)
}

/// What the two tables of a profile tell.
fn step_without_graph(nodes: &Found<Vec<NodeStats>>, folder: &Folder) -> StepReport {
    let (model, batch) = model_and_batch(&nodes.path, "");
    let twin = nodes.path.to_string_lossy().replace("node_stats", "activation_stats");
    let mut tables = folder.activations.iter();
    let rows = tables.find(|a| a.path.to_string_lossy() == twin).map(|a| &a.content);
    let node = |n: &NodeStats| NodeRow {
        name: n.name.clone(),
        op: n.kind.name().into(),
        phase: n.phase,
        seconds: n.run_time.get(),
    };
    StepReport {
        name: display_name(&model, batch),
        model,
        batch,
        nodes: nodes.content.iter().map(node).collect(),
        layers: Vec::new(),
        tensors: Vec::new(),
        schedules: Vec::new(),
        frontier: Vec::new(),
        knee: None,
        stored_frontier: None,
        beside: Vec::new(),
        activations: rows.into_iter().flatten().map(activation_row).collect(),
    }
}

fn display_name(model: &str, batch: Option<usize>) -> String {
    match batch {
        Some(batch) => format!("{model}, batch {batch}"),
        None => model.into(),
    }
}

/// The model and the batch size, from a name such as `resnet152_bs4.graph.json` or else from the
/// graph's, `resnet152-b4`.
pub(super) fn model_and_batch(path: &Path, graph: &str) -> (String, Option<usize>) {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let file = file.trim_start_matches("profiler_stats_");
    let stem = file.split('.').next().unwrap_or_default();
    let split = |text: &str, mark: &str| {
        let (model, rest) = text.rsplit_once(mark)?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        Some((model.to_owned(), Some(rest[..digits].parse().ok()?)))
    };
    let fallback = if graph.is_empty() { stem } else { graph };
    split(stem, "_bs").or_else(|| split(graph, "-b")).unwrap_or((fallback.into(), None))
}

#[cfg(test)]
mod tests {
    use rekindle_graph::{Bytes, Micros};

    use super::*;

    #[track_caller]
    fn check(file: &str, graph: &str, model: &str, batch: Option<usize>) {
        let found = model_and_batch(Path::new(file), graph);
        assert_eq!(found, (model.into(), batch));
    }

    #[test]
    fn a_step_is_named_by_its_file_or_its_graph() {
        check("d/resnet152_bs4.graph.json", "other-b9", "resnet152", Some(4));
        check("d/graph.json", "bert-base-b16-s128", "bert-base", Some(16));
        check("d/profiler_stats_my_net_bs8_node_stats.csv", "", "my_net", Some(8));
        check("d/graph.json", "step", "step", None);
        check("d/graph.json", "", "graph", None);
    }

    #[test]
    fn a_plan_belongs_to_the_graph_whose_digest_it_carries() {
        let text = r#"{"format": "remat.graph/1", "name": "step", "origin": "by hand",
            "storages": [{"bytes": 8, "role": "activation"}],
            "nodes": [{"name": "f", "op": "f", "phase": "forward", "time_us": 3,
                       "reads": [], "writes": [0]}],
            "outputs": [0], "targets": []}"#;
        let graph = Graph::from_json(text).expect("a graph");
        let mut parts = graph.clone().into_parts();
        parts.storages[0].bytes = Bytes(9);
        let other = Graph::new(parts).expect("a graph").digest();
        let plan = |name: &str, digest, time| Found {
            path: "plan.json".into(),
            content: Plan {
                graph: name.into(),
                digest,
                strategy: None,
                budget: Bytes(8),
                peak: Bytes(8),
                time: Micros(time),
                schedule: Schedule::plain(&graph),
            },
        };
        // The second was made with other times; the last two have no digest.
        let (own, other) = (Some(graph.digest()), Some(other));
        let plans = vec![
            plan("step", own, 1.0),
            plan("renamed", own, 2.0),
            plan("step", other, 3.0),
            plan("step", None, 4.0),
            plan("other", None, 5.0),
        ];
        let folder = Folder { plans, ..Folder::default() };
        let times: Vec<f64> = plans_of(&graph, &folder).iter().map(|p| p.time.get()).collect();
        assert_eq!(times, [1.0, 2.0, 4.0]);
    }
}
