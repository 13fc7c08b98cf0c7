//! Plan: which activations to keep and which to recompute, at one budget and at many.
//!
//! `cargo run --release -p rekindle --example plan`

use rekindle::graph::{Bytes, Timeline};
use rekindle::models::{ModelOptions, build};
use rekindle::plan::{Choice, NoWatch, Options, PlanError, Strategy, frontier, plan};
use rekindle::program::Optimizer;
use rekindle::{FitOptions, plain, profile_layout};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = build(
        "transformer-tiny",
        &ModelOptions { batch: 8, optimizer: Some(Optimizer::sgd(0.01)), ..Default::default() },
    )?;
    // The step as a graph with the time of every node. A graph may as well come from a file:
    // `rekindle::graph::read_graph`.
    let options = FitOptions::default();
    let plain = plain(&model, options.threads);
    let graph = profile_layout(&model, &plain, &options, &mut |_| {})?;
    let plain = Timeline::natural(&graph).peak;
    let budget = Bytes(plain.get() * 7 / 10);

    // Two strategies at the same budget: the search, and the greedy choice of μ-TWO.
    for strategy in [Strategy::SEARCH, Strategy::MUTWO] {
        let options = Options { strategy, ..Options::default() };
        let planned = plan(&graph, budget, &options, &mut NoWatch)?;
        let dropped = planned.decisions.iter();
        let dropped = dropped.filter(|d| matches!(d.choice, Choice::Recompute { .. }));
        println!(
            "{:<6}  {plain} -> {} for {:+.1} % time; {} of {} activations are recomputed",
            strategy.name,
            planned.plan.peak,
            100.0 * planned.overhead(),
            dropped.count(),
            planned.decisions.len()
        );
    }

    // Every trade-off, from the plain step to the smallest peak.
    let options = Options::default();
    for point in frontier(&graph, 5, &options, &mut NoWatch)?.points {
        println!("{:>12}  {:+.1} %", point.plan.peak.to_string(), 100.0 * point.overhead());
    }

    // What cannot be met is refused, with the smallest budget that can.
    match plan(&graph, Bytes(plain.get() / 100), &options, &mut NoWatch) {
        Err(PlanError::Infeasible(why)) => println!("{why}"),
        other => return Err(format!("a hundredth should not be enough: {other:?}").into()),
    }
    Ok(())
}
