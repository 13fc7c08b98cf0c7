//! Running what is profiled: the plain step, or under a memory limit the step with swaps in it.
//!
//! In: a model at one batch size. Out: [`Profiled`], and a trace of one more step where one is
//! wanted.

use std::path::Path;

use anyhow::Context as _;
use rekindle::{FitOptions, Preparing};
use rekindle_analysis::{Analysis, Breakdown, Profile, breakdowns};
use rekindle_engine::{Engine, Iteration, Layout, Spill};
use rekindle_graph::{Bytes, Graph};
use rekindle_models::Model;
use rekindle_profile::{
    FileSpill, HostSpill, Limited, MeasureOptions, MeasureProgress, Measurement, SwapNode, measure,
};

use super::Arguments;
use crate::commands::stages::engine;
use crate::output;
use crate::progress::{Bar, Meter};
use crate::trace::Trace;

/// One profile with everything that is told about it.
pub(crate) struct Profiled {
    pub(super) profile: Profile,
    /// With the measured times.
    pub(super) graph: Graph,
    /// What is live at the peak of the plain step.
    pub(super) peak: Breakdown,
    /// How it ran under the memory limit, if it did not fit.
    pub(super) swapped: Option<SwapRun>,
}

/// A run under the memory limit.
pub(crate) struct SwapRun {
    pub(super) limit: Bytes,
    /// The arena that it ran in.
    pub(super) peak: Bytes,
    pub(super) offloads: usize,
    pub(super) fetches: usize,
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
    let placed = rekindle::plain(model, options.threads);
    let plain_peak = placed.predicted().live;
    let limit = arguments.memory_limit.map(|limit| limit.resolve(plain_peak));
    let spill = spill(arguments.spill_dir.as_deref())?;
    let trace = arguments.trace.as_deref();
    let what = format!("profiling {}, batch {size}", arguments.step.model);
    let (measurement, swapped) = match limit {
        Some(limit) if limit < plain_peak => in_limit(&what, model, &options, limit, spill, trace)?,
        _ => (plain(&what, model, &placed, &options, spill, trace)?, None),
    };
    let breakdowns = breakdowns(&measurement.graph, &Analysis::new(&measurement.graph));
    let peak = breakdowns.into_iter().max_by_key(Breakdown::total);
    Ok(Profiled {
        profile: measurement.profile(&arguments.step.model, size, "cpu"),
        graph: measurement.graph,
        peak: peak.expect("a step has nodes"),
        swapped,
    })
}

/// Measures the plain step; `what` stands before the progress bar.
pub(crate) fn plain(
    what: &str,
    model: &Model,
    plain: &Layout,
    options: &FitOptions,
    mut spill: Box<dyn Spill + Send>,
    trace: Option<&Path>,
) -> anyhow::Result<Measurement> {
    let mut engine = engine(plain, options.seed)?;
    rekindle::write_batch(&mut engine, model, options.seed, 1)?;
    let mut bar = Bar::new(what);
    let mut watch = |p: MeasureProgress| bar.show(p.done as u64, p.total as u64, "");
    let measurement = measure(&mut engine, &options.measure, spill.as_mut(), &mut watch)?;
    drop(bar);
    write_trace(&mut engine, options, trace)?;
    Ok(measurement)
}

/// Measures the step with swaps, in an arena of at most `limit`.
fn in_limit(
    what: &str,
    model: &Model,
    options: &FitOptions,
    limit: Bytes,
    spill: Box<dyn Spill + Send>,
    trace: Option<&Path>,
) -> anyhow::Result<(Measurement, Option<SwapRun>)> {
    let mut meter = Meter::new(None);
    let mut ready = |ready, arena| meter.prepare(Preparing::Memory { ready, arena }, "");
    let mut limited = Limited::new(&model.program, options.threads, limit, &mut ready)?;
    meter.clear();
    rekindle::write_batch(&mut limited.engine, model, options.seed, 1)?;
    limited.engine.set_spill(spill);
    let count =
        |is: fn(&SwapNode) -> bool| limited.swapped.origins.iter().filter(|o| is(o)).count();
    let swapped = SwapRun {
        limit,
        peak: limited.engine.predicted().arena,
        offloads: count(|o| matches!(o, SwapNode::Offload(_))),
        fetches: count(|o| matches!(o, SwapNode::Fetch(_))),
    };
    let mut bar = Bar::new(what);
    let mut watch = |p: MeasureProgress| bar.show(p.done as u64, p.total as u64, "");
    let measurement = limited.measure(&options.measure, &mut watch)?;
    drop(bar);
    write_trace(&mut limited.engine, options, trace)?;
    Ok((measurement, Some(swapped)))
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

fn spill(folder: Option<&Path>) -> anyhow::Result<Box<dyn Spill + Send>> {
    match folder {
        None => Ok(Box::new(HostSpill::new())),
        Some(folder) => {
            let context = || format!("cannot spill to {}", folder.display());
            Ok(Box::new(FileSpill::new(folder).with_context(context)?))
        }
    }
}
