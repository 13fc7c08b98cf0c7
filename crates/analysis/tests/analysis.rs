//! The static analysis and the metrics, against numbers worked out by hand.

mod toy;

use rekindle_analysis::{
    Analysis, Boundaries, Kind, Profile, Recomputation, Tracer, inactive_times, node_peaks,
};
use rekindle_graph::{Bytes, Effect, Graph, Micros, NodeId, Phase, Role, Schedule, Timeline};
use toy::{Toy, perceptron};

/// What makes each activation again, in their order.
fn recomputations(graph: &Graph) -> Vec<Recomputation> {
    let activations = Analysis::new(graph).activations;
    let mut tracer = Tracer::new(graph, &activations);
    let each = activations.iter();
    each.map(|a| tracer.recomputation(a)).collect()
}

/// Name, creation, last forward use, first and last backward use of each activation.
#[track_caller]
fn check_ranks(graph: &Graph, expected: &[(&str, u32, Option<u32>, u32, u32)]) {
    let analysis = Analysis::new(graph);
    let found: Vec<_> = analysis
        .activations
        .iter()
        .map(|a| {
            let name = graph.storage_name(a.storage);
            let last_forward = a.last_forward.map(|n| n.0);
            (name, a.made.0, last_forward, a.first_backward.0, a.last_backward.0)
        })
        .collect();
    let expected: Vec<_> = expected
        .iter()
        .map(|&(name, made, lf, fb, lb)| (name.to_owned(), made, lf, fb, lb))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn the_four_ranks_are_those_worked_out_by_hand() {
    check_ranks(
        &perceptron(),
        &[
            ("shift", 8, Some(9), 15, 15),
            ("relu", 9, Some(10), 13, 13),
            ("fc2", 10, Some(11), 12, 12),
        ],
    );
}

#[test]
fn an_activation_without_forward_use_is_idle_from_its_making() {
    let mut toy = Toy::default();
    let x = toy.source("x", Role::Input, 1);
    let kept = (Role::Activation, 8);
    let mask = toy.node("mask", Phase::Forward, 5.0, &[x], Some(kept));
    toy.node("between", Phase::Forward, 7.0, &[x], None);
    let read = [mask.expect("made")];
    toy.node("first", Phase::Backward, 1.0, &read, None);
    toy.node("second", Phase::Backward, 1.0, &read, None);
    let graph = toy.graph();
    check_ranks(&graph, &[("mask", 1, None, 3, 4)]);
    let activations = Analysis::new(&graph).activations;
    assert_eq!(inactive_times(&graph, &activations), [Micros(7.0)]);
}

#[test]
fn the_passes_end_where_they_end() {
    let expected = Boundaries {
        last_forward: Some(NodeId(11)),
        first_backward: Some(NodeId(12)),
        last_backward: Some(NodeId(17)),
        first_optimizer: Some(NodeId(18)),
    };
    assert_eq!(Analysis::new(&perceptron()).boundaries, expected);
}

#[test]
fn every_node_has_its_kind() {
    use Kind::{Activation, Gradient, Input, OptimizerState, Other, Parameter};
    let expected = [
        ("x", Input),
        ("target", Input),
        ("w1", Parameter),
        ("b1", Parameter),
        ("w2", Parameter),
        ("m1", OptimizerState),
        ("m2", OptimizerState),
        ("fc1", Other),
        ("shift", Activation),
        ("relu", Activation),
        ("fc2", Activation),
        ("loss", Other),
        ("loss_dx", Other),
        ("fc2_dw", Gradient),
        ("fc2_dx", Other),
        ("relu_dx", Other),
        ("fc1_dw", Gradient),
        ("shift_db", Gradient),
        ("momentum_w1", Parameter),
        ("momentum_w2", Parameter),
        ("sgd_b1", Parameter),
    ];
    let graph = perceptron();
    let kinds = Analysis::new(&graph).node_kinds;
    let found: Vec<_> = graph.nodes().iter().map(|n| n.name.as_str()).zip(kinds).collect();
    assert_eq!(found, expected);
}

#[test]
fn the_optimizer_tells_parameters_and_states_that_no_role_tells() {
    // The same step as a capture that knows only inputs: the structure must tell.
    let graph = perceptron();
    let expected = Analysis::new(&graph).storage_kinds;
    let mut parts = graph.into_parts();
    for (storage, kind) in parts.storages.iter_mut().zip(&expected) {
        if matches!(kind, Kind::Parameter | Kind::OptimizerState) {
            storage.role = Role::Input;
        }
    }
    let unnamed = Graph::new(parts).expect("roles do not matter to validity");
    assert_eq!(Analysis::new(&unnamed).storage_kinds, expected);
}

#[test]
fn without_an_optimizer_the_outputs_of_the_backward_pass_are_gradients() {
    let mut toy = Toy::default();
    let w = toy.source("w", Role::Parameter, 4);
    let passing = toy.node("dy", Phase::Backward, 1.0, &[w], Some((Role::Gradient, 4)));
    let reads = [passing.expect("made")];
    let dw = toy.node("dw", Phase::Backward, 1.0, &reads, Some((Role::Gradient, 4)));
    toy.parts.outputs = dw.into_iter().collect();
    let kinds = Analysis::new(&toy.graph()).storage_kinds;
    assert_eq!(kinds, [Kind::Parameter, Kind::Other, Kind::Gradient]);
}

#[test]
fn inactive_times_are_those_of_the_nodes_in_between() {
    let graph = perceptron();
    let activations = Analysis::new(&graph).activations;
    // shift: fc2, loss, loss_dx, fc2_dw, fc2_dx; relu: loss, loss_dx; fc2: nothing.
    let expected = [Micros(26.0), Micros(2.0), Micros(0.0)];
    assert_eq!(inactive_times(&graph, &activations), expected);
}

#[test]
fn recomputation_is_traced_to_what_is_kept() {
    let graph = perceptron();
    let activations = Analysis::new(&graph).activations;
    let found: Vec<_> = recomputations(&graph)
        .into_iter()
        .zip(&activations)
        .map(|(r, a)| {
            assert!(r.possible, "all can be made again");
            let sources: Vec<_> = r.sources.iter().map(|&s| graph.storage_name(s)).collect();
            let nodes: Vec<_> = r.nodes.iter().map(|&n| graph.node(n).name.clone()).collect();
            let memory = r.memory(&graph, a.storage);
            (sources.join(" "), nodes.join(" "), r.time, memory)
        })
        .collect();
    let row = |sources: &str, nodes: &str, time, memory| {
        (sources.to_owned(), nodes.to_owned(), Micros(time), Bytes(memory))
    };
    let expected = [
        // z and h are there together when `shift` runs.
        row("x w1 b1", "fc1 shift", 12.0, 200),
        row("shift", "relu", 3.0, 100),
        row("w2 relu", "fc2", 8.0, 40),
    ];
    assert_eq!(found, expected);
}

/// `x → a → y`, with `a` read again by a backward node, after `change` to the graph's parts.
fn chain(change: impl Fn(&mut Toy)) -> Graph {
    let mut toy = Toy::default();
    let x = toy.source("x", Role::Input, 1);
    let makes = Some((Role::Activation, 8));
    let a = toy.node("a", Phase::Forward, 4.0, &[x], makes).expect("made");
    change(&mut toy);
    toy.node("y", Phase::Forward, 1.0, &[a], makes);
    toy.node("da", Phase::Backward, 1.0, &[a], None);
    toy.graph()
}

#[test]
fn a_recomputation_that_costs_nothing_has_an_infinite_ratio() {
    let ratio = |change: &dyn Fn(&mut Toy)| {
        let graph = chain(change);
        let bytes = Analysis::new(&graph).activations[0].bytes;
        recomputations(&graph)[0].ratio(bytes)
    };
    assert_eq!(ratio(&|_| {}), 2e6);
    assert_eq!(ratio(&|toy| toy.last().time = Micros::ZERO), f64::INFINITY);
    assert_eq!(ratio(&|toy| toy.parts.storages[1].bytes = Bytes::ZERO), 0.0);
}

#[test]
fn what_may_run_once_or_reads_what_is_overwritten_cannot_be_made_again() {
    let possible = |graph: Graph| recomputations(&graph)[0].possible;
    assert!(possible(chain(|_| {})));
    assert!(!possible(chain(|toy| toy.last().effect = Effect::Once)));
    assert!(!possible(chain(|toy| {
        let x = toy.parts.nodes[0].writes[0];
        toy.node("update", Phase::Forward, 1.0, &[x], None);
        toy.last().updates = vec![x];
        toy.last().effect = Effect::Once;
    })));
}

#[test]
fn node_peaks_are_those_of_the_byte_timeline() {
    let graph = perceptron();
    let peaks = node_peaks(&graph);
    // Sources take 132 bytes. At `shift` there are z and h too; at `fc1_dw` the loss, dw2, dh, dw1
    // and the scratch; the optimizer holds the loss and three gradients that go one by one.
    let of = |name: &str| {
        let rank = graph.nodes().iter().position(|n| n.name == name);
        peaks[rank.expect("there is such a node")].get() - 132
    };
    assert_eq!(peaks[0], Bytes(132));
    assert_eq!([of("fc1"), of("shift"), of("relu")], [100, 200, 200]);
    assert_eq!(of("loss_dx"), 100 + 100 + 40 + 4 + 40);
    assert_eq!(of("fc1_dw"), 4 + 12 + 50 + 16 + 5);
    assert_eq!([of("momentum_w1"), of("momentum_w2"), of("sgd_b1")], [36, 20, 8]);
    let highest = peaks.iter().copied().max();
    assert_eq!(highest, Some(Timeline::natural(&graph).peak));
}

#[test]
fn memory_rises_through_the_forward_pass_and_falls_through_the_backward_pass() {
    let graph = perceptron();
    let steps = Schedule::plain(&graph).steps;
    let timeline = Timeline::natural(&graph);
    let after = |phase| {
        let mut level = Vec::new();
        let mut within = false;
        for (step, &bytes) in steps.iter().zip(&timeline.after) {
            if let rekindle_graph::Step::Run(n) = step {
                within = graph.node(*n).phase == phase;
                if within {
                    level.push(bytes);
                }
            } else if within {
                // The level after a node is that after the frees that follow it.
                *level.last_mut().expect("frees follow a run") = bytes;
            }
        }
        level
    };
    let (forward, backward) = (after(Phase::Forward), after(Phase::Backward));
    assert!(forward.windows(2).all(|w| w[0] <= w[1]), "{forward:?}");
    assert!(backward.last() < backward.first(), "{backward:?}");
    assert!(backward.iter().all(|b| Some(b) <= forward.last()), "{backward:?}");
}

#[test]
fn active_bytes_are_what_is_live_just_after_a_node() {
    let graph = perceptron();
    let nodes = Profile::of_graph("perceptron", 4, &graph, "cpu").nodes;
    // `fc1_dw` needs 5 bytes of scratch, which are gone when it has run; h, which `relu_dx` was the
    // last to use, is freed after that.
    let active = |rank: usize| nodes[rank].active_mem.get() - 132;
    assert_eq!(active(7), 100);
    assert_eq!(active(15), 4 + 100 + 12 + 50 + 50);
    assert_eq!(active(16), 4 + 12 + 50 + 16);
    // Of the inputs, what is there from the start.
    assert_eq!(nodes[0].active_mem, Bytes(132));
    // The same, by the timeline: the level after each run, before the frees that follow it.
    let timeline = Timeline::natural(&graph);
    let steps = Schedule::plain(&graph).steps;
    for (step, &after) in steps.iter().zip(&timeline.after) {
        if let rekindle_graph::Step::Run(id) = step {
            assert_eq!(nodes[id.index()].active_mem, after, "{id}");
        }
    }
    assert!(nodes.iter().all(|n| n.active_mem <= n.peak_mem));
}
