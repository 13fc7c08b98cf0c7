//! Properties of the readers, the replay and the checker on arbitrary small graphs and schedules.
//! What breaks one is shrunk until nothing can be left out.

mod reference;

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{RngSeed, TestRunner};
use rekindle_graph::{
    Bytes, Graph, Micros, NodeId, Plan, Rate, Schedule, Step, StorageId, Store, Timeline,
};
use rekindle_soak::chosen_graph;
use rekindle_verify::{times_agree, verify};

const GRAPH: &str = r#"{"format":"remat.graph/1","name":"t","storages":[
{"bytes":10,"role":"parameter"},{"bytes":4,"role":"activation"},{"bytes":6,"role":"gradient"}],
"nodes":[{"name":"w","phase":"input","time_us":0,"reads":[],"writes":[0]},
{"name":"c","phase":"forward","time_us":2.5,"reads":[0],"writes":[1],"workspace_bytes":7},
{"name":"b","phase":"backward","time_us":1,"reads":[1],"writes":[2],"random":true},
{"name":"s","phase":"optimizer","time_us":1,"reads":[0,2],"writes":[],"updates":[0],
"recompute":false}],"outputs":[2],"targets":[3]}"#;

const PLANS: [&str; 2] = [
    r#"{"format":"remat.plan/1","graph":"t","budget_bytes":31,"peak_bytes":31,"time_us":4.5,
"steps":[{"run":1},{"run":2},{"free":1},{"run":3}]}"#,
    r#"{"format":"remat.plan/2","graph":"t","budget_bytes":31,"peak_bytes":31,"time_us":9,
"store":{"out_bytes_per_us":4,"in_bytes_per_us":2,"latency_us":1,"duplex":false,
"budget_bytes":10},"stored_at_start":[0],"steps":[{"fetch":0},{"run":1},{"run":2},{"free":1},
{"run":3},{"offload":0},{"free":0}]}"#,
];

/// One damage to a text.
#[derive(Clone, Debug)]
enum Damage {
    Replace(Index, u8),
    Insert(Index, u8),
    Remove(Index, usize),
    Truncate(Index),
    Copy(Index, usize, Index),
}

fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let likely = || proptest::sample::select(b"0123456789-.eE[]{},:\"nul".to_vec());
    let at = any::<Index>;
    let damage = prop_oneof![
        8 => (at(), likely()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
        8 => (at(), likely()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        4 => (at(), 1..9usize).prop_map(|(at, length)| Damage::Remove(at, length)),
        1 => at().prop_map(Damage::Truncate),
        2 => (at(), 1..41usize, at()).prop_map(|(at, length, to)| Damage::Copy(at, length, to)),
    ];
    proptest::collection::vec(damage, 1..4)
}

fn damaged(text: &str, damages: &[Damage]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for damage in damages {
        // So that there is always a place to damage.
        bytes.push(b' ');
        let all = bytes.len();
        let end = |from: usize, length: usize| (from + length).min(all);
        match *damage {
            Damage::Replace(at, byte) => bytes[at.index(all)] = byte,
            Damage::Insert(at, byte) => bytes.insert(at.index(all), byte),
            Damage::Remove(at, length) => {
                let at = at.index(all);
                drop(bytes.drain(at..end(at, length)));
            }
            Damage::Truncate(at) => bytes.truncate(at.index(all)),
            Damage::Copy(at, length, to) => {
                let (at, to) = (at.index(all), to.index(all));
                let copy = bytes[at..end(at, length)].to_vec();
                bytes.splice(to..to, copy);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A graph and a schedule of it: the plain one, or one that recomputes or moves, with damages.
fn schedules() -> impl Strategy<Value = (Graph, Schedule)> {
    let choices = proptest::collection::vec(any::<u16>(), 0..150);
    let graph = choices.prop_map(|choices| chosen_graph(choices, 5));
    let edits = proptest::collection::vec((0..9u8, any::<Index>(), any::<Index>()), 0..5);
    let store = (0..5u8, 0..5u8, 0..3u8, any::<bool>(), 0..800u64, 0..8u8);
    (graph, edits, proptest::option::weighted(0.8, store)).prop_map(|(graph, edits, store)| {
        let mut schedule = Schedule::plain(&graph);
        schedule.store = store.map(|(out, back, latency, duplex, limit, takes)| Store {
            out_rate: Rate(f64::from(out)),
            in_rate: Rate(f64::from(back)),
            latency: Micros(f64::from(latency)),
            duplex,
            limit: limit.checked_sub(500).map(Bytes),
            activations_only: takes == 0,
        });
        for (kind, at, what) in edits {
            edit(&graph, &mut schedule, kind, at, what);
        }
        (graph, schedule)
    })
}

fn edit(graph: &Graph, schedule: &mut Schedule, kind: u8, at: Index, what: Index) {
    let storage = StorageId::new(what.index(graph.storages().len()));
    let steps = &mut schedule.steps;
    let all = steps.len();
    let at = at.index(all + 1);
    match kind {
        0 => steps.insert(at, Step::Run(NodeId::new(what.index(graph.nodes().len())))),
        1 => steps.insert(at, Step::Free(storage)),
        2 => steps.insert(at, Step::Offload(storage)),
        3 => steps.insert(at, Step::Fetch(storage)),
        4 if at < all => drop(steps.remove(at)),
        5 if at < all => steps.swap(at, what.index(all)),
        // Out after a step that makes it, and back before the next that needs it.
        6 => {
            let made = |step: &Step| match *step {
                Step::Run(id) => graph.node(id).writes.contains(&storage),
                _ => false,
            };
            let needs = |step: &Step| match *step {
                Step::Run(id) => graph.node(id).reads.contains(&storage),
                step => step == Step::Free(storage),
            };
            let out = steps.iter().position(made).map_or(0, |made| made + 1);
            let back = steps[out..].iter().position(needs).map_or(all, |n| out + n);
            steps.insert(back, Step::Fetch(storage));
            steps.splice(out..out, [Step::Offload(storage), Step::Free(storage)]);
        }
        7 => {
            schedule.stored_at_start.push(storage);
            steps.insert(0, Step::Fetch(storage));
            steps.extend([Step::Offload(storage), Step::Free(storage)]);
        }
        // The same runs again, with every storage freed after its last use.
        _ => {
            let mut order: Vec<NodeId> = schedule.runs().collect();
            let again = NodeId::new(what.index(graph.nodes().len()));
            order.insert(at.min(order.len()), again);
            let is_input = |n: &NodeId| graph.node(*n).phase == rekindle_graph::Phase::Input;
            order.retain(|n| !is_input(n));
            let again = Schedule::of_order(graph, &order);
            if Timeline::new(graph, &again).is_ok() {
                schedule.steps = again.steps;
            }
        }
    }
}

/// Too much damage would mean nothing: of so many files and schedules, enough are still valid.
#[test]
fn enough_is_valid() {
    let mut runner = TestRunner::deterministic();
    let (mut loaded, mut accepted, mut moved, mut recomputed) = (0, 0, 0, 0);
    for _ in 0..1500 {
        let damages = damages().new_tree(&mut runner).expect("some").current();
        loaded += usize::from(Graph::from_json(&damaged(GRAPH, &damages)).is_ok());
        let (graph, schedule) = schedules().new_tree(&mut runner).expect("one").current();
        if let Ok(replayed) = Timeline::new(&graph, &schedule) {
            accepted += 1;
            moved += usize::from(replayed.moved_in > Bytes::ZERO);
            recomputed += usize::from(replayed.recomputed() > 0);
        }
    }
    let counts = [loaded, accepted, moved, recomputed];
    assert!(counts.iter().all(|&count| count > 20), "{counts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(0),
        ..ProptestConfig::default()
    })]

    #[test]
    fn damaged_graphs_load_or_give_an_error(damages in damages()) {
        match Graph::from_json(&damaged(GRAPH, &damages)) {
            Ok(graph) => {
                let replayed = Timeline::new(&graph, &Schedule::plain(&graph));
                prop_assert!(replayed.is_ok(), "{:?}", replayed);
                prop_assert_eq!(Graph::from_json(&graph.to_json()), Ok(graph));
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn damaged_plans_load_or_give_an_error(which in 0..2usize, damages in damages()) {
        let graph = Graph::from_json(GRAPH).expect("valid");
        match Plan::from_json(&damaged(PLANS[which], &damages)) {
            Ok(plan) => {
                // Either is fine; only a panic is not.
                if let Err(error) = Timeline::new(&graph, &plan.schedule) {
                    prop_assert!(!error.to_string().is_empty());
                }
                prop_assert_eq!(Plan::from_json(&plan.to_json()), Ok(plan));
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn the_replay_is_what_the_rules_say((graph, schedule) in schedules()) {
        let replayed = Timeline::new(&graph, &schedule);
        let expected = reference::judge(&graph, &schedule);
        prop_assert_eq!(replayed.is_ok(), expected.is_ok(), "{:?} {:?}", replayed, expected);
        if let (Ok(replayed), Ok(expected)) = (replayed, expected) {
            prop_assert_eq!(replayed.peak.get(), expected.peak);
            prop_assert_eq!(replayed.store_peak.get(), expected.store_peak);
            prop_assert_eq!(replayed.moved_out.get(), expected.moved[0]);
            prop_assert_eq!(replayed.moved_in.get(), expected.moved[1]);
            prop_assert_eq!(replayed.runs, expected.runs);
            for (found, expected) in [
                (replayed.time, expected.time),
                (replayed.compute, expected.compute),
                (replayed.waited, expected.waited),
            ] {
                prop_assert!((found.get() - expected).abs() <= 1e-9 * expected.max(1.0));
            }
        }
    }

    #[test]
    fn the_checker_accepts_what_the_replay_does_and_the_values_allow(
        (graph, schedule) in schedules(),
        over in 0..3u64,
    ) {
        let replayed = Timeline::new(&graph, &schedule);
        let (peak, time) = match &replayed {
            Ok(replayed) => (replayed.peak, replayed.time),
            Err(_) => (Bytes(1 << 40), Micros::ZERO),
        };
        let plan = Plan {
            graph: graph.name().into(),
            digest: Some(graph.digest()),
            strategy: None,
            budget: Bytes(peak.get() + 1 - over.min(peak.get())),
            peak,
            time,
            schedule,
        };
        let values = reference::judge(&graph, &plan.schedule).is_ok_and(|f| f.values_hold);
        let expected = replayed.is_ok() && values && peak <= plan.budget;
        let found = verify(&graph, &plan);
        prop_assert_eq!(found.is_ok(), expected, "{:?} {:?}", found, replayed);
        if let Ok(audit) = found {
            prop_assert_eq!(audit.peak, peak);
            prop_assert!(times_agree(time, audit.time));
        }
    }
}
