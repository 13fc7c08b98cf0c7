//! Plans of every strategy, rewritten: the same work in the same bytes, checked independently.

use std::path::{Path, PathBuf};

use rekindle_graph::{
    Bytes, Effect, Graph, GraphParts, Node, NodeId, Phase, Plan, Role, Schedule, Step, Storage,
    StorageId, Timeline, read_graph,
};
use rekindle_plan::{Effort, NoWatch, Options, Strategy, plan};
use rekindle_rewrite::{RewriteError, Rewritten, dot, rewrite};
use rekindle_verify::{Origins, Violation, verify_rewritten};

fn node(name: &str, phase: Phase, reads: &[u32], writes: &[u32]) -> Node {
    Node::new(name, phase, 1.0, reads, writes)
}

/// x → f → pool (two outputs) → g, and backward nodes that read f's and both of pool's outputs.
/// Storages: 0 x, 1 f, 2 pool, 3 indices, 4 g, 5 gradient of g, 6 of pool, 7 of f.
fn small() -> Graph {
    use Phase::{Backward, Forward, Input};
    let roles = [
        (1, Role::Input),
        (10, Role::Activation),
        (4, Role::Activation),
        (2, Role::Activation),
        (4, Role::Activation),
        (4, Role::Gradient),
        (4, Role::Gradient),
        (10, Role::Gradient),
    ];
    let mut f = node("f", Forward, &[0], &[1]);
    f.effect = Effect::Random;
    Graph::new(GraphParts {
        name: "small".into(),
        origin: "by hand".into(),
        storages: roles.map(|(bytes, role)| Storage { bytes: Bytes(bytes), role }).to_vec(),
        nodes: vec![
            node("x", Input, &[], &[0]),
            f,
            node("pool", Forward, &[1], &[2, 3]),
            node("g", Forward, &[2], &[4]),
            node("g_back", Backward, &[4], &[5]),
            node("pool_back", Backward, &[5, 3, 2], &[6]),
            node("f_back", Backward, &[6, 1], &[7]),
        ],
        outputs: vec![StorageId(7)],
        targets: vec![NodeId(6)],
    })
    .expect("a graph")
}

fn plan_of(graph: &Graph, order: &[u32]) -> Plan {
    let order: Vec<NodeId> = order.iter().copied().map(NodeId).collect();
    let schedule = Schedule::of_order(graph, &order);
    let timeline = Timeline::new(graph, &schedule).expect("valid");
    Plan {
        graph: graph.name().into(),
        digest: None,
        strategy: None,
        budget: timeline.peak,
        peak: timeline.peak,
        time: timeline.time,
        schedule,
    }
}

/// What must hold for any plan whose frees follow last uses.
#[track_caller]
fn check(graph: &Graph, plan: &Plan) -> Rewritten {
    let rewritten = rewrite(graph, plan).expect("a valid plan can be rewritten");
    verify_rewritten(graph, plan, &rewritten.graph, rewritten.origins()).expect("the same work");
    let natural = Timeline::natural(&rewritten.graph);
    assert_eq!(natural.peak, plan.peak);
    assert_eq!(natural.time, plan.time);
    assert_eq!(natural.recomputed(), 0);
    let again = Graph::from_json(&rewritten.graph.to_json());
    assert_eq!(again.as_ref(), Ok(&rewritten.graph));
    rewritten
}

#[test]
fn a_clone_writes_storages_of_its_own_and_its_readers_are_rewired() {
    let graph = small();
    // f and pool run again before pool_back; f serves f_back too.
    let plan = plan_of(&graph, &[1, 2, 3, 4, 1, 2, 5, 6]);
    let rewritten = check(&graph, &plan);
    let names: Vec<&str> = rewritten.graph.nodes().iter().map(|n| n.name.as_str()).collect();
    assert_eq!(names, ["x", "f", "pool", "g", "g_back", "f@1", "pool@1", "pool_back", "f_back"]);
    let f1 = rewritten.graph.node(NodeId(5));
    assert_eq!(f1.writes, [StorageId(8)]);
    assert_eq!(f1.effect, Effect::Random);
    assert_eq!(f1.phase, Phase::Backward);
    assert_eq!(rewritten.node_origin[5], Step::Run(NodeId(1)));
    let pool1 = rewritten.graph.node(NodeId(6));
    assert_eq!(
        (&pool1.reads[..], &pool1.writes[..]),
        (&[StorageId(8)][..], &[9, 10].map(StorageId)[..])
    );
    assert_eq!(rewritten.storage_origin[8..], [1, 2, 3].map(StorageId));
    let pool_back = rewritten.graph.node(NodeId(7));
    assert_eq!(pool_back.reads, [5, 10, 9].map(StorageId));
    assert_eq!(rewritten.graph.node(NodeId(8)).reads, [6, 8].map(StorageId));
}

