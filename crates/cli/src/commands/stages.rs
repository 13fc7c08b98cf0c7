//! The stages on the terminal: profile, plan, rewrite, verify, place, a line each.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rekindle::{Checked, Error, FitOptions, Fitted, Trainer, check_numbers_from, fit_profiled};
use rekindle_analysis::{Transfers, transfers};
use rekindle_engine::{Engine, EngineError, Layout};
use rekindle_graph::{Bytes, Graph, Micros, Phase, Plan};
use rekindle_models::Model;

use crate::exit::UsageError;
use crate::output::{bold, note};
use crate::progress::{Bar, Meter};
use crate::summary::percent;

/// Lines of a name and a text, unless nobody wants to read them.
pub(crate) struct Lines {
    pub(crate) shown: bool,
    /// Before every line.
    pub(crate) indent: &'static str,
}

impl Lines {
    pub(crate) fn line(&self, name: &str, text: impl std::fmt::Display) {
        if self.shown {
            println!("{}{} {text}", self.indent, bold(&format!("{name:<9}")));
        }
    }
}

/// A fitted step, with how long the stages took.
pub(crate) struct Staged {
    pub(crate) fitted: Fitted,
    pub(crate) profile_time: Duration,
    pub(crate) plan_time: Duration,
}

/// Where the times come from.
pub(crate) enum Times {
    /// Runs of the plain step.
    Plain,
    /// Runs within the budget.
    InBudget,
    /// These, measured in so much time; in none if they are from a file.
    Given(Box<Graph>, Duration),
}

/// Fits a step into a budget, and prints each stage when it is over.
pub(crate) fn fit(
    model: &Model,
    plain: &Layout,
    budget: Bytes,
    times: Times,
    options: &FitOptions,
    limit: Option<Duration>,
    lines: &Lines,
) -> anyhow::Result<Staged> {
    let arena = plain.predicted().arena;
    let share = percent(budget.get() as f64 / arena.get().max(1) as f64);
    let of_plain = format!("{share} of the plain step's {arena}");
    lines.line("budget", format!("{budget}, {of_plain}"));
    if budget >= arena && lines.shown {
        note("the plain step fits in this budget: nothing has to be recomputed");
    }
    let started = Instant::now();
    let mut meter = Meter::new(limit);
    let mut watch = |preparing| meter.prepare(preparing, "");
    let (graph, before) = match times {
        Times::Plain => {
            (rekindle::profile_layout(model, plain, options, &mut watch)?, Duration::ZERO)
        }
        Times::InBudget => {
            (rekindle::profile(model, plain, budget, options, &mut watch)?, Duration::ZERO)
        }
        Times::Given(graph, took) => (*graph, took),
    };
    let profile_time = before + started.elapsed();
    meter.clear();
    lines.line("profile", profile_text(&graph, profile_time));
    meter.restart("planning".into());
    let fitted = fit_profiled(&model.program, &graph, budget, options, &mut meter);
    meter.clear();
    let plan_time = meter.elapsed();
    let fitted = fitted?;
    lines.line("plan", plan_text(&fitted, plan_time));
    lines.line("rewrite", rewrite_text(&fitted));
    lines.line("verify", verify_text(&fitted));
    lines.line("place", place_text(&fitted));
    Ok(Staged { fitted, profile_time, plan_time })
}

/// Sets up a step that moves nothing, with a bar.
pub(crate) fn engine(layout: &Layout, seed: u64) -> Result<Engine, EngineError> {
    set_up(layout, seed, None)
}

/// Sets up a planned step, with a bar.
pub(crate) fn planned_engine(fitted: &Fitted) -> Result<Engine, EngineError> {
    set_up(&fitted.layout, fitted.seed, fitted.folder.as_deref())
}

/// Sets up a step, with a store in `folder` if it moves anything, and with a bar.
pub(crate) fn set_up(
    layout: &Layout,
    seed: u64,
    folder: Option<&Path>,
) -> Result<Engine, EngineError> {
    let mut meter = Meter::new(None);
    rekindle::set_up(layout, seed, folder, &mut |preparing| meter.prepare(preparing, ""))
}

/// What a planned step moves to its store and back; `None` if nothing.
pub(crate) fn moves_of(fitted: &Fitted) -> Option<Transfers> {
    let moves = transfers(&fitted.graph, &fitted.planned.plan.schedule);
    moves.expect("a checked plan can be replayed")
}

