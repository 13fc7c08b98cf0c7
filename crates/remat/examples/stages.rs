//! Every stage on its own: profile, plan, rewrite, verify, train.
//!
//! `cargo run --release -p remat --example stages`

use remat::{FitOptions, Trainer, fit_profiled, plain_peak, profile};
use remat_graph::{Bytes, Timeline};
use remat_models::{ModelOptions, build};
use remat_plan::{NoWatch, plan};
use remat_program::Optimizer;
use remat_rewrite::rewrite;
use remat_verify::verify;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = build(
        "transformer-tiny",
        &ModelOptions {
            batch: 16,
            optimizer: Some(Optimizer::sgd(0.01)),
            ..ModelOptions::default()
        },
    )?;
    let options = FitOptions::default();
    let plain = plain_peak(&model, options.threads)?.arena;
    let budget = Bytes(plain.get() * 7 / 10);

    // Profile: the step as a graph with the time of every node, measured within the budget.
    let graph = profile(&model, budget, &options, &mut |_| {})?;
    println!("profile  {} nodes", graph.nodes().len());

    // Plan: which activations are kept and which are recomputed.
    let peak = Bytes(Timeline::natural(&graph).peak.get() * 7 / 10);
    let planned = plan(&graph, peak, &options.plan, &mut NoWatch)?;
    println!(
        "plan     peak {} for {:+.1} %",
        planned.plan.peak,
        100.0 * planned.overhead()
    );

    // Rewrite: the plan as an ordinary graph. Verify: independent code replays the plan.
    let rewritten = rewrite(&graph, &planned.plan)?;
    let audit = verify(&graph, &planned.plan)?;
    println!("rewrite  {} nodes", rewritten.graph.nodes().len());
    println!(
        "verify   {} recomputations, peak {}",
        audit.recomputed, audit.peak
    );

    // Train: all of it at once, placed in an arena within the budget.
    let fitted = fit_profiled(&model, &graph, budget, &options, &mut NoWatch)?;
    let mut trainer = Trainer::new(&model, fitted.engine(&model)?, options.seed);
    for _ in 0..3 {
        let step = trainer.step()?;
        println!(
            "train    step {}, loss {:.4}, {}",
            step.step, step.loss, step.measured.arena
        );
    }
    Ok(())
}
