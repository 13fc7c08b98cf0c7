//! Plans that move storages, rewritten: what the nodes are, and one damage for each rule.

use rekindle_graph::{
    Bytes, Effect, Graph, GraphParts, Node, NodeId, Origins, Phase, Plan, Role, Step, Storage,
    StorageId, Timeline, Transfer,
};
use rekindle_rewrite::{Rewritten, dot, rewrite};
use rekindle_verify::{Violation, verify_rewritten};

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

// Nodes of the rewritten graph.
const OFFLOAD_F: usize = 4;
const WAIT_F: usize = 6;
const FETCH_F: usize = 7;
const B: usize = 8;

// Storages of the rewritten graph: tokens, and what is fetched.
const W_AT_START: StorageId = StorageId(1);
const W_FETCHED: StorageId = StorageId(5);
const F_STORED: StorageId = StorageId(6);
const F_FETCHED: StorageId = StorageId(7);
const W_STORED: StorageId = StorageId(8);

fn graph() -> Graph {
    Graph::from_json(GRAPH).expect("a graph")
}

fn plan() -> Plan {
    Plan::from_json(PLAN).expect("a plan")
}

#[track_caller]
fn check(graph: &Graph, plan: &Plan) -> Rewritten {
    let rewritten = rewrite(graph, plan).expect("a valid plan can be rewritten");
    let audit = verify_rewritten(graph, plan, &rewritten.graph, rewritten.origins());
    audit.expect("the same work");
    assert!(Timeline::natural(&rewritten.graph).peak <= plan.peak);
    let again = Graph::from_json(&rewritten.graph.to_json());
    assert_eq!(again.as_ref(), Ok(&rewritten.graph));
    rewritten
}

#[test]
fn transfers_are_nodes_and_copies_in_the_store_are_tokens() {
    let rewritten = check(&graph(), &plan());
    let graph = &rewritten.graph;
    let names: Vec<&str> = graph.nodes().iter().map(|n| n.name.as_str()).collect();
    let expected = [
        "x",
        "w",
        "fetch w",
        "f",
        "offload f",
        "h",
        "wait f",
        "fetch f",
        "b",
        "step",
        "offload w",
        "wait w",
    ];
    assert_eq!(names, expected);
    assert_eq!(Timeline::natural(graph).peak, plan().peak);
    assert_eq!(graph.node(NodeId(2)).reads, [W_AT_START]);
    assert_eq!(graph.node(NodeId(2)).writes, [W_FETCHED]);
    assert_eq!(graph.node(NodeId::new(WAIT_F)).reads, [StorageId(2), F_STORED]);
    assert_eq!(graph.node(NodeId::new(FETCH_F)).writes, [F_FETCHED]);
    assert_eq!(graph.node(NodeId::new(B)).reads, [W_FETCHED, F_FETCHED, StorageId(4)]);
    assert_eq!(graph.outputs(), [W_STORED]);
    assert_eq!(rewritten.node_origin[WAIT_F], Step::Free(StorageId(2)));
    for token in [W_AT_START, F_STORED, W_STORED] {
        assert_eq!(*graph.storage(token), Storage { bytes: Bytes(0), role: Role::Other });
    }
    assert_eq!(graph.storage(W_FETCHED).role, Role::Other);
    // A transfer belongs to the part of the step in which it stands.
    assert_eq!(graph.node(NodeId::new(FETCH_F)).phase, Phase::Backward);
    assert_eq!(dot(&rewritten).matches("plum").count(), 6);
}

