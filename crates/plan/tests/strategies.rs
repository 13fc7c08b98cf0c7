//! Every strategy on every graph of the corpus: each plan is checked, fits, and is the same again.

use std::path::{Path, PathBuf};

use rekindle_graph::{Bytes, Graph, Timeline, read_graph};
use rekindle_plan::{
    Choice, Effort, NoWatch, Options, PlanError, Planned, Reason, Strategy, floor, frontier, plan,
    smallest,
};
use rekindle_verify::verify;

fn corpus() -> Vec<Graph> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../corpus");
    let entries = std::fs::read_dir(folder).expect("the corpus is there");
    let mut paths: Vec<PathBuf> = entries.map(|e| e.expect("readable").path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "json"));
    paths.sort();
    paths.iter().map(|p| read_graph(p).expect("the corpus loads")).collect()
}

fn options(strategy: Strategy) -> Options {
    Options { strategy, effort: Effort::FIRST, store: None }
}

fn percent(bytes: Bytes, percent: u64) -> Bytes {
    Bytes(bytes.get() / 100 * percent)
}

/// What must hold for any answer.
#[track_caller]
fn check(graph: &Graph, budget: Bytes, answer: &Result<Planned, PlanError>) {
    match answer {
        Ok(planned) => {
            let audit = verify(graph, &planned.plan).expect("every plan passes the checker");
            assert!(audit.peak <= budget);
            assert_eq!(planned.plan.budget, budget);
            assert!(planned.lower_bound.get() <= planned.plan.time.get() * (1.0 + 1e-9));
            assert!(planned.overhead() >= -1e-9);
            assert!(planned.plan.peak >= floor(graph).bytes);
            let dropped = |d: &rekindle_plan::Decision| d.choice != Choice::Keep;
            let any_dropped = planned.decisions.iter().any(dropped);
            assert!(!any_dropped || planned.stats.recomputed > 0);
        }
        Err(PlanError::Infeasible(infeasible)) => {
            assert!(infeasible.smallest_known > budget);
            assert!(infeasible.lower_bound <= infeasible.smallest_known);
            assert!(!infeasible.coexisting.is_empty());
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn every_plan_on_the_corpus_is_checked_fits_and_is_the_same_again() {
    for graph in corpus() {
        let peak = Timeline::natural(&graph).peak;
        for strategy in Strategy::without_store() {
            for share in [80, 60, 40, 20] {
                let budget = percent(peak, share);
                let options = options(strategy);
                let answer = plan(&graph, budget, &options, &mut NoWatch);
                check(&graph, budget, &answer);
                assert_eq!(answer, plan(&graph, budget, &options, &mut NoWatch));
                if let Err(PlanError::Infeasible(infeasible)) = answer {
                    let known = infeasible.smallest_known;
                    check(&graph, known, &plan(&graph, known, &options, &mut NoWatch));
                }
            }
        }
    }
}

#[test]
fn a_budget_at_the_plain_peak_gives_the_plain_schedule() {
    for graph in corpus() {
        let natural = Timeline::natural(&graph);
        for strategy in Strategy::without_store() {
            for budget in [natural.peak, natural.peak + natural.peak] {
                let planned = plan(&graph, budget, &options(strategy), &mut NoWatch);
                let planned = planned.expect("the plain step fits");
                assert_eq!(planned.plan.time, natural.time);
                assert_eq!(planned.stats.recomputed, 0);
                let plain = |d: &rekindle_plan::Decision| d.reason == Reason::PlainStepFits;
                assert!(planned.decisions.iter().all(plain));
            }
        }
    }
}

#[test]
fn a_budget_under_the_floor_is_refused_with_the_node_and_its_storages() {
    for graph in corpus() {
        let floor = floor(&graph);
        let budget = Bytes(floor.bytes.get() - 1);
        let answer = plan(&graph, budget, &options(Strategy::MUTWO), &mut NoWatch);
        let Err(PlanError::Infeasible(infeasible)) = answer else {
            panic!("{} cannot fit", graph.name());
        };
        assert!(infeasible.is_proven());
        let live: Bytes = infeasible.coexisting.iter().map(|&(_, bytes, _)| bytes).sum();
        assert_eq!(live + infeasible.workspace, infeasible.lower_bound);
        let message = infeasible.to_string();
        for word in ["no plan fits", "smallest budget", "lower bound", &infeasible.at_name] {
            assert!(message.contains(word), "{word:?} is not in: {message}");
        }
    }
}

#[test]
fn frontiers_are_monotone_in_both_directions() {
    for graph in corpus().iter().filter(|g| g.nodes().len() < 600) {
        for strategy in Strategy::without_store() {
            let options = options(strategy);
            let frontier = frontier(graph, 6, &options, &mut NoWatch).expect("a frontier");
            let points = &frontier.points;
            let natural = Timeline::natural(graph);
            assert_eq!(points[0].plan.budget, natural.peak);
            let least = smallest(graph, &options, &mut NoWatch).expect("a plan");
            assert!(points[points.len() - 1].plan.peak <= least.plan.peak);
            for pair in points.windows(2) {
                let (larger, smaller) = (&pair[0].plan, &pair[1].plan);
                assert!(smaller.budget < larger.budget);
                assert!(smaller.peak <= larger.peak);
                assert!(smaller.time >= larger.time);
            }
            for point in points {
                check(graph, point.plan.budget, &Ok(point.clone()));
            }
        }
    }
}

/// `n0` makes s1, which stays, and s2. By the rules it may run again for s2, and its second s1 is
/// dropped. Then the 100 µs of `X` are spent once.
fn with_an_output_that_stays(role: &str, update: &str) -> Graph {
    let text = format!(
        r#"{{"format": "remat.graph/1",
        "storages": [{{"bytes": 1, "role": "input"}}, {{"bytes": 7, "role": "{role}"}},
            {{"bytes": 10, "role": "activation"}}, {{"bytes": 1, "role": "activation"}},
            {{"bytes": 10, "role": "activation"}}, {{"bytes": 1, "role": "activation"}},
            {{"bytes": 1, "role": "activation"}}, {{"bytes": 1, "role": "activation"}}],
        "nodes": [
        {{"name": "x", "phase": "input", "time_us": 0, "reads": [], "writes": [0]}},
        {{"name": "n0", "phase": "forward", "time_us": 2, "reads": [0], "writes": [1, 2]}},
        {{"name": "touch", "phase": "forward", "time_us": 1, "reads": [1], "writes": [3]{update}}},
        {{"name": "X", "phase": "forward", "time_us": 100, "reads": [0], "writes": [4, 5]}},
        {{"name": "n2", "phase": "forward", "time_us": 1, "reads": [3, 5], "writes": [6],
          "workspace_bytes": 25}},
        {{"name": "end", "phase": "backward", "time_us": 1, "reads": [2, 4, 6], "writes": [7]}}],
        "outputs": [7], "targets": []}}"#
    );
    Graph::from_json(&text).expect("a graph")
}

#[test]
fn a_bound_holds_for_the_plans_of_every_strategy() {
    let updated = r#", "updates": [1], "recompute": false"#;
    let persistent = with_an_output_that_stays("optimizer_state", "");
    for graph in [persistent, with_an_output_that_stays("activation", updated)] {
        let planned = |strategy, budget| plan(&graph, budget, &options(strategy), &mut NoWatch);
        for budget in (20..60).map(Bytes) {
            let answers = Strategy::without_store().map(|strategy| planned(strategy, budget));
            let answers: Vec<_> = answers.collect();
            let found = answers.iter().flatten();
            for (one, other) in found.clone().flat_map(|a| found.clone().map(move |b| (a, b))) {
                assert!(one.lower_bound <= other.plan.time, "at {budget}");
            }
        }
    }
}
