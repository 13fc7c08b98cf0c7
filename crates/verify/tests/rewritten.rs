//! A graph that was rewritten by hand passes; each kind of damage to what outlives the step is
//! named.

use rekindle_graph::{
    Bytes, Effect, Graph, GraphParts, Micros, Node, NodeId, Phase, Plan, Role, Step, Storage,
    StorageId,
};
use rekindle_verify::{Origins, Violation, verify_rewritten};

// Storages, with their sizes.
const W: u32 = 0; // 10, parameter
const A: u32 = 1; // 8, activation
const TABLE: u32 = 2; // 2, constant that f makes and sgd moves
const LOSS: u32 = 3; // 1
const GW: u32 = 4; // 8, gradient
const A_AGAIN: u32 = 5; // in the rewritten graph: the copies that f makes when it runs again
const TABLE_AGAIN: u32 = 6;

// Nodes.
const F: u32 = 1;
const LOSS_FN: u32 = 2;
const BACK: u32 = 3;
const SGD: u32 = 4;

// In the rewritten graph, where f runs again before `back`.
const SGD_AFTER: usize = 5;

fn node(name: &str, phase: Phase, reads: &[u32], writes: &[u32]) -> Node {
    let op = name.trim_end_matches("@1").into();
    Node { op, ..Node::new(name, phase, 1.0, reads, writes) }
}

fn parts(storages: &[(u64, Role)], mut nodes: Vec<Node>) -> GraphParts {
    let sgd = nodes.last_mut().expect("the last node is sgd");
    sgd.updates = vec![StorageId(TABLE)];
    sgd.effect = Effect::Once;
    let storage = |&(bytes, role): &(u64, Role)| Storage { bytes: Bytes(bytes), role };
    GraphParts {
        name: "step".into(),
        origin: "by hand".into(),
        storages: storages.iter().map(storage).collect(),
        targets: vec![NodeId::new(nodes.len() - 1)],
        nodes,
        outputs: vec![StorageId(LOSS)],
    }
}

const STORAGES: [(u64, Role); 7] = [
    (10, Role::Parameter),
    (8, Role::Activation),
    (2, Role::Constant),
    (1, Role::Other),
    (8, Role::Gradient),
    (8, Role::Activation),
    // The constant is there for good since f first ran; this copy must go.
    (2, Role::Other),
];

fn graph() -> Graph {
    use Phase::{Backward, Forward, Input, Optimizer};
    let nodes = vec![
        node("inputs", Input, &[], &[W]),
        node("f", Forward, &[W], &[A, TABLE]),
        node("loss", Forward, &[A], &[LOSS]),
        node("back", Backward, &[A, LOSS], &[GW]),
        node("sgd", Optimizer, &[GW, TABLE], &[]),
    ];
    Graph::new(parts(&STORAGES[..5], nodes)).expect("a valid graph")
}

/// Drops `a` after the loss and makes it again.
///
/// Highest: back, with w 10 + table 2 + loss 1 + a 8 + gw 8 = 29.
fn plan() -> Plan {
    let run = |node| Step::Run(NodeId(node));
    let free = |storage| Step::Free(StorageId(storage));
    Plan {
        graph: "step".into(),
        digest: None,
        strategy: None,
        budget: Bytes(29),
        peak: Bytes(29),
        time: Micros(5.0),
        schedule: vec![
            run(F),
            run(LOSS_FN),
            free(A),
            run(F),
            run(BACK),
            free(A),
            run(SGD),
            free(GW),
        ]
        .into(),
    }
}

fn rewritten() -> GraphParts {
    use Phase::{Backward, Forward, Input, Optimizer};
    let nodes = vec![
        node("inputs", Input, &[], &[W]),
        node("f", Forward, &[W], &[A, TABLE]),
        node("loss", Forward, &[A], &[LOSS]),
        node("f@1", Backward, &[W], &[A_AGAIN, TABLE_AGAIN]),
        node("back", Backward, &[A_AGAIN, LOSS], &[GW]),
        node("sgd", Optimizer, &[GW, TABLE], &[]),
    ];
    parts(&STORAGES, nodes)
}

/// What is found in the rewritten graph after `damage`.
fn found(damage: impl FnOnce(&mut GraphParts)) -> Vec<Violation> {
    let mut parts = rewritten();
    damage(&mut parts);
    let rewritten = Graph::new(parts).expect("still a graph");
    let origins = Origins {
        nodes: &[0, F, LOSS_FN, F, BACK, SGD].map(|n| Step::Run(NodeId(n))),
        storages: &[W, A, TABLE, LOSS, GW, A, TABLE].map(StorageId),
    };
    match verify_rewritten(&graph(), &plan(), &rewritten, origins) {
        Ok(_) => Vec::new(),
        Err(violations) => violations.0,
    }
}

fn role_changed(storage: u32, origin: u32, expected: Role, found: Role) -> Violation {
    Violation::RoleChanged {
        storage: StorageId(storage),
        origin: StorageId(origin),
        expected,
        found,
    }
}

fn peak(found: u64) -> Violation {
    Violation::RewrittenPeak { promised: Bytes(29), found: Bytes(found) }
}

#[test]
fn what_was_rewritten_by_hand_passes() {
    assert_eq!(found(|_| {}), []);
}

#[test]
fn a_parameter_that_may_be_freed() {
    let expected = role_changed(W, W, Role::Parameter, Role::Other);
    assert_eq!(found(|parts| parts.storages[W as usize].role = Role::Other), [expected]);
}

#[test]
fn a_parameter_that_is_another_kind_of_persistent() {
    let expected = role_changed(W, W, Role::Parameter, Role::OptimizerState);
    assert_eq!(found(|parts| parts.storages[W as usize].role = Role::OptimizerState), [expected]);
}

#[test]
fn an_activation_that_is_no_activation_when_it_is_made_again() {
    let expected = role_changed(A_AGAIN, A, Role::Activation, Role::Gradient);
    assert_eq!(found(|parts| parts.storages[A_AGAIN as usize].role = Role::Gradient), [expected]);
}

#[test]
fn a_second_copy_that_stays_for_good() {
    let expected = role_changed(TABLE_AGAIN, TABLE, Role::Other, Role::Constant);
    assert_eq!(
        found(|parts| parts.storages[TABLE_AGAIN as usize].role = Role::Constant),
        [expected, stale(TABLE_AGAIN), peak(31)]
    );
}

#[test]
fn the_wrong_copy_stays_for_good() {
    let damage = |parts: &mut GraphParts| {
        let (first, again) = (TABLE as usize, TABLE_AGAIN as usize);
        parts.storages[first].role = Role::Other;
        parts.storages[again].role = Role::Constant;
    };
    let expected = [
        role_changed(TABLE, TABLE, Role::Constant, Role::Other),
        role_changed(TABLE_AGAIN, TABLE, Role::Other, Role::Constant),
        stale(TABLE_AGAIN),
        peak(31),
    ];
    assert_eq!(found(damage), expected);
}

#[test]
fn an_update_of_a_copy_that_goes() {
    let damage = |parts: &mut GraphParts| {
        let sgd = &mut parts.nodes[SGD_AFTER];
        sgd.reads[1] = StorageId(TABLE_AGAIN);
        sgd.updates[0] = StorageId(TABLE_AGAIN);
    };
    assert_eq!(found(damage), [stale(TABLE), peak(31)]);
}

fn stale(storage: u32) -> Violation {
    Violation::CopyStale { storage: StorageId(storage), updater: "sgd".into() }
}
