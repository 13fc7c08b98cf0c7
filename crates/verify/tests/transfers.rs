//! Plans that move storages: a valid one, and one damage for each rule of the store.

use rekindle_graph::{Bytes, Graph, Micros, Plan, Rate, Role, Step, StepId, StorageId, Timeline};
use rekindle_verify::{Violation, verify};

/// `f` makes a large activation from the input and a weight, `b` reads it, `step` updates the
/// weight.
const GRAPH: &str = r#"{"format": "remat.graph/1", "name": "step",
 "storages": [{"bytes": 8, "role": "input"}, {"bytes": 16, "role": "parameter"},
              {"bytes": 32, "role": "activation"}, {"bytes": 16, "role": "gradient"},
              {"bytes": 8, "role": "activation"}],
 "nodes": [
 {"name": "x", "phase": "input", "time_us": 0, "reads": [], "writes": [0]},
 {"name": "w", "phase": "input", "time_us": 0, "reads": [], "writes": [1]},
 {"name": "f", "phase": "forward", "time_us": 10, "reads": [0, 1], "writes": [2]},
 {"name": "h", "phase": "forward", "time_us": 10, "reads": [0], "writes": [4]},
 {"name": "b", "phase": "backward", "time_us": 10, "reads": [1, 2, 4], "writes": [3]},
 {"name": "step", "phase": "optimizer", "time_us": 1, "reads": [1, 3], "writes": [],
  "updates": [1], "recompute": false}],
 "outputs": [], "targets": [5]}"#;

/// The weight lives in the store; the activation is moved there between its uses.
const PLAN: &str = r#"{"format": "remat.plan/2", "graph": "step",
 "budget_bytes": 80, "peak_bytes": 80, "time_us": 97,
 "store": {"out_bytes_per_us": 1, "in_bytes_per_us": 2, "latency_us": 1, "budget_bytes": 48},
 "stored_at_start": [1],
 "steps": [{"fetch": 1}, {"run": 2}, {"offload": 2}, {"run": 3}, {"free": 2}, {"fetch": 2},
           {"run": 4}, {"free": 2}, {"free": 4}, {"run": 5}, {"free": 3}, {"offload": 1},
           {"free": 1}]}"#;

const FETCH_W: usize = 0;
const OFFLOAD_A: usize = 2;
const FREE_A: usize = 4;
const FETCH_A: usize = 5;
const OFFLOAD_W: usize = 11;
const FREE_W: usize = 12;

const W: StorageId = StorageId(1);

fn graph() -> Graph {
    Graph::from_json(GRAPH).expect("a graph")
}

fn plan() -> Plan {
    Plan::from_json(PLAN).expect("a plan")
}

/// The first violation that the damaged plan shows. Damage has consequences; the first is the
/// cause.
#[track_caller]
fn check(damage: impl FnOnce(&mut Plan), expected: &str) {
    let mut plan = plan();
    damage(&mut plan);
    let found = verify(&graph(), &plan).expect_err("it is damaged").0;
    assert!(found[0].to_string().contains(expected), "{}", found[0]);
}

#[test]
fn the_valid_plan_has_the_bytes_and_the_time_that_an_independent_judge_printed() {
    let audit = verify(&graph(), &plan()).expect("valid");
    assert_eq!((audit.peak, audit.time), (Bytes(80), Micros(97.0)));
    assert_eq!(audit.store_peak, Bytes(48));
    let timeline = Timeline::new(&graph(), &plan().schedule).expect("valid");
    assert_eq!((timeline.peak, timeline.time), (Bytes(80), Micros(97.0)));
    assert_eq!((timeline.compute, timeline.waited), (Micros(31.0), Micros(66.0)));
    assert_eq!((timeline.moved_out, timeline.moved_in), (Bytes(48), Bytes(48)));
    assert_eq!(timeline.store_peak, Bytes(48));
    // Nothing overlaps here, so one channel for both directions is as good as two.
    let mut plan = plan();
    plan.schedule.store.as_mut().expect("a store").duplex = false;
    assert_eq!(verify(&graph(), &plan).expect("valid").time, Micros(97.0));
    assert_eq!(plan, Plan::from_json(&plan.to_json()).expect("it is what it was"));
}

