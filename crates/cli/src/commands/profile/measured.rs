//! Running what is profiled: the plain step, or under a memory limit one that fits.
//!
//! In: a model at one batch size. Out: [`Profiled`], and a trace of one more step where one is
//! wanted.

use std::borrow::Cow;
use std::path::Path;

use rekindle::FitOptions;
use rekindle_analysis::{Analysis, Breakdown, Profile, breakdowns};
use rekindle_engine::{Engine, Iteration, Layout};
use rekindle_graph::{Bytes, Graph, Transfer};
use rekindle_models::Model;
use rekindle_profile::{MeasureOptions, MeasureProgress, Measurement, Swaps};

use super::Arguments;
use crate::commands::stages::{Lines, set_up};
use crate::output;
use crate::progress::Bar;
use crate::trace::Trace;

/// One profile with everything that is told about it.
pub(crate) struct Profiled {
    pub(super) profile: Profile,
    /// With the measured times.
    pub(super) graph: Graph,
    /// What is live at the peak of the plain step.
    pub(super) peak: Breakdown,
    /// How it ran under the memory limit, if it did not fit.
    pub(super) limited: Option<LimitedRun>,
}

/// A run under the memory limit.
pub(crate) struct LimitedRun {
    pub(super) limit: Bytes,
    /// The arena that it ran in.
    pub(super) peak: Bytes,
    pub(super) recomputed: usize,
    pub(super) offloads: usize,
    pub(super) fetches: usize,
}

impl LimitedRun {
    fn new(layout: &Layout, limit: Bytes) -> LimitedRun {
        let graph = layout.graph();
        let runs = graph.node_ids().filter(|&id| layout.run_of(id).is_some()).count();
        let moves = |way: Transfer| {
            graph.nodes().iter().filter(|node| node.transfer() == Some(way)).count()
        };
        LimitedRun {
            limit,
            peak: layout.predicted().arena,
            recomputed: runs - layout.program().nodes.len(),
            offloads: moves(Transfer::Offload),
            fetches: moves(Transfer::Fetch),
        }
    }
}

/// Profiles one batch size.
pub(super) fn profile(
    arguments: &Arguments,
    size: usize,
    model: &Model,
) -> anyhow::Result<Profiled> {
    let training = &arguments.step.training;
    let mut options = training.fit_options(rekindle_plan::Options::default());
    options.measure = MeasureOptions {
        warmup: arguments.warmup,
        measured: arguments.measured,
        seed: training.seed,
    };
    let plain = rekindle::plain(model, options.threads);
    let lines = Lines { shown: !arguments.json, indent: "" };
    let options = arguments.offloading.add(options, &plain, &lines)?;
    let limit = arguments.memory_limit.map(|limit| limit.resolve(plain.predicted().live));
    let layout = match limit {
        Some(limit) => rekindle::layout_within(&plain, limit, &options)?,
        None => Cow::Borrowed(&plain),
    };
    let what = format!("profiling {}, batch {size}", arguments.step.model);
    let measurement = measure(&what, model, &layout, &options, arguments.trace.as_deref())?;
    let breakdowns = breakdowns(&measurement.graph, &Analysis::new(&measurement.graph));
    let peak = breakdowns.into_iter().max_by_key(Breakdown::total);
    let limited = match &layout {
        Cow::Owned(layout) => limit.map(|limit| LimitedRun::new(layout, limit)),
        Cow::Borrowed(_) => None,
    };
    Ok(Profiled {
        profile: measurement.profile(&arguments.step.model, size, "cpu"),
        graph: measurement.graph,
        peak: peak.expect("a step has nodes"),
        limited,
    })
}

/// Measures the plain step by runs of `layout`; `what` stands before the progress bar.
pub(crate) fn measure(
    what: &str,
    model: &Model,
    layout: &Layout,
    options: &FitOptions,
    trace: Option<&Path>,
) -> anyhow::Result<Measurement> {
    let mut engine = set_up(layout, options.seed, options.folder())?;
    rekindle::write_batch(&mut engine, model, options.seed, 1)?;
    let mut bar = Bar::new(what);
    let mut watch = |p: MeasureProgress| bar.show(p.done as u64, p.total as u64, "");
    let swaps = options.plan.store.map_or(Swaps::Memory, Swaps::Store);
    let measurement = rekindle_profile::measure(&mut engine, &options.measure, swaps, &mut watch)?;
    drop(bar);
    write_trace(&mut engine, options, trace)?;
    Ok(measurement)
}

/// Writes a trace of one more step, if one is wanted.
fn write_trace(
    engine: &mut Engine,
    options: &FitOptions,
    path: Option<&Path>,
) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let iteration = Iteration { seed: options.seed, number: options.measure.steps() as u64 + 1 };
    let mut trace = Trace::new();
    engine.run_observed(iteration, &mut trace)?;
    output::write(path, &trace.to_json(engine.layout(), iteration.number))
}
