//! Bad input gives an error that names the file, the node and what is wrong; it never panics.

use std::path::PathBuf;

use rekindle_graph::{
    FileError, Graph, NodeId, Plan, Step, StorageId, Timeline, read_graph, read_plan,
    write_atomically,
};

/// A small valid graph; each test spoils one thing in its text.
const VALID: &str = r#"{"format": "remat.graph/1", "name": "tiny", "origin": "by hand",
 "storages": [{"bytes": 10, "role": "parameter"}, {"bytes": 4, "role": "activation"},
              {"bytes": 6, "role": "gradient"}],
 "nodes": [
  {"name": "w", "op": "", "phase": "input", "time_us": 0, "reads": [], "writes": [0]},
  {"name": "conv", "op": "", "phase": "forward", "time_us": 2.5, "reads": [0], "writes": [1]},
  {"name": "back", "op": "", "phase": "backward", "time_us": 1, "reads": [1], "writes": [2]},
  {"name": "sgd", "op": "", "phase": "optimizer", "time_us": 1, "reads": [0, 2], "writes": [],
   "updates": [0], "recompute": false}],
 "outputs": [], "targets": [3]}"#;

/// A folder of this test's own that disappears with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("rekindle-graph-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a writable temporary folder");
        Folder(path)
    }

    fn file(&self, contents: &str) -> PathBuf {
        let path = self.0.join("graph.json");
        std::fs::write(&path, contents).expect("writable");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Replaces `old` by `new` in the valid text; the error must hold every word of `expected`.
#[track_caller]
fn check(test: &str, old: &str, new: &str, expected: &[&str]) {
    assert_eq!(VALID.matches(old).count(), 1, "{old} stands once");
    let folder = Folder::new(test);
    let path = folder.file(&VALID.replace(old, new));
    let message = match read_graph(&path) {
        Err(error @ FileError::Graph { .. }) => error.to_string(),
        other => panic!("expected an error about the graph, got {other:?}"),
    };
    assert!(message.contains("graph.json"), "{message}");
    for word in expected {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

#[test]
fn the_text_to_spoil_is_valid() {
    let graph = Graph::from_json(VALID).expect("valid");
    assert_eq!(Timeline::natural(&graph).peak.get(), 20);
}

#[test]
fn truncated_text_names_the_place() {
    for length in 0..VALID.len() {
        let message = Graph::from_json(&VALID[..length]).expect_err("not whole");
        assert!(message.to_string().contains("line"), "{message}");
    }
    let folder = Folder::new("truncated");
    let path = folder.file(&VALID[..VALID.len() / 2]);
    let message = read_graph(&path).expect_err("not whole").to_string();
    assert!(message.contains("graph.json"), "{message}");
}

#[test]
fn a_file_that_is_not_there() {
    let path = PathBuf::from("no/such/graph.json");
    let message = read_graph(&path).expect_err("nothing there").to_string();
    assert!(message.contains("no/such/graph.json"), "{message}");
    assert!(read_plan(&path).is_err());
}

#[test]
fn another_format() {
    check(
        "format",
        "remat.graph/1",
        "remat.graph/9",
        &["remat.graph/9", "expected", "remat.graph/1"],
    );
    // What is not known of a future format does not matter.
    let error = Graph::from_json(r#"{"format": "remat.graph/2", "steps": 7}"#);
    let message = error.expect_err("of the future").to_string();
    assert!(message.contains("another version"), "{message}");
    let plan = Plan::from_json(
        r#"{"format": "x", "budget_bytes": 1, "peak_bytes": 1, "time_us": 1, "steps": []}"#,
    );
    let message = plan.expect_err("wrong format").to_string();
    assert!(message.contains("remat.plan/1"), "{message}");
}

#[test]
fn a_plan_is_no_graph_and_a_graph_is_no_plan() {
    let plan = r#"{"format": "remat.plan/1", "budget_bytes": 1, "peak_bytes": 1,
                   "time_us": 1, "steps": []}"#;
    let message = Graph::from_json(plan).expect_err("a plan").to_string();
    assert!(message.contains("it is a plan and no graph"), "{message}");
    let message = Plan::from_json(VALID).expect_err("a graph").to_string();
    assert!(message.contains("it is a graph and no plan"), "{message}");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let marked = format!("{}{VALID}", '\u{feff}');
    assert_eq!(Graph::from_json(&marked), Graph::from_json(VALID));
}

#[test]
fn a_missing_field_and_an_unknown_phase() {
    check("field", r#""outputs": [], "#, "", &["outputs", "line"]);
    check("phase", "\"backward\"", "\"sideways\"", &["sideways", "backward"]);
    check("role", "\"gradient\"", "\"gradients\"", &["gradients", "gradient"]);
}

#[test]
fn a_cycle() {
    // conv reads what back writes, and back reads what conv writes.
    check(
        "cycle",
        r#""reads": [0], "writes": [1]"#,
        r#""reads": [2], "writes": [1]"#,
        &["cycle", "conv", "back"],
    );
}

#[test]
fn dangling_ids() {
    check("reads", r#""reads": [1]"#, r#""reads": [7]"#, &["n2", "back", "reads", "7", "3"]);
    check("writes", r#""writes": [2]"#, r#""writes": [-1]"#, &["back", "writes", "-1"]);
    check("updates", r#""updates": [0]"#, r#""updates": [9]"#, &["sgd", "updates", "9"]);
    check("outputs", r#""outputs": []"#, r#""outputs": [3]"#, &["outputs", "3"]);
    check("targets", r#""targets": [3]"#, r#""targets": [4]"#, &["targets", "4"]);
}

#[test]
fn sizes_that_are_no_sizes() {
    check("fraction", r#""bytes": 4,"#, r#""bytes": 4.5,"#, &["storage 1", "4.5"]);
    check("negative", r#""bytes": 4,"#, r#""bytes": -4,"#, &["storage 1", "-4"]);
    let huge = "18446744073709551616"; // 2^64
    check("huge", r#""bytes": 4,"#, &format!(r#""bytes": {huge},"#), &["storage 1"]);
    let most = "18446744073709551615"; // a number of bytes, but too many
    check("sum", r#""bytes": 4,"#, &format!(r#""bytes": {most},"#), &["2^61", "storage 1"]);
    check(
        "scratch",
        r#""time_us": 2.5,"#,
        &format!(r#""time_us": 2.5, "workspace_bytes": {most},"#),
        &["2^61", "conv"],
    );
}

#[test]
fn times_that_are_no_times() {
    check("below zero", r#""time_us": 2.5"#, r#""time_us": -2.5"#, &["n1", "conv", "-2.5"]);
    check("null", r#""time_us": 2.5"#, r#""time_us": null"#, &["null"]);
    check("nan", r#""time_us": 2.5"#, r#""time_us": NaN"#, &["line"]);
    check("infinite", r#""time_us": 2.5"#, r#""time_us": 1e999"#, &["number out of range"]);
    // Finite alone, but not with the others, or not when it runs again.
    let long = VALID.replace("2.5", "1e308").replace("\"time_us\": 1,", "\"time_us\": 1e308,");
    let message = Graph::from_json(&long).expect_err("too long").to_string();
    assert!(message.contains("n1 (conv)") && message.contains("1e308"), "{message}");
    assert!(Graph::from_json(&VALID.replace("2.5", "1e299")).is_ok());
}

#[test]
fn a_read_before_its_write() {
    let late = r#"{"name": "late", "phase": "forward", "time_us": 1, "reads": [], "writes": [3]}"#;
    let text = VALID
        .replace(r#""reads": [0], "writes": [1]"#, r#""reads": [0, 3], "writes": [1]"#)
        .replace(r#"{"bytes": 6,"#, r#"{"bytes": 1, "role": "other"}, {"bytes": 6,"#)
        .replace(r#""recompute": false}"#, &format!(r#""recompute": false}}, {late}"#));
    let message = Graph::from_json(&text).expect_err("conv comes too early").to_string();
    for word in ["n1", "conv", "s3", "late", "before"] {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

#[test]
fn two_writers_and_no_writer() {
    check("two", r#""writes": [1]"#, r#""writes": [1, 2]"#, &["s2", "conv", "back"]);
    check("none", r#""writes": [2]"#, r#""writes": []"#, &["s2", "no node"]);
    check("own", r#""reads": [1]"#, r#""reads": [1, 2]"#, &["back", "s2", "updates"]);
}

#[test]
fn inputs_that_run() {
    check(
        "reads",
        r#""reads": [], "writes": [0]"#,
        r#""reads": [1], "writes": [0]"#,
        &["w", "input"],
    );
    check("target", r#""targets": [3]"#, r#""targets": [0]"#, &["w", "target"]);
}

#[test]
fn bad_updates() {
    check(
        "again",
        r#""updates": [0], "recompute": false"#,
        r#""updates": [0]"#,
        &["sgd", "s0", "recompute"],
    );
    check("unread", r#""updates": [0]"#, r#""updates": [1]"#, &["sgd", "s1", "reads"]);
    let earlier = r#""time_us": 2.5, "updates": [0], "recompute": false,"#;
    check("twice", r#""time_us": 2.5,"#, earlier, &["sgd", "s0", "n1"]);
    let text = VALID
        .replace(r#""time_us": 2.5,"#, earlier)
        .replace(r#""updates": [0], "recompute": false}]"#, "\"flops\": 1}]");
    let message = Graph::from_json(&text).expect_err("sgd reads the old weight").to_string();
    assert!(message.contains("conv") && message.contains("n3 (sgd)"), "{message}");
}

#[test]
fn bad_plans() {
    let plan = |steps: &str| {
        let start =
            r#"{"format": "remat.plan/1", "budget_bytes": 1, "peak_bytes": 1, "time_us": 1"#;
        Plan::from_json(&format!(r#"{start}, "steps": [{steps}]}}"#))
    };
    assert!(plan(r#"{"run": 1}, {"free": 0}"#).is_ok());
    for bad in [r#"{"run": 1, "free": 0}"#, "{}", r#"{"run": -1}"#, r#"{"free": 4294967296}"#] {
        let message = plan(bad).expect_err(bad).to_string();
        assert!(message.contains("step 0"), "{message}");
    }
}

#[test]
fn schedules_that_cannot_be_replayed() {
    let graph = Graph::from_json(VALID).expect("valid");
    let check = |steps: &[Step], expected: &str| {
        let message =
            Timeline::new(&graph, &steps.to_vec().into()).expect_err(expected).to_string();
        assert!(message.contains(expected), "{expected:?} is not in: {message}");
    };
    let run = |n| Step::Run(NodeId(n));
    let free = |s| Step::Free(StorageId(s));
    check(&[run(2)], "reads storage s1, which is not live");
    check(&[run(0)], "runs the input w");
    check(&[run(9)], "does not exist");
    check(&[free(9)], "does not exist");
    check(&[free(1)], "not live");
    check(&[free(0)], "persistent");
    check(&[run(1), run(2), run(3), run(3)], "only once");
    check(&[run(1), run(2), run(3), run(1)], "after sgd has overwritten it");
    check(&[run(1)], "sgd must run");
}

#[test]
fn a_failed_write_leaves_what_was_there() {
    let folder = Folder::new("write");
    let path = folder.0.join("taken");
    std::fs::create_dir(&path).expect("writable");
    let message = write_atomically(&path, b"text").expect_err("it is a folder").to_string();
    assert!(message.contains("taken"), "{message}");
    assert!(path.is_dir());
    let left: Vec<_> = std::fs::read_dir(&folder.0).expect("readable").collect();
    assert_eq!(left.len(), 1, "no partial file stays behind");
}