/// The weight leaves memory in the middle of the step, and is back at its end.
#[test]
fn of_the_copies_of_what_is_persistent_only_the_last_one_is() {
    let mut plan = plan();
    let w = StorageId(1);
    plan.schedule.stored_at_start.clear();
    plan.schedule.steps[0] = Step::Offload(w);
    plan.schedule.steps.splice(2..2, [Step::Free(w)]);
    let run_b = plan.schedule.steps.iter().position(|s| *s == Step::Run(NodeId(4)));
    plan.schedule.steps.insert(run_b.expect("it runs"), Step::Fetch(w));
    plan.schedule.steps.truncate(plan.schedule.steps.len() - 2);
    let timeline = Timeline::new(&graph(), &plan.schedule).expect("valid");
    (plan.budget, plan.peak, plan.time) = (timeline.peak, timeline.peak, timeline.time);
    let rewritten = check(&graph(), &plan);
    let copies = rewritten.graph.storage_ids().zip(&rewritten.storage_origin);
    let roles: Vec<Role> = copies
        .filter(|(s, origin)| **origin == w && rewritten.graph.storage(*s).bytes > Bytes(0))
        .map(|(s, _)| rewritten.graph.storage(s).role)
        .collect();
    assert_eq!(roles, [Role::Other, Role::Parameter]);
    let mut parts = rewritten.graph.clone().into_parts();
    parts.storages[1].role = Role::Parameter;
    let damaged = Graph::new(parts).expect("still a graph");
    let found = verify_rewritten(&graph(), &plan, &damaged, rewritten.origins());
    let found = found.expect_err("it may not stay").0;
    assert!(matches!(found[0], Violation::RoleChanged { storage: StorageId(1), .. }), "{found:?}");
}

/// Whatever is fetched and never read is held until it is there.
#[test]
fn what_nobody_reads_is_waited_for() {
    let mut plan = plan();
    plan.schedule.steps.splice(2..2, [Step::Free(StorageId(1)), Step::Fetch(StorageId(1))]);
    plan.schedule.steps.splice(2..2, [Step::Free(StorageId(1)), Step::Fetch(StorageId(1))]);
    let timeline = Timeline::new(&graph(), &plan.schedule).expect("wasteful, but valid");
    (plan.budget, plan.peak, plan.time) = (timeline.peak, timeline.peak, timeline.time);
    let rewritten = check(&graph(), &plan);
    let waits = rewritten.graph.nodes().iter().filter(|n| n.transfer() == Some(Transfer::Wait));
    assert_eq!(waits.count(), 3);
}

/// What is found after `damage` to the parts and to what the nodes stand for.
fn found(damage: impl FnOnce(&mut GraphParts, &mut Vec<Step>, &mut Vec<StorageId>)) -> Vec<String> {
    let rewritten = rewrite(&graph(), &plan()).expect("a valid plan");
    let (mut nodes, mut storages) = (rewritten.node_origin, rewritten.storage_origin);
    let mut parts = rewritten.graph.into_parts();
    damage(&mut parts, &mut nodes, &mut storages);
    let damaged = Graph::new(parts).expect("still a graph");
    let origins = Origins { nodes: &nodes, storages: &storages };
    let found = verify_rewritten(&graph(), &plan(), &damaged, origins);
    found.expect_err("the damage must be seen").0.iter().map(ToString::to_string).collect()
}

#[track_caller]
fn finds(found: &[String], expected: &str) {
    assert!(found.iter().any(|text| text.contains(expected)), "{found:#?}");
}

#[test]
fn a_fetch_reads_the_copy_that_is_in_the_store() {
    let found = found(|parts, _, _| parts.nodes[FETCH_F].reads.clear());
    finds(&found, "fetch f reads no copy of s2 in the store");
    let found = self::found(|parts, _, _| parts.nodes[FETCH_F].reads = vec![W_AT_START]);
    finds(&found, "fetch f reads no copy of s2 in the store");
    let found = self::found(|parts, _, _| parts.nodes[B].reads[1] = F_STORED);
    finds(&found, "b reads s6, which is in the store and not in memory");
}

fn fetch(name: &str, from: StorageId, to: StorageId) -> Node {
    Node {
        op: Transfer::Fetch.op().into(),
        effect: Effect::Once,
        ..Node::new(name, Phase::Optimizer, 0.0, &[from.0], &[to.0])
    }
}

