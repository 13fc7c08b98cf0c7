//! Random damage to the bytes of a valid file never panics, and what still loads can be replayed.

use rekindle_graph::{Graph, Plan, Schedule, Timeline};

/// Enough to meet every branch of the reader many times, within a second.
const ROUNDS: u64 = 20_000;

const GRAPH: &str = r#"{"format":"remat.graph/1","name":"t","storages":[
{"bytes":10,"role":"parameter"},{"bytes":4,"role":"activation"},{"bytes":6,"role":"gradient"}],
"nodes":[
{"name":"w","phase":"input","time_us":0,"reads":[],"writes":[0]},
{"name":"c","phase":"forward","time_us":2.5,"reads":[0],"writes":[1],"workspace_bytes":7},
{"name":"b","phase":"backward","time_us":1,"reads":[1],"writes":[2],"random":true},
{"name":"s","phase":"optimizer","time_us":1,"reads":[0,2],"writes":[],"updates":[0],
"recompute":false}],
"outputs":[2],"targets":[3]}"#;

/// xorshift64: plain, seeded, the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

fn mutate(text: &str, random: &mut Random) -> String {
    const LIKELY: &[u8] = b"0123456789-.eE[]{},:\"nul";
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes[at] = LIKELY[random.below(LIKELY.len())],
            1 => bytes.insert(at, LIKELY[random.below(LIKELY.len())]),
            2 => drop(bytes.drain(at..(at + 1 + random.below(8)).min(bytes.len()))),
            3 => bytes.truncate(at.max(1)),
            _ => {
                let end = (at + 1 + random.below(40)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copy);
            }
        }
        if bytes.is_empty() {
            bytes.push(b' ');
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn mutated_graphs_load_or_give_an_error() {
    let mut loaded = 0;
    for seed in 1..=ROUNDS {
        let text = mutate(GRAPH, &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        match Graph::from_json(&text) {
            Ok(graph) => {
                loaded += 1;
                let steps = Schedule::plain(&graph);
                let replayed = Timeline::new(&graph, &steps);
                assert!(replayed.is_ok(), "seed {seed}: {replayed:?} for {text}");
                let again = Graph::from_json(&graph.to_json());
                assert_eq!(again.as_ref(), Ok(&graph), "seed {seed}");
            }
            Err(error) => assert!(!error.to_string().is_empty(), "seed {seed}"),
        }
    }
    assert!(
        loaded > ROUNDS / 100,
        "only {loaded} still load: too much damage to mean anything"
    );
}

#[test]
fn mutated_plans_load_or_give_an_error() {
    let graph = Graph::from_json(GRAPH).expect("valid");
    let plan = r#"{"format":"remat.plan/1","graph":"t","budget_bytes":31,"peak_bytes":31,
"time_us":4.5,"steps":[{"run":1},{"run":2},{"free":1},{"run":3}]}"#;
    for seed in 1..=ROUNDS {
        let text = mutate(plan, &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        if let Ok(plan) = Plan::from_json(&text) {
            // Either is fine; only a panic is not.
            if let Err(error) = Timeline::new(&graph, &plan.schedule) {
                assert!(!error.to_string().is_empty(), "seed {seed}");
            }
            assert_eq!(Plan::from_json(&plan.to_json()), Ok(plan), "seed {seed}");
        }
    }
}
