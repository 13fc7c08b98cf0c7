//! A valid plan passes with the numbers worked out by hand; each kind of damage is named.

use rekindle_graph::{
    Bytes, Effect, Graph, GraphParts, Micros, Node, NodeId, Phase, Plan, Role, Schedule, Step,
    StepId, Storage, StorageId, WrongGraph,
};
use rekindle_verify::{Violation, verify};

// Storages, with their sizes.
const W: u32 = 0; // 10, parameter
const X: u32 = 1; // 4, input
const STATS: u32 = 2; // 2, parameter
const A: u32 = 3; // 8, activation
const B: u32 = 4; // 6, activation
const MASK: u32 = 5; // 3, activation
const LOSS: u32 = 6; // 1, output
const GB: u32 = 7; // 6, gradient
const GA: u32 = 8; // 8, gradient
const GW: u32 = 9; // 10, gradient

// Nodes, with their times.
const CONV: u32 = 1; // 5, scratch 2
const TRACK: u32 = 2; // 1, once: moves the statistics
const RELU: u32 = 3; // 1
const LOSS_FN: u32 = 4; // 1
const LOSS_BACK: u32 = 5; // 1
const RELU_BACK: u32 = 6; // 1
const CONV_BACK: u32 = 7; // 5
const SGD: u32 = 8; // 1, once: moves the weight

fn updating(mut node: Node, storage: u32) -> Node {
    node.updates = vec![StorageId(storage)];
    node.effect = Effect::Once;
    node
}

fn parts() -> GraphParts {
    use Phase::{Backward, Forward, Input, Optimizer};
    use Role::{Activation, Gradient, Other, Parameter};
    let storages = [
        (10, Parameter),
        (4, Role::Input),
        (2, Parameter),
        (8, Activation),
        (6, Activation),
        (3, Activation),
        (1, Other),
        (6, Gradient),
        (8, Gradient),
        (10, Gradient),
    ];
    let storages = storages.map(|(bytes, role)| Storage { bytes: Bytes(bytes), role });
    let mut conv = Node::new("conv", Forward, 5.0, &[W, X], &[A]);
    conv.workspace = Bytes(2);
    GraphParts {
        name: "step".into(),
        origin: "by hand".into(),
        storages: storages.to_vec(),
        nodes: vec![
            Node::new("inputs", Input, 0.0, &[], &[W, X, STATS]),
            conv,
            updating(Node::new("track", Forward, 1.0, &[A, STATS], &[]), STATS),
            Node::new("relu", Forward, 1.0, &[A], &[B, MASK]),
            Node::new("loss", Forward, 1.0, &[B], &[LOSS]),
            Node::new("loss_back", Backward, 1.0, &[B], &[GB]),
            Node::new("relu_back", Backward, 1.0, &[GB, MASK], &[GA]),
            Node::new("conv_back", Backward, 5.0, &[GA, X, A], &[GW]),
            updating(Node::new("sgd", Optimizer, 1.0, &[GW, W], &[]), W),
        ],
        outputs: vec![StorageId(LOSS)],
        targets: vec![NodeId(SGD)],
    }
}

fn graph() -> Graph {
    Graph::new(parts()).expect("a valid graph")
}

fn run(node: u32) -> Step {
    Step::Run(NodeId(node))
}

fn free(storage: u32) -> Step {
    Step::Free(StorageId(storage))
}

/// Drops `a` after the forward pass and makes it again for `conv_back`.
///
/// Persistent: 16. Highest: conv_back, with 16 + loss 1 + ga 8 + a 8 + gw 10 = 43.
/// Time: all nodes once 16, and conv once more.
fn valid() -> Plan {
    Plan {
        graph: "step".into(),
        digest: None,
        strategy: None,
        budget: Bytes(43),
        peak: Bytes(43),
        time: Micros(21.0),
        schedule: vec![
            run(CONV),
            run(TRACK),
            run(RELU),
            free(A),
            run(LOSS_FN),
            run(LOSS_BACK),
            free(B),
            run(RELU_BACK),
            free(GB),
            free(MASK),
            run(CONV),
            run(CONV_BACK),
            free(A),
            free(GA),
            run(SGD),
            free(GW),
        ]
        .into(),
    }
}

/// The one position of `step` in the valid plan, counted from its `nth` (0 is the first).
fn position(step: Step, nth: usize) -> usize {
    let steps = valid().schedule.steps;
    let mut found = (0..steps.len()).filter(|&i| steps[i] == step);
    found.nth(nth).expect("the valid plan has this step")
}

#[track_caller]
fn check(damage: impl FnOnce(&mut Plan), expected: &[Violation]) {
    let mut plan = valid();
    damage(&mut plan);
    let found = verify(&graph(), &plan).expect_err("the damage must be seen");
    assert_eq!(found.0, expected, "\n{found}");
}

fn step(index: usize) -> StepId {
    StepId::new(index)
}

