//! Plans within what may be reserved: they hold, and a budget that an error names can be met.

use rekindle_allocator::{ReserveError, Segments, fit_reserved, footprint, plan_reserved};
use rekindle_graph::{Bytes, Graph, GraphParts, Node, Phase, Role, Schedule, Storage, StorageId};
use rekindle_plan::{Effort, NoWatch, Options};

const MIB: u64 = 1 << 20;

/// A chain of layers with activations of all sizes, and its backward.
fn chain(seed: u64) -> Graph {
    let mut random = fastrand::Rng::with_seed(seed);
    let layers = random.u32(3..14);
    let mut storages =
        vec![Storage { bytes: Bytes(random.u64(1..8) * MIB), role: Role::Parameter }];
    let mut nodes = vec![Node::new("w", Phase::Input, 0.0, &[], &[0])];
    let mut add = |storages: &mut Vec<Storage>, most: u64| {
        let bytes = Bytes(random.u64(1..most));
        storages.push(Storage { bytes, role: Role::Activation });
        storages.len() as u32 - 1
    };
    let mut values = vec![0];
    for layer in 0..layers {
        let value = add(&mut storages, 40 * MIB);
        let before = *values.last().expect("one");
        nodes.push(Node::new(&format!("f{layer}"), Phase::Forward, 1.0, &[before, 0], &[value]));
        values.push(value);
    }
    let mut gradient = add(&mut storages, MIB);
    let last = *values.last().expect("one");
    nodes.push(Node::new("loss", Phase::Forward, 1.0, &[last], &[gradient]));
    for layer in (1..=layers as usize).rev() {
        let next = add(&mut storages, 40 * MIB);
        let reads = [gradient, values[layer], values[layer - 1]];
        nodes.push(Node::new(&format!("b{layer}"), Phase::Backward, 2.0, &reads, &[next]));
        gradient = next;
    }
    let outputs = vec![StorageId(gradient)];
    Graph::new(GraphParts { storages, nodes, outputs, ..GraphParts::default() }).expect("valid")
}

#[test]
fn a_budget_that_is_named_can_be_met() {
    let (mut named, mut planned) = (0, 0);
    for seed in 0..40 {
        let graph = chain(seed);
        let segments = if seed % 2 == 0 { Segments::Fixed } else { Segments::Expandable };
        let effort = Effort::new(seed as u8 % 3).expect("a level");
        let options = Options { effort, ..Options::default() };
        let plain = footprint(&graph, &Schedule::plain(&graph), segments).expect("valid").reserved;
        let ask = |budget| plan_reserved(&graph, budget, segments, &options, &mut NoWatch);
        for part in [1, 3, 5, 7] {
            let budget = Bytes(plain.get() * part / 8);
            match ask(budget) {
                Ok((plan, found)) => {
                    planned += 1;
                    assert!(found.reserved <= budget, "seed {seed}, {part} / 8");
                    assert_eq!(plan.plan.budget, budget);
                }
                Err(ReserveError::DoesNotFit { smallest, .. }) => {
                    named += 1;
                    assert!(smallest > budget, "seed {seed}, {part} / 8");
                    let (_, found) = ask(smallest).expect("the budget that was named");
                    assert!(found.reserved <= smallest, "seed {seed}, {part} / 8");
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
    assert!(named > 20 && planned > 20, "both happen: {named}, {planned}");
}

/// Whatever effort a plan is asked for with: where any plan fits, there is one.
#[test]
fn what_fits_can_be_planned() {
    let (mut fits, mut refused) = (0, 0);
    for seed in 0..12 {
        let graph = chain(seed);
        let segments = if seed % 2 == 0 { Segments::Fixed } else { Segments::Expandable };
        let plain = footprint(&graph, &Schedule::plain(&graph), segments).expect("valid").reserved;
        for part in [3, 4, 5, 8] {
            let budget = Bytes(plain.get() * part / 8);
            let any = fit_reserved(&graph, budget, segments, &Options::default(), &mut NoWatch);
            match &any {
                Ok((_, found)) => assert!(found.reserved <= budget, "seed {seed}, {part} / 8"),
                Err(_) => refused += 1,
            }
            fits += i32::from(any.is_ok());
            for level in [0, 2] {
                let effort = Effort::new(level).expect("a level");
                let options = Options { effort, ..Options::default() };
                let planned = plan_reserved(&graph, budget, segments, &options, &mut NoWatch);
                assert!(any.is_err() || planned.is_ok(), "seed {seed}, {part} / 8, effort {level}");
                assert!(part < 8 || planned.is_ok_and(|(plan, _)| plan.stats.recomputed == 0));
            }
        }
    }
    assert!(fits > 8 && refused > 8, "both happen: {fits}, {refused}");
}