#[test]
fn extractions_say_what_is_rebuilt_from_what_and_where() {
    let graph = small();
    let plan = plan_of(&graph, &[1, 2, 3, 4, 1, 2, 5, 6]);
    let rewritten = check(&graph, &plan);
    let found: Vec<_> = rewritten
        .extractions
        .iter()
        .map(|e| (e.storage.0, e.nodes.len(), e.sources.clone(), e.before))
        .collect();
    let x = vec![StorageId(0)];
    let before = Some(NodeId(7)); // pool_back
    assert_eq!(
        found,
        [
            (8, 1, x.clone(), before),  // f, by f@1
            (9, 2, x.clone(), before),  // pool, by f@1 and pool@1
            (10, 2, x.clone(), before), // the indices, by the same two
        ]
    );
    let drawing = dot(&rewritten);
    assert_eq!(drawing.matches("orange").count(), 2);
    assert!(drawing.contains("f@1"), "{drawing}");
}

#[test]
fn an_output_that_is_still_live_is_written_to_a_storage_that_nobody_reads() {
    let graph = small();
    // pool runs again for its indices while its first output is still live: keep it by hand.
    let mut plan = plan_of(&graph, &[1, 2, 3, 4, 5, 6]);
    let at = plan.schedule.steps.iter().position(|s| *s == Step::Run(NodeId(3))).expect("g runs");
    plan.schedule.steps.insert(at, Step::Run(NodeId(2)));
    let timeline = Timeline::new(&graph, &plan.schedule).expect("wasteful, but valid");
    (plan.budget, plan.peak, plan.time) = (timeline.peak, timeline.peak, timeline.time);
    let rewritten = check(&graph, &plan);
    assert!(rewritten.extractions.is_empty());
    for s in [8, 9].map(StorageId) {
        assert!(rewritten.graph.readers(s).is_empty());
    }
}

#[test]
fn clones_of_clones_get_the_next_number() {
    let graph = small();
    let once = check(&graph, &plan_of(&graph, &[1, 2, 3, 4, 1, 2, 5, 1, 6])).graph;
    let names = |g: &Graph| g.nodes().iter().map(|n| n.name.clone()).collect::<Vec<_>>();
    assert!(names(&once).contains(&"f@2".to_string()));
    // f@1 runs twice more.
    let order: Vec<u32> = once.natural_order().iter().map(|n| n.0).collect();
    let f1 = once.nodes().iter().position(|n| n.name == "f@1").expect("there") as u32;
    let mut longer = order.clone();
    longer.insert(order.len() - 1, f1);
    let twice = check(&once, &plan_of(&once, &longer)).graph;
    assert!(names(&twice).contains(&"f@3".to_string()));
}

#[test]
fn every_clone_gets_the_lowest_number_that_is_free() {
    // `f@2` and `f@5` are taken; f@5 runs again too, and shares the numbers with f.
    let mut parts = small().into_parts();
    parts.nodes[2].name = "f@2".into();
    parts.nodes[3].name = "f@5".into();
    let graph = Graph::new(parts).expect("a graph");
    let order = [1, 1, 1, 2, 1, 3, 3, 1, 4, 5, 6];
    let rewritten = check(&graph, &plan_of(&graph, &order));
    let names = rewritten.graph.nodes().iter().zip(&rewritten.is_clone);
    let clones: Vec<&str> = names.filter(|n| *n.1).map(|n| n.0.name.as_str()).collect();
    assert_eq!(clones, ["f@1", "f@3", "f@4", "f@6", "f@7"]);
}