/// Compares every number of the planned step with the plain one's; `start` prepares each of the
/// runs.
pub(crate) fn check_numbers(
    model: &Model,
    plain: &Layout,
    fitted: &Fitted,
    steps: u64,
    start: &dyn Fn(&mut Trainer<'_>) -> Result<(), Error>,
) -> Result<Checked, Error> {
    let mut bar = Bar::new("comparing numbers");
    let mut watch = |done, total| bar.show(done, total, "");
    check_numbers_from(model, plain, fitted, steps, fitted.seed, start, &mut watch)
}

/// The plan as the user asked for it: the planner may have been given less room, for what
/// fragmentation costs.
pub(crate) fn plan_of(fitted: &Fitted) -> Plan {
    Plan { budget: fitted.budget, ..fitted.planned.plan.clone() }
}

fn profile_text(graph: &Graph, took: Duration) -> String {
    let nodes = graph.nodes().iter().filter(|n| n.phase != Phase::Input);
    let time: Micros = nodes.clone().map(|n| n.time).sum();
    format!("{} nodes, {time} a step (measured in {:.1} s)", nodes.count(), took.as_secs_f64())
}

fn plan_text(fitted: &Fitted, took: Duration) -> String {
    let planned = &fitted.planned;
    let moves = match moves_of(fitted) {
        Some(Transfers { moved_out, moved_in, hidden, waited, .. }) => {
            format!(", moves {moved_out} out and {moved_in} in ({hidden} hidden, {waited} waited)")
        }
        None if fitted.folder.is_some() => ", moves nothing".into(),
        None => String::new(),
    };
    format!(
        "{} recomputes {} nodes{moves} for {} more time (decided in {:.1} s)",
        planned.plan.strategy.as_deref().unwrap_or("the planner"),
        planned.stats.recomputed,
        percent(fitted.overhead()),
        took.as_secs_f64()
    )
}

fn rewrite_text(fitted: &Fitted) -> String {
    let rewritten = &fitted.rewritten;
    let clones = rewritten.is_clone.iter().filter(|clone| **clone).count();
    let moves = rewritten.graph.nodes().iter().filter(|n| n.transfer().is_some()).count();
    let moves = if moves > 0 { format!(", and {moves} for transfers") } else { String::new() };
    format!(
        "{} nodes, {clones} of them clones that rebuild {} tensors{moves}",
        rewritten.graph.nodes().len(),
        rewritten.extractions.len()
    )
}

fn verify_text(fitted: &Fitted) -> String {
    let runs: u32 = fitted.audit.runs.iter().sum();
    format!("{runs} runs replayed, no violation, peak {}", fitted.audit.peak)
}

fn place_text(fitted: &Fitted) -> String {
    let rounds = match fitted.rounds {
        1 => String::new(),
        rounds => format!(", after {rounds} plans"),
    };
    let store = match fitted.layout.store_bytes() {
        Bytes::ZERO => String::new(),
        bytes => format!(", a file of {bytes}"),
    };
    format!("an arena of {}, within the budget{store}{rounds}", fitted.predicted().arena)
}

/// The times of a profile that `rekindle profile` wrote, on `graph`, which is this step's own.
pub(crate) fn read_times(
    folder: &Path,
    name: &str,
    batch: usize,
    graph: &Graph,
) -> anyhow::Result<Graph> {
    let (_, profiled) = rekindle_analysis::read_profile(folder, name, batch)
        .with_context(|| format!("the profile in {} cannot be used", folder.display()))?;
    let times: Vec<Micros> = profiled.nodes().iter().map(|n| n.time).collect();
    match is_same_step(graph, &profiled) {
        true => Ok(graph.with_times(&times)?),
        false => bail!(UsageError(format!(
            "the profile in {} is of another step; profile this one with the same model, sizes \
             and optimizer",
            folder.display()
        ))),
    }
}

/// Whether two graphs differ in their times at most.
pub(crate) fn is_same_step(one: &Graph, other: &Graph) -> bool {
    let (ours, its) = (one.nodes(), other.nodes());
    let mut pairs = ours.iter().zip(its);
    ours.len() == its.len()
        && pairs.all(|(a, b)| a.name == b.name && a.op == b.op)
        && one.storages() == other.storages()
}
