//! Plans with a store as a user meets them: made, shown, checked, reported; and names that would
//! break a line.

mod command;

use command::{Folder, has};
use rekindle_graph::{
    Bytes, Graph, NodeId, Plan, Schedule, Step, StorageId, Timeline, parse_store,
};
use serde_json::Value;

const STORE: &str = "out=1MB/s,in=1MB/s,latency=5us";

/// Two layers, their backward pass and an update: `w` (s0) and its state (s1) persist, `x` (s2) is
/// given, `f1` makes s3, `f2` s4, `b` the gradient s5.
const GRAPH: &str = r#"{"format": "remat.graph/1", "name": "little",
    "storages": [{"bytes": 100, "role": "parameter"}, {"bytes": 100, "role": "optimizer_state"},
                 {"bytes": 10, "role": "input"}, {"bytes": 50, "role": "activation"},
                 {"bytes": 50, "role": "activation"}, {"bytes": 100, "role": "gradient"}],
    "nodes": [
    {"name": "w", "phase": "input", "time_us": 0, "reads": [], "writes": [0]},
    {"name": "state", "phase": "input", "time_us": 0, "reads": [], "writes": [1]},
    {"name": "x", "phase": "input", "time_us": 0, "reads": [], "writes": [2]},
    {"name": "f1", "phase": "forward", "time_us": 100, "reads": [0, 2], "writes": [3]},
    {"name": "f2", "phase": "forward", "time_us": 100, "reads": [3], "writes": [4]},
    {"name": "b", "phase": "backward", "time_us": 100, "reads": [3, 4], "writes": [5]},
    {"name": "update", "phase": "optimizer", "time_us": 50, "reads": [0, 1, 5], "writes": [],
     "updates": [0, 1], "recompute": false}],
    "outputs": [], "targets": [6]}"#;

/// The state lives in the store; s3 goes there while `f2` runs.
fn moving() -> Plan {
    let graph = Graph::from_json(GRAPH).expect("a graph");
    let run = |node| Step::Run(NodeId(node));
    let [free, offload, fetch] = [Step::Free, Step::Offload, Step::Fetch];
    let s = StorageId;
    let steps = vec![
        run(3),
        offload(s(3)),
        run(4),
        free(s(3)),
        fetch(s(3)),
        run(5),
        free(s(3)),
        free(s(4)),
        fetch(s(1)),
        run(6),
        offload(s(1)),
        free(s(1)),
        free(s(5)),
    ];
    let store = Some(parse_store(STORE).expect("a store"));
    let schedule = Schedule { steps, store, stored_at_start: vec![s(1)] };
    let timeline = Timeline::new(&graph, &schedule).expect("it can be replayed");
    Plan {
        graph: "little".into(),
        digest: Some(graph.digest()),
        strategy: Some("by hand".into()),
        budget: Bytes(310),
        peak: timeline.peak,
        time: timeline.time,
        schedule,
    }
}

fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.write("g.json", GRAPH);
    folder.write("p.json", moving().to_json());
    folder
}

#[test]
fn a_plan_with_transfers_is_checked_and_told() {
    let folder = folder("store-verify");
    let said = folder.works("verify g.json p.json");
    // f1, f2 and b take 300, the update 50. b waits 55 for s3, the update 105 for the state, whose
    // copy then ends 105 after it. Out of the way while f2 runs: 55.
    has(&said, &["valid: 13 steps", "time 615.0 µs", "moves 150 B out and 150 B in"]);
    has(&said, &["55.0 µs hidden and 265.0 µs waited", STORE, "holds 150 B at most"]);
    let told = folder.json("verify g.json p.json --json");
    assert_eq!(told["store"], STORE);
    assert_eq!((&told["moved_out_bytes"], &told["moved_in_bytes"]), (&150.into(), &150.into()));
    assert_eq!((&told["hidden_us"], &told["waited_us"]), (&55.0.into(), &265.0.into()));
    assert_eq!(told["store_peak_bytes"], 150);
    assert_eq!(told["stored_between_steps_bytes"], 100);
}