#[test]
fn the_valid_plan_passes_with_the_numbers_worked_out_by_hand() {
    let audit = verify(&graph(), &valid()).expect("valid");
    assert_eq!(audit.peak, Bytes(43));
    assert_eq!(audit.peak_step, Some(step(position(run(CONV_BACK), 0))));
    assert_eq!(audit.time, Micros(21.0));
    assert_eq!(audit.recomputed, 1);
    assert_eq!(audit.runs, [0, 2, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn a_dropped_recomputation() {
    let at = position(run(CONV), 1);
    let reads_dead = Violation::ReadsDead {
        step: step(at),
        node: "conv_back".into(),
        storage: StorageId(A),
        name: "conv".into(),
    };
    let frees_dead =
        Violation::FreesDead { step: step(at + 1), storage: StorageId(A), name: "conv".into() };
    // Without the recomputed `a`, conv_back holds 35 and the highest step is the same.
    let peak = Violation::PeakMisstated { said: Bytes(43), found: Bytes(35) };
    let time = Violation::TimeMisstated { said: Micros(21.0), found: Micros(16.0) };
    check(
        |plan| {
            plan.schedule.steps.remove(at);
        },
        &[reads_dead, frees_dead, peak, time],
    );
}

#[test]
fn a_free_that_comes_too_early() {
    let expected = Violation::ReadsDead {
        step: step(6),
        node: "loss_back".into(),
        storage: StorageId(B),
        name: "relu".into(),
    };
    // loss_back and the free of `b` change places.
    check(|plan| plan.schedule.steps.swap(5, 6), &[expected]);
}

#[test]
fn two_steps_in_the_wrong_order() {
    let at = position(run(LOSS_BACK), 0);
    let later = position(run(RELU_BACK), 0);
    let reads_dead = |node: &str, at, storage, name: &str| Violation::ReadsDead {
        step: step(at),
        node: node.into(),
        storage: StorageId(storage),
        name: name.into(),
    };
    check(
        |plan| plan.schedule.steps.swap(at, later),
        &[reads_dead("relu_back", at, GB, "loss_back"), reads_dead("loss_back", later, B, "relu")],
    );
}

#[test]
fn a_size_that_is_smaller_than_the_truth() {
    // The plan was made for a graph in which `a` takes 8 bytes; here it takes 9.
    let mut parts = parts();
    parts.storages[A as usize].bytes = Bytes(9);
    let graph = Graph::new(parts).expect("still valid");
    let found = verify(&graph, &valid()).expect_err("the sizes differ");
    let over = Violation::OverBudget {
        step: step(position(run(CONV_BACK), 0)),
        bytes: Bytes(44),
        budget: Bytes(43),
    };
    let peak = Violation::PeakMisstated { said: Bytes(43), found: Bytes(44) };
    assert_eq!(found.0, [over, peak]);
}

#[test]
fn a_node_that_may_run_only_once_runs_twice() {
    let at = position(run(TRACK), 0) + 1;
    let expected = [
        Violation::RunsAgain { step: step(at), node: "track".into() },
        Violation::TimeMisstated { said: Micros(21.0), found: Micros(22.0) },
    ];
    check(|plan| plan.schedule.steps.insert(at, run(TRACK)), &expected);
}

#[test]
fn a_reader_after_the_updater() {
    // The weight moves before conv runs again with it.
    let (again, sgd) = (position(run(CONV), 1), position(run(SGD), 0));
    let damage = |plan: &mut Plan| {
        let step = plan.schedule.steps.remove(sgd);
        plan.schedule.steps.insert(again, step);
    };
    let mut plan = valid();
    damage(&mut plan);
    let found = verify(&graph(), &plan).expect_err("must be seen").0;
    let expected = Violation::ReadsUpdated {
        step: step(again + 1),
        node: "conv".into(),
        storage: StorageId(W),
        name: "inputs".into(),
        updater: "sgd".into(),
    };
    assert!(found.contains(&expected), "{found:?}");
}

#[test]
fn a_lie_about_the_peak() {
    let expected = Violation::PeakMisstated { said: Bytes(42), found: Bytes(43) };
    check(|plan| plan.peak = Bytes(42), &[expected]);
}

#[test]
fn a_lie_about_the_time() {
    let expected = Violation::TimeMisstated { said: Micros(20.0), found: Micros(21.0) };
    check(|plan| plan.time = Micros(20.0), &[expected]);
    // Another program may have rounded its sum.
    let mut plan = valid();
    plan.time = Micros(21.0 + 1e-5);
    assert!(verify(&graph(), &plan).is_ok());
    plan.time = Micros(f64::NAN);
    assert!(verify(&graph(), &plan).is_err());
}

#[test]
fn a_budget_that_is_exceeded() {
    let expected = Violation::OverBudget {
        step: step(position(run(CONV_BACK), 0)),
        bytes: Bytes(43),
        budget: Bytes(42),
    };
    check(|plan| plan.budget = Bytes(42), &[expected]);
}

#[test]
fn a_budget_below_what_is_there_from_the_start() {
    let plan = Plan {
        budget: Bytes(15),
        peak: Bytes(16),
        time: Micros(0.0),
        schedule: Schedule::default(),
        ..valid()
    };
    let found = verify(&graph(), &plan).expect_err("nothing fits").0;
    let expected = Violation::StartOverBudget { bytes: Bytes(16), budget: Bytes(15) };
    assert_eq!(found[0], expected);
}

#[test]
fn a_missing_target_and_a_missing_update() {
    let at = position(run(SGD), 0);
    let time = Violation::TimeMisstated { said: Micros(21.0), found: Micros(20.0) };
    let target = Violation::TargetNeverRan { node: "sgd".into() };
    check(|plan| _ = plan.schedule.steps.remove(at), &[target, time.clone()]);
    // `track` is no target, but the plain step moves the statistics.
    let at = position(run(TRACK), 0);
    let update = Violation::UpdateNeverRan { node: "track".into() };
    check(|plan| _ = plan.schedule.steps.remove(at), &[update, time]);
}

#[test]
fn an_output_that_is_freed() {
    let expected = Violation::OutputDead { storage: StorageId(LOSS), name: "loss".into() };
    check(|plan| plan.schedule.steps.push(free(LOSS)), &[expected]);
}

#[test]
fn an_output_without_its_update() {
    // Here `a` is an output that `track` overwrites. Made again, it holds the old value.
    let mut parts = parts();
    parts.outputs.push(StorageId(A));
    parts.nodes[RELU as usize].reads = vec![StorageId(X)];
    parts.nodes[CONV_BACK as usize].reads = vec![StorageId(GA), StorageId(X)];
    parts.nodes[TRACK as usize].updates = vec![StorageId(A)];
    let graph = Graph::new(parts).expect("still valid");
    let mut plan = valid();
    plan.schedule.steps.remove(position(free(A), 1));
    let found = verify(&graph, &plan).expect_err("the output is stale").0;
    let expected = Violation::OutputStale {
        storage: StorageId(A),
        name: "conv".into(),
        updater: "track".into(),
    };
    assert_eq!(found, [expected]);
}

#[test]
fn frees_of_what_is_dead_or_persistent() {
    let end = valid().schedule.steps.len();
    let dead =
        Violation::FreesDead { step: step(end), storage: StorageId(GW), name: "conv_back".into() };
    check(|plan| plan.schedule.steps.push(free(GW)), &[dead]);
    let persistent = Violation::FreesPersistent {
        step: step(end),
        storage: StorageId(W),
        name: "inputs".into(),
    };
    check(|plan| plan.schedule.steps.push(free(W)), &[persistent]);
}

#[test]
fn ids_that_do_not_exist_and_inputs_that_run() {
    let end = valid().schedule.steps.len();
    let no_node = Violation::UnknownNode { step: step(end), node: 99 };
    check(|plan| plan.schedule.steps.push(run(99)), &[no_node]);
    let no_storage = Violation::UnknownStorage { step: step(end), storage: StorageId(99) };
    check(|plan| plan.schedule.steps.push(free(99)), &[no_storage]);
    let input = Violation::RunsInput { step: step(end), node: "inputs".into() };
    check(|plan| plan.schedule.steps.push(run(0)), &[input]);
}

#[test]
fn a_plan_for_another_graph() {
    let expected = Violation::WrongGraph(WrongGraph { plan: "other".into(), graph: "step".into() });
    check(|plan| plan.graph = "other".into(), &[expected]);
}

#[test]
fn every_violation_is_reported_at_once() {
    let mut plan = valid();
    plan.budget = Bytes(30);
    plan.peak = Bytes(1);
    plan.schedule.steps.push(free(W));
    plan.schedule.steps.push(run(99));
    let found = verify(&graph(), &plan).expect_err("much is wrong");
    // Over 30 bytes: relu 33, loss_back 32, relu_back 34, conv again 35, conv_back 43, sgd 27 is
    // not.
    let over = |v: &&Violation| matches!(v, Violation::OverBudget { .. });
    assert_eq!(found.0.iter().filter(over).count(), 5);
    assert_eq!(found.0.len(), 5 + 3);
    assert_eq!(found.to_string().lines().count(), found.0.len());
}

#[test]
fn a_live_output_that_is_made_again_counts_twice_for_that_step() {
    // relu runs again for its mask while `b` is still live: 16 + a 8 + b 6 + mask 3 and 6 + 3 more.
    let mut plan = valid();
    plan.schedule.steps.insert(position(free(A), 0), run(RELU));
    plan.time = Micros(22.0);
    let audit = verify(&graph(), &plan).expect("wasteful, but valid");
    assert_eq!(audit.peak, Bytes(43));
    plan.budget = Bytes(41);
    let found = verify(&graph(), &plan).expect_err("42 during the second relu").0;
    let expected = Violation::OverBudget {
        step: step(position(free(A), 0)),
        bytes: Bytes(42),
        budget: Bytes(41),
    };
    assert_eq!(found[0], expected);
}

#[test]
fn a_plan_for_another_graph_of_the_same_name() {
    let mut parts = graph().into_parts();
    parts.storages[0].bytes = Bytes(7);
    let other = Graph::new(parts).expect("a graph").digest();
    let expected = Violation::WrongGraph(WrongGraph { plan: "step".into(), graph: "step".into() });
    check(|plan| plan.digest = Some(other), &[expected]);
}
