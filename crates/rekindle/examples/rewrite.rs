//! Rewrite and verify: a plan becomes an ordinary graph, and independent code checks both.
//!
//! `cargo run --release -p rekindle --example rewrite`

use rekindle::engine::lower;
use rekindle::estimate;
use rekindle::graph::{Bytes, Step, Timeline};
use rekindle::models::{ModelOptions, build};
use rekindle::plan::{NoWatch, Options, plan};
use rekindle::program::Optimizer;
use rekindle::rewrite::rewrite;
use rekindle::verify::{verify, verify_rewritten};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = build(
        "transformer-tiny",
        &ModelOptions { batch: 8, optimizer: Some(Optimizer::sgd(0.01)), ..Default::default() },
    )?;
    // A guess of the times will do here: the rewriter does not look at them.
    let graph = estimate(&lower(&model.program, 2));
    let budget = Bytes(Timeline::natural(&graph).peak.get() * 7 / 10);
    let planned = plan(&graph, budget, &Options::default(), &mut NoWatch)?.plan;

    // Rewrite: what is dropped is rebuilt by clones of the nodes that made it, just before it is
    // needed.
    let rewritten = rewrite(&graph, &planned)?;
    let name = |node| &rewritten.graph.node(node).name;
    println!("{} nodes become {}", graph.nodes().len(), rewritten.graph.nodes().len());
    for extraction in rewritten.extractions.iter().take(3) {
        let clones: Vec<&str> = extraction.nodes.iter().map(|&n| name(n).as_str()).collect();
        println!(
            "  {} rebuilds {} before {}",
            clones.join(", "),
            rewritten.graph.storage_name(extraction.storage),
            extraction.before.map_or("the end", |node| name(node))
        );
    }

    // Verify: the plan is replayed, and the rewritten graph is compared with it run by run.
    let origins = rewritten.origins();
    let audit = verify_rewritten(&graph, &planned, &rewritten.graph, origins)?;
    println!("no violation: peak {} of {budget}, {} recomputations", audit.peak, audit.recomputed);

    // A plan that forgets its first free is not what it says, and the checker names it.
    let mut damaged = planned;
    let first = damaged.schedule.steps.iter().position(|s| matches!(s, Step::Free(_)));
    damaged.schedule.steps.remove(first.ok_or("a plan frees something")?);
    match verify(&graph, &damaged) {
        Err(violations) => println!("damaged: {violations}"),
        Ok(_) => return Err("the damage was not seen".into()),
    }
    Ok(())
}
