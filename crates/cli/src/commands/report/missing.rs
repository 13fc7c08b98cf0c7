//! What a step on the page lacks, with the command that makes it, if there is one.
//!
//! A graph can be planned, whoever made it. Only a step of one of our models can be profiled or
//! compared; which flags it was built with is read from its name and its nodes.
//!
//! Limit: Adam and AdamW have the same nodes, bytes and, but for little, times: one is named for
//! both.

use std::path::Path;

use rekindle_graph::{Graph, Timeline};
use rekindle_plan::{Effort, NoWatch, Options, PlanError, Strategy};
use rekindle_report::page::{Missing, Section, StepReport};

use super::folder::Found;
use crate::commands::step::{IMAGE_SIZE, OPTIMIZER, SEQUENCE};

/// What a step with a graph lacks.
pub(super) fn of_graph(
    step: &StepReport,
    index: usize,
    graph: &Found<Graph>,
    folder: &Path,
) -> anyhow::Result<Vec<Missing>> {
    let stem = graph.path.file_name().unwrap_or_default().to_string_lossy();
    let stem = stem.trim_end_matches(".json").trim_end_matches(".graph");
    let file = |ending: &str| quoted(&folder.join(format!("{stem}.{ending}")));
    let missing = |section, what: &str, command: &str| Missing {
        section,
        step: Some(index),
        what: format!("{what} of {}", step.name),
        command: Some(command.into()),
    };
    let path = quoted(&graph.path);
    let mut all = Vec::new();
    if step.schedules.len() < 2 {
        let (percent, plan) = (budget(&graph.content)?, file("plan.json"));
        let command = format!("rekindle plan {path} --budget {percent}% --out {plan}");
        all.push(missing(Section::Memory, "plan", &command));
        all.push(missing(Section::Activations, "plan", &command));
    }
    if step.frontier.is_empty() {
        let frontier = file("frontier.csv");
        let command = format!("rekindle frontier {path} --out {frontier}");
        all.push(missing(Section::Frontier, "frontier", &command));
    }
    Ok(all)
}

/// The budget to suggest, in percent of the plain peak: half of it, or the least that is quickly
/// known to have a plan.
fn budget(graph: &Graph) -> Result<u64, PlanError> {
    const HALF: u64 = 50;
    let effort = Effort::new(0).expect("the lowest level");
    let quick = Options { strategy: Strategy::SEARCH, effort, store: None };
    let least = rekindle_plan::smallest(graph, &quick, &mut NoWatch)?.plan.peak;
    let plain = Timeline::natural(graph).peak;
    let share = 100.0 * least.get() as f64 / plain.get().max(1) as f64;
    Ok(HALF.max(share.ceil() as u64))
}

/// That a step has no graph.
pub(super) fn the_graph(
    step: &StepReport,
    index: usize,
    words: Option<&str>,
    folder: &Path,
) -> Missing {
    let (batch, folder) = (step.batch.unwrap_or(4), quoted(folder));
    let profile = |words| format!("rekindle profile {words} --batch-size {batch} --out {folder}");
    let what = format!("graph of {}", step.name);
    Missing { section: Section::Memory, step: Some(index), what, command: words.map(profile) }
}

/// That a step has no comparison.
pub(super) fn the_comparison(
    step: &StepReport,
    index: usize,
    words: Option<&str>,
    folder: &Path,
) -> Missing {
    let csv = quoted(&folder.join(format!("{}.compare.csv", step.model)));
    let compare = |words| format!("rekindle compare {words} --batch-sizes 4,8 --check --csv {csv}");
    let what = format!("comparison of {} at several batch sizes", step.model);
    Missing { section: Section::Batches, step: Some(index), what, command: words.map(compare) }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=,:@%".contains(c);
    match text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// The words that name a step in a command: the model, and the flags that it was built with, as far
/// as they can be known; nothing for a step that is of no model. `graph` is the graph's name
/// (`gpt2-b4-s64`).
pub(super) fn step_words(step: &StepReport, graph: &str) -> Option<String> {
    rekindle_models::names().find(|name| *name == step.model)?;
    let optimizer = optimizer(step)?;
    let mut words = step.model.clone();
    for (mark, flag, usual) in [("-i", "image-size", IMAGE_SIZE), ("-s", "sequence", SEQUENCE)] {
        if let Some(size) = size(graph, mark).filter(|size| *size != usual) {
            words += &format!(" --{flag} {size}");
        }
    }
    if optimizer != OPTIMIZER {
        words += &format!(" --optimizer {optimizer}");
    }
    Some(words)
}

/// Which optimizer's state a step has; a step from elsewhere has none of these.
fn optimizer(step: &StepReport) -> Option<&'static str> {
    let kinds = [(".exp_avg", "adam"), (".momentum", "sgd")];
    let has = |ending: &str| step.nodes.iter().any(|node| node.name.ends_with(ending));
    let found = kinds.into_iter().find(|(ending, _)| has(ending));
    found.map(|(_, name)| name)
}

/// The number after a mark at the end of a graph's name.
fn size(graph: &str, mark: &str) -> Option<usize> {
    graph.rsplit_once(mark)?.1.parse().ok()
}