#[test]
fn transfers_are_nodes_of_the_rewritten_graph() {
    let folder = folder("store-rewrite");
    let said = folder.works("rewrite g.json p.json --out new.json --dot new.dot --explain");
    has(&said, &["little: ", "0 recompute, 2 offload, 2 fetch and 2 wait", "peak 310 B"]);
    has(&folder.read("new.dot"), &["label=\"offload f1\"", "plum"]);
    let told = folder.json("rewrite g.json p.json --json");
    assert_eq!((&told["offloads"], &told["fetches"]), (&2.into(), &2.into()));
    let graph = Graph::from_json(&folder.read("new.json")).expect("an ordinary graph");
    assert!(graph.nodes().iter().any(|node| node.name == "fetch state"));
}

#[test]
fn what_is_wrong_with_transfers_is_named() {
    let folder = folder("store-wrong");
    let mut plan = moving();
    // The state is fetched, and never written back.
    plan.schedule.steps.retain(|step| *step != Step::Offload(StorageId(1)));
    folder.write("p.json", plan.to_json());
    folder.fails("verify g.json p.json", 4, &["p.json is not valid", "state"]);
    let other = moving().to_json().replace("remat.plan/2", "remat.plan/3");
    folder.write("p.json", other);
    let words = ["\"remat.plan/3\"", "\"remat.plan/1\" or \"remat.plan/2\"", "another version"];
    folder.fails("verify g.json p.json", 5, &words);
}

/// The data inside a page.
fn data(html: &str) -> Value {
    let begin = "<script type=\"application/json\" id=\"data\">";
    let rest = html.split_once(begin).expect("the data are there").1;
    let text = rest.split_once("</script>").expect("they end").0;
    serde_json::from_str(text).expect("they are JSON")
}

#[test]
fn a_report_has_lanes_for_what_is_moved_and_none_where_nothing_is() {
    let folder = folder("store-report");
    folder.works("report .");
    let page = data(&folder.read("index.html"));
    let [plain, moving] = [0, 1].map(|i| &page["steps"][0]["schedules"][i]);
    assert_eq!(plain.get("transfers"), None);
    let moves = &moving["transfers"];
    assert_eq!(moving["name"], "by hand, 310 B, with a store");
    assert_eq!((&moves["moved_out"], &moves["stored_at_start"]), (&150.into(), &100.into()));
    let spans = |list: &Value| {
        let list = list.as_array().expect("a list").iter();
        let micros = |value: &Value| (1e6 * value.as_f64().expect("seconds")).round();
        list.map(|one| (micros(&one["began"]), micros(&one["ended"]))).collect::<Vec<_>>()
    };
    assert_eq!(spans(&moves["out"]), [(100.0, 155.0), (510.0, 615.0)]);
    assert_eq!(spans(&moves["in"]), [(200.0, 255.0), (355.0, 460.0)]);
    assert_eq!(spans(&moves["waits"]), [(200.0, 255.0), (355.0, 460.0), (510.0, 615.0)]);
    let s3 = &moving["decisions"][0];
    assert_eq!((&s3["moved"], &s3["recomputed"]), (&1.into(), &0.into()));
    assert_eq!(moving["decisions"][1].get("moved"), None);
    // The state is in memory from its fetch, before the update, and not at the start.
    let lives = moving["lives"].as_array().expect("a list");
    assert!(lives.contains(&serde_json::json!([1, 3, 3])), "{lives:?}");
}

#[test]
fn nonsense_stores_each_get_a_word() {
    let folder = folder("store-nonsense");
    for (store, word) in [
        ("fast", "unknown part"),
        ("out=1GB/s", "how fast bytes go in"),
        ("out=1GB/s,in=1", "without a unit"),
        ("out=1GB/s,in=1GB/s,limit=50%", "in bytes"),
    ] {
        for verb in ["plan --budget 90%", "frontier"] {
            let line = format!("{verb} g.json --store {store} --out new");
            folder.fails(&line, 2, &["--store", store, word]);
        }
    }
    assert_eq!(folder.files(), ["g.json", "p.json"]);
    folder.write("n.csv", "rank\n");
    let line = "plan --node-stats n.csv --activation-stats n.csv --budget 50% --store";
    folder.fails(&format!("{line} {STORE}"), 2, &["a store needs a graph", "--swap"]);
}

