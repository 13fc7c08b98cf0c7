//! Where the planner's times come from: each node, measured in a run that stays within the budget.
//!
//! In: a model and a budget. Out: the step's graph with the median time of every node. If the plain
//! step is larger than the budget, it is measured in a schedule that fits and recomputes some nodes: a
//! node's time does not depend on what ran before it. To have such a schedule before anything is
//! measured, nodes get a rough [`estimate`] first; it decides where nodes are measured, and nothing
//! else.

use remat_engine::{Engine, Spill, SpillError, lower};
use remat_graph::{Bytes, Graph, Micros};
use remat_models::Model;
use remat_plan::{Effort, NoWatch, Options, Strategy};
use remat_profile::{MeasureOptions, measure};

use crate::Error;
use crate::fit::{FitOptions, fit_profiled};
use crate::trainer::write_batch;

/// A core's speed in matrix products, floating-point operations per microsecond: the order of
/// magnitude is enough.
const FLOPS: f64 = 50e3;
/// Bytes per microsecond of nodes that only move or map elements.
const TRAFFIC: f64 = 5e3;

/// The step's graph with a guess of every node's time, from its operations and its bytes.
pub fn estimate(graph: &Graph) -> Graph {
    let guess = |node: &remat_graph::Node| {
        let operands = node.reads.iter().chain(&node.writes);
        let bytes: Bytes = operands.map(|&s| graph.storage(s).bytes).sum();
        let flops = node.flops.unwrap_or(0) as f64;
        Micros(flops / FLOPS + bytes.get() as f64 / TRAFFIC)
    };
    let times: Vec<Micros> = graph.nodes().iter().map(guess).collect();
    graph
        .with_times(&times)
        .expect("one finite time for every node")
}

/// The step's graph with measured times, from runs in an arena of at most `budget`.
///
/// # Errors
/// If no schedule fits in the budget.
pub fn profile(model: &Model, budget: Bytes, options: &FitOptions) -> Result<Graph, Error> {
    // What is measured is not what will run, so the first schedule that fits is good enough.
    let first = FitOptions {
        plan: Options {
            strategy: Strategy::Search,
            effort: Effort::FIRST,
        },
        ..options.clone()
    };
    let guessed = estimate(&lower(&model.program, options.threads));
    let fitted = fit_profiled(model, &guessed, budget, &first, &mut NoWatch)?;
    measure_in(model, fitted.engine(model)?, options)
}

/// The step's graph with measured times, from runs of the plain step.
///
/// # Errors
/// If the plain step does not fit in the machine's memory.
pub fn profile_plain(model: &Model, options: &FitOptions) -> Result<Graph, Error> {
    let engine = Engine::new(&model.program, options.threads)?;
    measure_in(model, engine, options)
}

fn measure_in(model: &Model, mut engine: Engine, options: &FitOptions) -> Result<Graph, Error> {
    engine.fill_sources(options.seed);
    write_batch(&mut engine, model, options.seed, 1)?;
    let measure_options = MeasureOptions {
        seed: options.seed,
        ..options.measure
    };
    let measured = measure(&mut engine, &measure_options, &mut InPlace, &mut |_| {})?;
    Ok(measured.graph)
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