#[test]
fn a_plan_for_another_graph_and_an_invalid_plan_are_errors() {
    let graph = small();
    let mut plan = plan_of(&graph, &[1, 2, 3, 4, 5, 6]);
    plan.schedule.steps.remove(0);
    assert!(matches!(rewrite(&graph, &plan), Err(RewriteError::Plan(_))));
    plan.graph = "other".into();
    assert!(matches!(rewrite(&graph, &plan), Err(RewriteError::WrongGraph { .. })));
}

#[test]
fn damage_to_a_rewritten_graph_is_named() {
    let graph = small();
    let plan = plan_of(&graph, &[1, 2, 3, 4, 1, 2, 5, 6]);
    let rewritten = check(&graph, &plan);
    let damaged = |damage: &dyn Fn(&mut GraphParts)| {
        let mut parts = rewritten.graph.clone().into_parts();
        damage(&mut parts);
        let damaged = Graph::new(parts).expect("still a graph");
        let found = verify_rewritten(&graph, &plan, &damaged, rewritten.origins());
        found.expect_err("the damage must be seen").0
    };
    // The readers of a recomputed storage still read the dropped original.
    let found = damaged(&|parts| parts.nodes[8].reads[1] = StorageId(1));
    assert!(matches!(found[..], [Violation::RewrittenPeak { .. }]), "{found:?}");
    let found = damaged(&|parts| parts.nodes[7].reads = [5, 9, 10].map(StorageId).to_vec());
    assert!(matches!(
        found[..],
        [Violation::WrongWire { how: "reads", .. }, Violation::WrongWire { .. }]
    ));
    let found = damaged(&|parts| parts.storages[8].bytes = Bytes(9));
    assert!(matches!(found[0], Violation::SizeChanged { .. }), "{found:?}");
    let found = damaged(&|parts| parts.nodes[5].effect = Effect::Pure);
    assert!(matches!(found[0], Violation::NodeChanged { what: "effect", .. }), "{found:?}");
    let found = damaged(&|parts| parts.outputs = vec![StorageId(6)]);
    assert!(matches!(found[0], Violation::ListChanged { what: "outputs" }), "{found:?}");
    let found = damaged(&|parts| parts.targets.clear());
    assert!(matches!(found[..], [Violation::ListChanged { what: "targets" }]));

    let short = Origins { nodes: &rewritten.node_origin[1..], ..rewritten.origins() };
    let found = verify_rewritten(&graph, &plan, &rewritten.graph, short).expect_err("short");
    assert!(matches!(found.0[..], [Violation::OriginCount { .. }]));
    let mut swapped = rewritten.node_origin.clone();
    swapped.swap(5, 6);
    let swapped = Origins { nodes: &swapped, ..rewritten.origins() };
    let found = verify_rewritten(&graph, &plan, &rewritten.graph, swapped).expect_err("swapped");
    assert!(matches!(found.0[0], Violation::WrongRun { .. }));
}

fn corpus() -> Vec<Graph> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
    let entries = std::fs::read_dir(folder).expect("the corpus is there");
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("readable").path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "json"));
    paths.sort();
    paths.iter().map(|p| read_graph(p).expect("the corpus loads")).collect()
}

#[test]
fn plans_on_the_corpus_are_rewritten_exactly_and_can_be_planned_again() {
    for graph in corpus() {
        let peak = Timeline::natural(&graph).peak;
        for strategy in Strategy::without_store() {
            let options = Options { strategy, effort: Effort::FIRST, store: None };
            for share in [90, 70, 45] {
                let budget = Bytes(peak.get() / 100 * share);
                let Ok(planned) = plan(&graph, budget, &options, &mut NoWatch) else {
                    continue;
                };
                let rewritten = check(&graph, &planned.plan);
                let clones = rewritten.is_clone.iter().filter(|&&c| c).count();
                assert_eq!(clones, planned.stats.recomputed);
                assert!(clones == 0 || !rewritten.extractions.is_empty());

                let tighter = Bytes(planned.plan.peak.get() / 100 * 95);
                if let Ok(again) = plan(&rewritten.graph, tighter, &options, &mut NoWatch) {
                    check(&rewritten.graph, &again.plan);
                }
            }
        }
    }
}
