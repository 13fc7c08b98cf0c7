//! `rekindle profile` as a user meets it.

mod command;

use command::{Folder, has, json};
use rekindle_analysis::read_profile;

/// The smallest profile of a model that there is.
const QUICK: &str = "--warmup 0 --measured 1 --quiet";

#[test]
fn a_profile_leaves_its_files_and_its_pictures() {
    let folder = Folder::new("profile");
    let out = folder.works(&format!("profile mlp --batch-sizes 1,2 --out here {QUICK}"));
    has(&out, &["mlp, batch 1", "mlp, batch 2", "feature maps", "inactive time"]);
    for size in [1, 2] {
        let (profile, graph) = read_profile(&folder.0.join("here"), "mlp", size).expect("written");
        assert_eq!(profile.nodes.len(), graph.nodes().len());
        assert!(!profile.activations.is_empty());
    }
    let mut expected = vec!["mlp_breakdown", "mlp_memory", "mlp_peak_memory"];
    expected.extend(["mlp_bs1_node_run_time", "mlp_bs1_node_peak_memory", "mlp_bs1_memory"]);
    expected.extend(["mlp_bs2_activation_size", "mlp_bs2_activation_inactive_time"]);
    for name in expected {
        assert!(folder.read(&format!("here/{name}.svg")).starts_with("<svg"), "{name}");
        assert!(folder.0.join(format!("here/{name}.png")).is_file(), "{name}");
    }
    assert!(!folder.files_in("here").iter().any(|name| name.contains("partial")));
}

#[test]
fn a_summary_is_json_for_programs() {
    let folder = Folder::new("profile-json");
    let summary =
        folder.json(&format!("profile mlp --batch-size 2 --out . --json --no-pictures {QUICK}"));
    let breakdown = summary[0]["peak_breakdown"].as_object().expect("an object");
    let sum: u64 = breakdown.values().filter_map(|bytes| bytes.as_u64()).sum();
    assert_eq!(Some(sum), summary[0]["peak_bytes"].as_u64());
    assert_eq!(folder.files().len(), 3);
}

#[test]
fn a_step_that_does_not_fit_is_profiled_within_the_limit() {
    let folder = Folder::new("profile-limit");
    let model = "resnet18 --image-size 32 --batch-size 16 --optimizer sgd";
    let check = |words: &str, is_moved: bool| {
        let line = format!("profile {model} {words} --out out --json --no-pictures {QUICK}");
        let summary = folder.json(&line);
        let number = |key: &str| summary[0]["limited"][key].as_u64().expect("it did not fit");
        assert!(number("peak_bytes") <= number("limit_bytes"));
        assert_eq!(number("offloads") + number("fetches") > 0, is_moved, "{words}");
        assert!(is_moved || number("recomputed_runs") > 0, "{words}");
    };
    check("--memory-limit 96%", false);
    // Parameters and momentum alone are more.
    check("--memory-limit 60% --offload .", true);
    assert_eq!(folder.files(), ["out"], "the store leaves no trace");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let folder = Folder::new("profile-refused");
    folder.fails("profile mpl", 2, &["mlp"]);
    folder.fails("profile mlp --batch-size 0", 2, &["batch-size"]);
    folder.fails("profile mlp --measured 0", 2, &["measured"]);
    folder.fails("profile mlp --offload gone", 2, &["no such folder"]);
    let tiny = folder.rekindle("profile mlp --batch-size 2 --memory-limit 1MiB --out .");
    tiny.fails(3, &["does not fit in 1.00 MiB", "smallest"]);
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

/// How many slices of a trace are in a category.
fn slices(trace: &str, category: &str) -> usize {
    let trace = json(trace);
    let events = trace["traceEvents"].as_array().expect("a list").iter();
    events.filter(|event| event["cat"] == category).count()
}

#[test]
fn a_trace_shows_one_more_step() {
    let folder = Folder::new("profile-trace");
    let line = "profile mlp --batch-size 2 --out . --no-pictures --trace t.json --json";
    let summary = folder.json(&format!("{line} {QUICK}"));
    let trace = folder.read("t.json");
    let run = ["forward", "backward", "optimizer"].map(|category| slices(&trace, category));
    assert!(run.iter().all(|count| *count > 0), "{run:?}");
    // Sources are nodes too, and never run.
    assert!(run.iter().sum::<usize>() as u64 <= summary[0]["nodes"].as_u64().expect("a number"));
    let model = "resnet18 --image-size 32 --batch-size 16 --optimizer sgd --memory-limit 96%";
    folder.works(&format!("profile {model} --out . --no-pictures --trace again.json {QUICK}"));
    assert!(slices(&folder.read("again.json"), "recompute") > 0);
    folder.fails("profile mlp --batch-sizes 1,2 --trace t.json", 2, &["--trace", "--batch-sizes"]);
    folder.fails("profile mlp --trace gone/t.json", 2, &["gone"]);
}