#[test]
fn a_copy_that_is_stale_is_fetched_by_nobody() {
    let found = found(|parts, nodes, storages| {
        let again = StorageId::new(parts.storages.len());
        parts.storages.push(Storage { bytes: Bytes(16), role: Role::Other });
        storages.push(StorageId(1));
        parts.nodes.push(fetch("fetch w@1", W_AT_START, again));
        nodes.push(Step::Fetch(StorageId(1)));
    });
    finds(&found, "fetch w@1 fetches a copy that was made before step overwrote it");
    finds(&found, "s9 is freed while it is moved");
    finds(&found, "9 runs, the plan has 8");
}

#[test]
fn what_was_updated_is_read_by_no_run() {
    let found = found(|parts, nodes, storages| {
        let (again, made) = (StorageId(9), StorageId(10));
        parts.storages.push(Storage { bytes: Bytes(16), role: Role::Other });
        parts.storages.push(Storage { bytes: Bytes(32), role: Role::Activation });
        storages.extend([StorageId(1), StorageId(2)]);
        parts.nodes.push(fetch("fetch w@1", W_STORED, again));
        let f = &parts.nodes[3];
        let reads = vec![StorageId(0), again];
        parts.nodes.push(Node { name: "f@1".into(), reads, writes: vec![made], ..f.clone() });
        nodes.extend([Step::Fetch(StorageId(1)), Step::Run(NodeId(2))]);
    });
    finds(&found, "f@1 reads s9, which was overwritten before");
}

#[test]
fn what_is_moved_is_held_until_it_has_been() {
    let found = found(|parts, _, _| parts.nodes[WAIT_F].reads.truncate(1));
    assert_eq!(found.len(), 1);
    finds(&found, "s2 is freed while it is moved");
    // Held longer than the plan holds it.
    let found = self::found(|parts, nodes, _| {
        parts.nodes[WAIT_F..=B].rotate_left(1);
        nodes[WAIT_F..=B].rotate_left(1);
    });
    assert_eq!(found.len(), 1);
    finds(&found, "its peak is 112 bytes, the plan promises 80");
}

#[test]
fn what_lives_in_the_store_ends_there() {
    let found = found(|parts, _, _| parts.outputs.clear());
    finds(&found, "s1 lives in the store, and no output is its copy there");
    let found = self::found(|parts, _, _| parts.outputs = vec![W_AT_START]);
    finds(&found, "storage s1 outlives the step, and step has not updated it");
    let found = self::found(|parts, _, _| parts.outputs = vec![W_FETCHED]);
    finds(&found, "its outputs are not those of the graph");
    finds(&found, "s1 lives in the store, and no output is its copy there");
    let found = self::found(|parts, _, _| parts.storages[5].role = Role::Parameter);
    finds(&found, "storage s5, a copy of s1, is Parameter and must be Other");
}

#[test]
fn a_transfer_does_nothing_else() {
    let found = found(|parts, _, _| parts.nodes[OFFLOAD_F].workspace = Bytes(1));
    finds(&found, "offload f is no transfer of s2 and nothing else");
    let found = self::found(|parts, _, _| parts.nodes[OFFLOAD_F].reads = vec![StorageId(0)]);
    finds(&found, "offload f is no transfer of s2 and nothing else");
    let found = self::found(|parts, _, _| parts.storages[F_STORED.index()].bytes = Bytes(1));
    finds(&found, "storage s6 is not as large as s2");
    let found = self::found(|_, nodes, _| nodes[OFFLOAD_F] = Step::Offload(StorageId(9)));
    finds(&found, "offload f stands for nothing in the graph");
    let found = self::found(|_, nodes, _| nodes.swap(OFFLOAD_F, FETCH_F));
    finds(&found, "the plan runs offload f there");
}