/// A line that begins with what a name smuggled in.
#[track_caller]
fn stays_on_its_line(text: &str) {
    let forged = text.lines().find(|line| line.trim_start().starts_with("FORGED"));
    assert_eq!(forged, None, "{text}");
    assert!(text.contains("\\u000aFORGED"), "{text}");
}

#[test]
fn a_name_never_breaks_a_line() {
    let folder = Folder::new("store-names");
    let named = |text: &str| {
        let text = text.replace("\"f1\"", "\"f1\\nFORGED\"").replace("\"b\"", "\"b\\nFORGED\"");
        text.replace("\"little\"", "\"little\\nFORGED\"")
    };
    folder.write("g.json", named(GRAPH));
    // The name of a graph is no part of its digest, but those of its nodes are.
    let graph = Graph::from_json(&named(GRAPH)).expect("a graph");
    let mut plan = Plan { digest: Some(graph.digest()), ..moving() };
    folder.write("p.json", plan.to_json());
    stays_on_its_line(&folder.works("plan g.json --budget 100% --verbose --out new.json"));
    stays_on_its_line(&folder.works("rewrite g.json p.json"));
    stays_on_its_line(&folder.works("report ."));
    plan.schedule.steps.retain(|step| *step != Step::Run(NodeId(3)));
    folder.write("p.json", plan.to_json());
    for line in ["verify g.json p.json", "plan g.json --budget 1"] {
        let ran = folder.rekindle(line);
        assert_ne!(ran.code, 0, "{line}");
        stays_on_its_line(&ran.err);
    }
    folder.write("bad.json", named(GRAPH).replace("\"reads\": [0, 2]", "\"reads\": [0, 99]"));
    let ran = folder.rekindle("plan bad.json --budget 50%");
    stays_on_its_line(&ran.err);
    ran.fails(5, &["bad.json", "reads storage 99"]);
}

#[test]
fn a_folder_that_cannot_take_tensors_is_refused_before_anything_runs() {
    let folder = folder("offload-refused");
    for verb in ["run mlp --budget 90%", "compare mlp", "max-batch mlp --budget 1GiB", "demo"] {
        folder.fails(&format!("{verb} --offload gone"), 2, &["gone", "no such folder; make it"]);
        folder.fails(&format!("{verb} --offload g.json"), 2, &["g.json", "it is no folder"]);
        let line = format!("{verb} --offload . --offload-limit 900000TiB");
        folder.fails(&line, 2, &["free; make room there, lower --offload-limit, or name"]);
        folder.fails(&format!("{verb} --offload-limit 1GiB"), 2, &["--offload"]);
        let line = format!("{verb} --offload . --offload-limit 50%");
        folder.fails(&line, 2, &["--offload-limit", "in bytes, such as 40GiB"]);
    }
    if std::path::Path::new("/proc/self").exists() {
        folder.fails("run mlp --budget 90% --offload /proc", 5, &["/proc"]);
    }
    folder.fails("run mlp --offload .", 2, &["the plain step moves nothing", "--budget"]);
    assert_eq!(folder.files(), ["g.json", "p.json"]);
}

