//! On tiny graphs the search finds what trying every schedule finds.
//!
//! The brute force here shares nothing with the planner: it replays steps on the graph as the
//! format describes them (a free is a step, an output that is still live is written a second time),
//! over every reachable state.

use std::collections::{BTreeMap, BTreeSet};

use rekindle_graph::{
    Bytes, Effect, Graph, GraphParts, Node, NodeId, Phase, Role, Step, Storage, StorageId, Timeline,
};
use rekindle_plan::{NoWatch, Options, PlanError, plan};

/// A graph of at most ten nodes, each of which is needed.
fn tiny(seed: u64) -> Graph {
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut storages = Vec::new();
    let mut nodes: Vec<Node> = Vec::new();
    let mut readable: Vec<StorageId> = Vec::new();
    let count = 4 + dice.u64(..7);
    for i in 0..count {
        let input = i == 0;
        let mut reads: Vec<StorageId> = Vec::new();
        for _ in 0..if input { 0 } else { 1 + dice.u64(..3) } {
            // Mostly something recent, as in a chain; sometimes something old, as in a backward
            // pass.
            let reach = if dice.u64(..3) == 0 { 99 } else { 2 };
            let back = dice.u64(..readable.len().min(reach) as u64);
            reads.push(readable[readable.len() - 1 - back as usize]);
        }
        let outputs = if dice.u64(..5) == 0 { 2 } else { 1 };
        let writes: Vec<StorageId> = (0..outputs)
            .map(|k| {
                let role = match (input, k) {
                    (true, 0) => Role::Parameter,
                    _ => Role::Activation,
                };
                storages.push(Storage { bytes: Bytes(1 + dice.u64(..9)), role });
                StorageId(storages.len() as u32 - 1)
            })
            .collect();
        readable.extend(&writes);
        let phase = if input { Phase::Input } else { Phase::Forward };
        let time = if input { 0.0 } else { 1.0 + dice.u64(..9) as f64 };
        nodes.push(Node {
            reads,
            writes,
            workspace: Bytes(if dice.u64(..4) == 0 { dice.u64(..5) } else { 0 }),
            effect: match dice.u64(..8) {
                0 => Effect::Once,
                1 => Effect::Random,
                _ => Effect::Pure,
            },
            ..Node::new(&format!("n{i}"), phase, time, &[], &[])
        });
    }
    // Sometimes the last node overwrites the parameter.
    if dice.u64(..3) == 0
        && let Some(last) = nodes.last_mut()
    {
        last.effect = Effect::Once;
        last.updates = vec![StorageId(0)];
        last.reads.push(StorageId(0));
    }
    let read: BTreeSet<StorageId> = nodes.iter().flat_map(|n| n.reads.clone()).collect();
    let (mut outputs, mut targets) = (Vec::new(), Vec::new());
    for (i, node) in nodes.iter().enumerate() {
        if !node.writes.iter().any(|w| read.contains(w)) && node.phase != Phase::Input {
            match dice.u64(..2) {
                0 => outputs.extend(&node.writes),
                _ => targets.push(NodeId(i as u32)),
            }
        }
    }
    Graph::new(GraphParts {
        name: format!("tiny{seed}"),
        origin: "generated".into(),
        storages,
        nodes,
        outputs,
        targets,
    })
    .expect("the generator makes valid graphs")
}

/// Which storages are live and which nodes have run.
type State = (Vec<bool>, Vec<bool>);

/// The least time of any schedule of `graph` under `budget`; times are whole.
fn least_time(graph: &Graph, budget: u64) -> Option<u64> {
    let mut live = vec![false; graph.storages().len()];
    for node in graph.nodes().iter().filter(|n| n.phase == Phase::Input) {
        node.writes.iter().for_each(|w| live[w.index()] = true);
    }
    if bytes(graph, &live) > budget {
        return None;
    }
    let start: State = (live, vec![false; graph.nodes().len()]);
    let mut least = BTreeMap::from([(start.clone(), 0)]);
    let mut open = BTreeSet::from([(0, start)]);
    while let Some((time, state)) = open.pop_first() {
        if is_end(graph, &state) {
            return Some(time);
        }
        for (next, more) in steps(graph, &state, budget) {
            let time = time + more;
            let known = least.entry(next.clone()).or_insert(u64::MAX);
            if time < *known {
                open.remove(&(*known, next.clone()));
                *known = time;
                open.insert((time, next));
            }
        }
    }
    None
}

fn bytes(graph: &Graph, live: &[bool]) -> u64 {
    let pairs = graph.storages().iter().zip(live);
    pairs.filter(|(_, l)| **l).map(|(s, _)| s.bytes.get()).sum()
}

fn is_end(graph: &Graph, (live, ran): &State) -> bool {
    let updates = |n: &NodeId| !graph.node(*n).updates.is_empty();
    graph.outputs().iter().all(|s| live[s.index()])
        && graph.targets().iter().all(|t| ran[t.index()])
        && graph.node_ids().filter(updates).all(|n| ran[n.index()])
}

fn steps(graph: &Graph, (live, ran): &State, budget: u64) -> Vec<(State, u64)> {
    let mut next = Vec::new();
    for s in graph.storage_ids() {
        if live[s.index()] && !graph.storage(s).role.is_persistent() {
            let mut live = live.clone();
            live[s.index()] = false;
            next.push(((live, ran.clone()), 0));
        }
    }
    for (id, node) in graph.node_ids().zip(graph.nodes()) {
        let again = ran[id.index()] && node.effect == Effect::Once;
        let readable = |s: &StorageId| {
            let over = graph.updater(*s).is_some_and(|u| ran[u.index()]);
            live[s.index()] && !over
        };
        if node.phase == Phase::Input || again || !node.reads.iter().all(readable) {
            continue;
        }
        let (mut live, mut ran) = (live.clone(), ran.clone());
        let mut during = node.workspace.get();
        for w in &node.writes {
            if std::mem::replace(&mut live[w.index()], true) {
                during += graph.storage(*w).bytes.get();
            }
        }
        during += bytes(graph, &live);
        ran[id.index()] = true;
        if during <= budget {
            next.push(((live, ran), node.time.get() as u64));
        }
    }
    next
}

#[track_caller]
fn check(graph: &Graph, budget: u64) {
    let found = plan(graph, Bytes(budget), &Options::default(), &mut NoWatch);
    match (least_time(graph, budget), found) {
        (Some(least), Ok(planned)) => {
            let name = graph.name();
            assert_eq!(planned.plan.time.get(), least as f64, "{name} at {budget}");
            assert!(planned.lower_bound.get() <= least as f64);
            let runs = planned.plan.schedule.steps.iter();
            assert!(runs.filter(|s| matches!(s, Step::Run(_))).count() > 0);
        }
        (None, Err(PlanError::Infeasible(_))) => {}
        (least, found) => panic!("{} at {budget}: {least:?}, {found:?}", graph.name()),
    }
}

#[test]
fn the_search_equals_brute_force_on_tiny_graphs() {
    for seed in 0..60 {
        let graph = tiny(seed);
        let peak = Timeline::natural(&graph).peak.get();
        for cut in [1, 2, 4, 7, 11] {
            check(&graph, peak.saturating_sub(cut).max(1));
        }
    }
}