#[test]
fn a_fetch_needs_a_copy_that_is_not_stale_and_a_storage_that_is_not_there() {
    check(
        |plan| {
            plan.schedule.steps.remove(OFFLOAD_A);
        },
        "fetches s2 (f), of which there is no copy",
    );
    check(
        |plan| {
            plan.schedule.steps.remove(FREE_A);
        },
        "fetches s2 (f), which is in memory",
    );
    check(
        |plan| {
            plan.schedule.steps.insert(FREE_W, Step::Fetch(W));
            plan.schedule.steps[OFFLOAD_W] = Step::Free(W);
        },
        "frees s1 (w), which is persistent and has no copy that is not stale",
    );
}

#[test]
fn a_copy_is_stale_once_the_storage_is_updated() {
    // A storage that may be freed without a copy: the weight as an activation.
    let mut parts = graph().into_parts();
    parts.storages[W.index()].role = Role::Other;
    let graph = Graph::new(parts).expect("a graph");
    let mut plan = plan();
    plan.schedule.stored_at_start.clear();
    plan.schedule.steps[FETCH_W] = Step::Offload(W);
    plan.schedule.steps[OFFLOAD_W] = Step::Free(W);
    plan.schedule.steps[FREE_W] = Step::Fetch(W);
    let found = verify(&graph, &plan).expect_err("the copy is stale").0;
    let stale = Violation::FetchesStale {
        step: StepId(FREE_W as u32),
        storage: W,
        name: "w".into(),
        updater: "step".into(),
    };
    assert!(found.contains(&stale), "{found:?}");
    assert!(Timeline::new(&graph, &plan.schedule).is_err());
}

#[test]
fn an_offload_needs_something_to_copy_and_somewhere_to_copy_it() {
    check(
        |plan| plan.schedule.steps.swap(OFFLOAD_A - 1, OFFLOAD_A),
        "offloads s2 (f), which is not live",
    );
    check(|plan| plan.schedule.store = None, "there is no store that way");
    check(
        |plan| plan.schedule.store.as_mut().expect("a store").out_rate = Rate(0.0),
        "moves s2 (f), and there is no store that way",
    );
    check(|plan| plan.schedule.steps.push(Step::Offload(StorageId(9))), "there is no storage s9");
}

#[test]
fn a_store_for_activations_takes_nothing_that_is_persistent() {
    let for_activations =
        |plan: &mut Plan| plan.schedule.store.as_mut().expect("a store").activations_only = true;
    // A parameter lives there between steps; without that, it is offloaded.
    check(for_activations, "s1 (w) is Parameter");
    check(
        |plan| {
            for_activations(plan);
            plan.schedule.stored_at_start.clear();
            plan.schedule.steps.remove(FETCH_W);
        },
        "offloads s1 (w), which is persistent",
    );
}

#[test]
fn what_is_persistent_ends_where_it_began() {
    check(
        |plan| {
            plan.schedule.steps.pop();
        },
        "s1 (w) lives in the store, and is in memory at the end",
    );
    check(
        |plan| {
            plan.schedule.steps.truncate(OFFLOAD_W);
        },
        "s1 (w) lives in the store, and is in memory at the end",
    );
    check(|plan| plan.schedule.stored_at_start.push(StorageId(0)), "s0 (x) is Input");
    check(|plan| plan.schedule.stored_at_start.push(StorageId(9)), "there is no storage s9");
    check(
        |plan| {
            plan.schedule.stored_at_start.clear();
            plan.schedule.steps.remove(FETCH_W);
        },
        "persistent s1 (w) is not in memory at the end",
    );
}

#[test]
fn bytes_and_time_count_transfers() {
    check(
        |plan| plan.schedule.store.as_mut().expect("a store").limit = Some(Bytes(47)),
        "the store holds 48 bytes, 1 over its limit of 47",
    );
    // At its peak the activation has been fetched and the gradient is made.
    check(|plan| plan.budget = Bytes(79), "step 6: 80 bytes are live, 1 over");
    check(|plan| plan.budget = Bytes(55), "step 1: 56 bytes are live");
    check(
        |plan| plan.schedule.store.as_mut().expect("a store").latency = Micros(2.0),
        "the plan says that it takes 97.0 µs, the replay finds 101.0 µs",
    );
    // Early, the fetch would be free of charge, but its bytes are there earlier.
    check(
        |plan| {
            let fetch = plan.schedule.steps.remove(FETCH_A);
            plan.schedule.steps.insert(OFFLOAD_A, fetch);
        },
        "fetches s2 (f), which is in memory",
    );
}
