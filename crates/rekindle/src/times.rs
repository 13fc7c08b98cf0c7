//! Where the planner's times come from: each node, measured in a run that stays within the budget.
//!
//! In: a model and a budget. Out: the step's graph with the median time of every node. If the plain
//! step is larger than the budget, it is measured in a schedule that fits, and recomputes some
//! nodes or moves some storages: a node's time does not depend on what ran before it. To have such
//! a schedule before anything is measured, nodes get a rough [`estimate`] first; it decides where
//! nodes are measured, and nothing else.

use rekindle_engine::{Layout, Spill, SpillError};
use rekindle_graph::{Bytes, Graph, Micros};
use rekindle_models::Model;
use rekindle_plan::{Effort, NoWatch, Options, Strategy};
use rekindle_profile::{MeasureOptions, MeasureProgress, measure};

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
    if plain.predicted().arena <= budget {
        return profile_layout(model, plain, options, watch);
    }
    // What is measured is not what will run, so the first schedule that fits is good enough.
    let first = FitOptions {
        plan: Options {
            strategy: Strategy::SEARCH,
            effort: Effort::FIRST,
            store: options.plan.store,
        },
        ..options.clone()
    };
    let guessed = estimate(plain.graph());
    let fitted = fit_profiled(&model.program, &guessed, budget, &first, &mut NoWatch)?;
    let measured = profile_layout(model, &fitted.layout, options, watch)?;
    Ok(of_plain(plain.graph(), &fitted.layout, &measured))
}

/// The graph that `layout` runs, with the measured time of each node.
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
    let measure_options = MeasureOptions { seed: options.seed, ..options.measure };
    let mut watch = |progress| watch(Preparing::Profile(progress));
    let measured = measure(&mut engine, &measure_options, &mut InPlace, &mut watch)?;
    Ok(measured.graph)
}

/// The times of the plain step's nodes: the mean over the runs that stand for each.
fn of_plain(plain: &Graph, layout: &Layout, measured: &Graph) -> Graph {
    let mut runs = vec![(0.0, 0); plain.nodes().len()];
    for (id, node) in measured.node_ids().zip(measured.nodes()) {
        if let Some(origin) = layout.run_of(id) {
            let (sum, count) = &mut runs[origin.index()];
            *sum += node.time.get();
            *count += 1;
        }
    }
    let mean = |(sum, count): (f64, u32)| Micros(sum / f64::from(count.max(1)));
    let times: Vec<Micros> = runs.into_iter().map(mean).collect();
    plain.with_times(&times).expect("one finite time for every node")
}

/// A tier that leaves everything where it is: swap times are of no interest here.
struct InPlace;

impl Spill for InPlace {
    fn store(&mut self, _: usize, _: &[u8]) -> Result<(), SpillError> {
        Ok(())
    }

    fn load(&mut self, _: usize, _: &mut [u8]) -> Result<(), SpillError> {
        Ok(())
    }
}