#[test]
fn a_step_trains_with_a_folder_and_leaves_nothing_in_it() {
    let folder = Folder::new("offload-run");
    std::fs::create_dir(folder.0.join("disk")).expect("writable");
    let step = "transformer-tiny --batch-size 8 --effort 0";
    // Less than recomputation reaches.
    let line = format!("run {step} --budget 36% --steps 2 --check --offload disk");
    let said = folder.works(&line);
    has(&said, &["store", "disk: ", " out, ", "(measured in", "every bit is the plain step's"]);
    has(&said, &[", moves ", "hidden, ", " waited)", "for transfers", ", a file of "]);
    assert_eq!(folder.files_in("disk"), [""; 0]);
    let told = folder.json(&format!("{line} --offload-limit 1GiB --trace t.json --json --quiet"));
    let steps = told["steps"].as_array().expect("a list");
    for step in steps {
        assert_eq!(step["measured_peak_bytes"], step["predicted_peak_bytes"]);
    }
    assert!(told["planned"]["moved_out_bytes"].as_u64() > Some(0), "{told:#}");
    let trace: Value = serde_json::from_str(&folder.read("t.json")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("a list").iter();
    let tracks: Vec<&str> = events
        .filter(|event| event["name"] == "thread_name")
        .filter_map(|event| event["args"]["name"].as_str())
        .collect();
    for track in ["nodes", "out", "in"] {
        assert!(tracks.contains(&track), "{tracks:?}");
    }
}

#[test]
fn a_store_is_planned_with_and_everything_says_so() {
    let folder = Folder::new("store-plan");
    let store = "--store out=25GB/s,in=25GB/s,latency=10us";
    let line = format!("plan @unet-b8 --budget 40% --effort 0 {store}");
    let said = folder.works(&format!("{line} --out p.json --decisions d.csv --report=r"));
    has(&said, &["store        out=25GB/s,in=25GB/s,latency=10us", "moved   ", "transfers"]);
    has(&said, &["of copying hidden behind computation", "waited (", "in the store"]);
    assert!(folder.files_in("r").contains(&"unet_bs8.moving.plan.json".to_owned()));
    let plan = Plan::from_json(&folder.read("p.json")).expect("a plan");
    assert!(plan.schedule.has_transfers() && plan.peak <= plan.budget);
    let csv = folder.read("d.csv");
    let has_word = |word| csv.lines().any(|line| line.split(',').nth(1) == Some(word));
    assert!(csv.lines().next().is_some_and(|header| header.ends_with(",reason")));
    assert!(has_word("MOVE") && has_word("RETAINED"), "{csv}");
    let told = folder.json(&format!("{line} --json"));
    assert!(told["moved"]["activations"].as_u64() > Some(0), "{}", told["moved"]);
    let decisions = told["decisions"].as_array().expect("a list");
    assert!(decisions.iter().any(|d| d["decision"] == "moved"));
    has(&folder.works("verify @unet-b8 p.json"), &["valid: ", "moves ", "hidden and"]);
}

#[test]
fn a_frontier_with_a_store_goes_lower_and_is_never_slower() {
    let folder = Folder::new("store-frontier");
    let line = "frontier @unet-b8 --points 4 --effort 0 --store out=25GB/s,in=25GB/s --report=r";
    let said = folder.works(&format!("{line} --out f.csv"));
    has(&said, &["without a store\n", "\nwith out=25GB/s,in=25GB/s\n", "moved", "waits"]);
    let csv = folder.read("f.csv");
    assert!(csv.lines().next().is_some_and(|h| h.ends_with("moved_in_bytes,waited_us")), "{csv}");
    let told = folder.json(&format!("{line} --json --quiet"));
    let points = told.as_array().expect("a list");
    let lowest = |with: bool| {
        let side = points.iter().filter(|p| p["store"].is_null() != with);
        side.map(|p| p["peak_bytes"].as_u64().expect("bytes")).min().expect("points")
    };
    assert!(lowest(true) < lowest(false), "{told:#}");
    let page = data(&folder.read("r/index.html"));
    let step = &page["steps"][0];
    assert_eq!(step["stored_frontier"]["store"], "out=25GB/s,in=25GB/s");
    assert!(step["stored_frontier"]["points"].as_array().is_some_and(|p| p.len() >= 2));
    assert!(step["frontier"].as_array().is_some_and(|points| points.len() >= 2));
}

#[test]
fn a_budget_that_cannot_be_met_names_the_smallest_with_and_without_a_store() {
    let folder = Folder::new("store-infeasible");
    let words = ["smallest budget with a known plan", "with a store to move storages to"];
    folder.fails("plan @mlp-b256 --budget 1MiB", 3, &words);
    let line = "plan @mlp-b256 --budget 1MiB --store out=1GB/s,in=1GB/s";
    folder.fails(line, 3, &["smallest budget with a known plan", "without the store"]);
    folder.fails("plan @mlp-b256 --budget 90% --strategy move", 2, &["give it a store"]);
}
