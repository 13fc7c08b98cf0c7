//! Where the planner's times come from: each node, measured in a run that stays within the budget.
//!
//! In: a model and a budget. Out: the step's graph with the median time of every node. If the plain
//! step is larger than the budget, it is measured in a schedule that fits, and recomputes some
//! nodes or moves some storages: a node's time does not depend on what ran before it. To have such
//! a schedule before anything is measured, nodes get a rough [`estimate`] first; it decides where
//! nodes are measured, and nothing else.

use std::borrow::Cow;

use rekindle_engine::Layout;
use rekindle_graph::{Bytes, Graph, Micros};
use rekindle_models::Model;
use rekindle_plan::{Effort, NoWatch, Options, Strategy};
use rekindle_profile::{MeasureOptions, MeasureProgress, Swaps, measure};

use crate::Error;
use crate::fit::{FitOptions, fit_profiled, set_up};
use crate::trainer::write_batch;

/// What takes time before a step can run, and how far it has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Preparing {
    /// The arena's pages are touched for the first time.
    Memory {
        /// How many bytes are ready.
        ready: Bytes,
        /// How many bytes the arena has.
        arena: Bytes,
    },
    /// Nodes are measured.
    Profile(MeasureProgress),
}

/// A core's speed in matrix products, floating-point operations per microsecond: the order of
/// magnitude is enough.
const FLOPS: f64 = 50e3;
/// Bytes per microsecond of nodes that only move or map elements.
const TRAFFIC: f64 = 5e3;

/// A step that is guessed to take longer is measured once: what disturbs one node of so many is
/// little beside all of them, and minutes of waiting are not.
const LONG: Micros = Micros(10e6);

/// The step's graph with a guess of every node's time, from its operations and its bytes.
pub fn estimate(graph: &Graph) -> Graph {
    let guess = |node: &rekindle_graph::Node| {
        let operands = node.reads.iter().chain(&node.writes);
        let bytes: Bytes = operands.map(|&s| graph.storage(s).bytes).sum();
        let flops = node.flops.unwrap_or(0) as f64;
        Micros(flops / FLOPS + bytes.get() as f64 / TRAFFIC)
    };
    let times: Vec<Micros> = graph.nodes().iter().map(guess).collect();
    graph.with_times(&times).expect("one finite time for every node")
}

/// The graph of the `plain` step with measured times, from runs in an arena of at most `budget`.
///
/// # Errors
/// If no schedule fits in the budget.
pub fn profile(
    model: &Model,
    plain: &Layout,
    budget: Bytes,
    options: &FitOptions,
    watch: &mut dyn FnMut(Preparing),
) -> Result<Graph, Error> {
    let layout = layout_within(plain, budget, options)?;
    profile_layout(model, &layout, options, watch)
}

/// A step that fits in an arena of at most `budget` to measure the `plain` one by: itself, if it
/// does, or the first schedule that the planner finds by guessed times. What is measured is not
/// what will run, so that is good enough.
///
/// # Errors
/// If no schedule fits in the budget.
pub fn layout_within<'l>(
    plain: &'l Layout,
    budget: Bytes,
    options: &FitOptions,
) -> Result<Cow<'l, Layout>, Error> {
    if plain.predicted().arena <= budget {
        return Ok(Cow::Borrowed(plain));
    }
    let (strategy, effort) = (Strategy::SEARCH, Effort::FIRST);
    let plan = Options { strategy, effort, store: options.plan.store };
    let first = FitOptions { plan, ..options.clone() };
    let guessed = estimate(plain.graph());
    let fitted = fit_profiled(plain.program(), &guessed, budget, &first, &mut NoWatch)?;
    Ok(Cow::Owned(fitted.layout))
}

/// The plain step's graph with the measured time of each node, from runs of `layout`.
///
/// # Errors
/// If the arena does not fit in the machine's memory.
pub fn profile_layout(
    model: &Model,
    layout: &Layout,
    options: &FitOptions,
    watch: &mut dyn FnMut(Preparing),
) -> Result<Graph, Error> {
    let mut engine = set_up(layout, options.seed, options.folder(), watch)?;
    write_batch(&mut engine, model, options.seed, 1)?;
    let guessed: Micros = estimate(layout.graph()).nodes().iter().map(|n| n.time).sum();
    let measured = if guessed > LONG { 1 } else { options.measure.measured };
    let measure_options = MeasureOptions { seed: options.seed, measured, ..options.measure };
    let mut watch = |progress| watch(Preparing::Profile(progress));
    Ok(measure(&mut engine, &measure_options, Swaps::Unknown, &mut watch)?.graph)
}
