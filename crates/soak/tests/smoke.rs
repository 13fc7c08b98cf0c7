//! A second of what `cargo xtask soak` does at length.

use rekindle_graph::{Effect, Phase};
use rekindle_soak::{check, random_graph};

/// About a second of work.
const SEEDS: u64 = 5;
/// Enough for every feature to appear.
const GRAPHS: u64 = 150;

#[test]
fn plans_of_random_graphs_keep_every_promise() {
    let mut plans = 0;
    for seed in 0..SEEDS {
        match check(seed, 60) {
            Ok(count) => plans += count,
            Err(error) => panic!("seed {seed}: {error:#}"),
        }
    }
    assert!(plans > SEEDS as usize, "only {plans} plans: too little is feasible to mean anything");
}

#[test]
fn the_generator_covers_what_the_format_allows() {
    let graphs: Vec<_> = (0..GRAPHS).map(|seed| random_graph(seed, 16)).collect();
    let nodes = || graphs.iter().flat_map(|g| g.nodes());
    assert!(nodes().any(|n| n.writes.len() > 1));
    assert!(nodes().any(|n| n.workspace.get() > 0));
    assert!(nodes().any(|n| n.effect == Effect::Random));
    assert!(nodes().any(|n| n.effect == Effect::Once && n.updates.is_empty()));
    assert!(nodes().any(|n| !n.updates.is_empty() && n.phase == Phase::Forward));
    assert!(nodes().any(|n| !n.updates.is_empty() && n.phase == Phase::Optimizer));
    assert!(nodes().any(|n| n.writes.is_empty()));
    assert!(graphs.iter().all(|g| !g.targets().is_empty() || !g.outputs().is_empty()));
    assert_eq!(random_graph(7, 16), random_graph(7, 16));
    assert_ne!(random_graph(6, 16), random_graph(8, 16));
}
