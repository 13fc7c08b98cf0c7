//! The plans of the whole corpus, as digests: a change that means to change no plan shows none.
//!
//! `corpus/digests.csv` has a row for each graph, strategy, effort and budget. Where plans are
//! meant to change, `REKINDLE_BLESS=1 cargo test --package rekindle-plan --test digests` writes it
//! anew, and the difference is part of the commit. Graphs that are not part of this repository (the
//! public MOCCASIN graphs) are looked for in `../shared/graphs`; their digests are here, so that
//! whoever has the graphs can compare.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use rekindle_graph::{Bytes, Graph, Step, Timeline, read_graph};
use rekindle_plan::{Effort, NoWatch, Options, PlanError, Strategy, plan};

/// Of the plain peak, in percent.
const SHARES: [u64; 6] = [80, 60, 50, 40, 30, 20];

/// A second level of effort for the one strategy that knows efforts.
const SEARCHED: (u8, [u64; 3]) = (3, [70, 50, 30]);

const HEADER: &str = "graph,strategy,effort,budget_percent,peak_bytes,time_us,digest";

fn graphs(folder: &Path) -> Vec<Graph> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("readable").path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "json"));
    paths.sort();
    let graph = |p: &PathBuf| read_graph(p).expect("the corpus loads");
    paths.iter().map(graph).collect()
}

/// FNV-1a over the steps, eight bytes each.
fn digest(steps: &[Step]) -> u64 {
    let bytes = steps.iter().flat_map(|step| {
        let (kind, id) = match *step {
            Step::Run(n) => (0u32, n.0),
            Step::Free(s) => (1, s.0),
            Step::Offload(s) => (2, s.0),
            Step::Fetch(s) => (3, s.0),
        };
        [kind.to_le_bytes(), id.to_le_bytes()].concat()
    });
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn row(graph: &Graph, strategy: Strategy, effort: Effort, share: u64) -> String {
    let peak = Timeline::natural(graph).peak;
    let budget = Bytes(peak.get() / 100 * share);
    let options = Options { strategy, effort, store: None };
    let found = match plan(graph, budget, &options, &mut NoWatch) {
        Ok(planned) => {
            let plan = planned.plan;
            let digest = digest(&plan.schedule.steps);
            format!("{},{},{digest:016x}", plan.peak.get(), plan.time.get())
        }
        Err(PlanError::Infeasible(infeasible)) => {
            format!("{},,infeasible", infeasible.smallest_known.get())
        }
        Err(other) => panic!("{}: {other}", graph.name()),
    };
    let (name, effort) = (graph.name(), effort.level());
    format!("{name},{},{effort},{share},{found}", strategy.name)
}

fn rows(graph: &Graph) -> Vec<String> {
    let first = Strategy::without_store()
        .flat_map(|strategy| SHARES.map(|share| row(graph, strategy, Effort::FIRST, share)));
    let (level, shares) = SEARCHED;
    let effort = Effort::new(level).expect("a level");
    let searched = shares.map(|share| row(graph, Strategy::SEARCH, effort, share));
    first.chain(searched).collect()
}

#[test]
fn plans_are_those_of_the_committed_digests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = root.join("corpus/digests.csv");
    let mut all = graphs(&root.join("corpus"));
    let outside = graphs(&root.join("../shared/graphs"));
    let is_ours = |g: &Graph| all.iter().any(|ours| ours.name() == g.name());
    let outside: Vec<Graph> = outside.into_iter().filter(|g| !is_ours(g)).collect();
    if outside.is_empty() {
        // Not by a macro, whose output the test runner keeps to itself.
        let line = b"NOT RUN: the plans of the MOCCASIN graphs, which are not in \
                     ../shared/graphs\n";
        std::io::stderr().write_all(line).expect("written");
    }
    all.extend(outside);
    // The two cores of a small machine.
    let (one, other) = all.split_at(all.len() / 2);
    let of = |graphs: &[Graph]| graphs.iter().flat_map(rows).collect::<Vec<_>>();
    let found = std::thread::scope(|scope| {
        let first = scope.spawn(|| of(one));
        let second = of(other);
        [first.join().expect("no panic"), second].concat()
    });
    if std::env::var_os("REKINDLE_BLESS").is_some() {
        let text = [vec![HEADER.to_owned()], found].concat().join("\n") + "\n";
        std::fs::write(&file, text).expect("written");
        return;
    }
    let committed = std::fs::read_to_string(&file).expect("the digests are there");
    let committed: Vec<&str> = committed.lines().skip(1).collect();
    let changed: Vec<&String> =
        found.iter().filter(|row| !committed.contains(&row.as_str())).collect();
    assert!(changed.is_empty(), "plans have changed:\n{changed:#?}");
}
