//! `rekindle profile` as a user meets it.

mod command;

use command::Folder;
use rekindle_analysis::read_profile;

/// The smallest profile of a model that there is.
const QUICK: &str = "--warmup 0 --measured 1 --quiet";

#[test]
fn a_profile_leaves_its_files_and_its_pictures() {
    let folder = Folder::new("profile");
    let out = folder.rekindle(&format!("profile mlp --batch-sizes 1,2 --out here {QUICK}")).works();
    for word in ["mlp, batch 1", "mlp, batch 2", "feature maps", "inactive time"] {
        assert!(out.contains(word), "{word}: {out}");
    }
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
    let left = std::fs::read_dir(folder.0.join("here")).expect("it is there");
    let names = left.map(|entry| entry.expect("readable").file_name());
    assert!(!names.into_iter().any(|n| n.to_string_lossy().contains("partial")));
}

#[test]
fn a_summary_is_json_for_programs() {
    let folder = Folder::new("profile-json");
    let out = folder
        .rekindle(&format!("profile mlp --batch-size 2 --out . --json --no-pictures {QUICK}"))
        .works();
    let summary: serde_json::Value = serde_json::from_str(&out).expect("JSON and nothing else");
    let breakdown = summary[0]["peak_breakdown"].as_object().expect("an object");
    let sum: u64 = breakdown.values().filter_map(|bytes| bytes.as_u64()).sum();
    assert_eq!(Some(sum), summary[0]["peak_bytes"].as_u64());
    assert_eq!(folder.files().len(), 3);
}

#[test]
fn a_step_that_does_not_fit_is_profiled_with_swaps() {
    let folder = Folder::new("profile-limit");
    let model = "resnet18 --image-size 32 --batch-size 16 --optimizer sgd";
    let out = folder
        .rekindle(&format!(
            "profile {model} --memory-limit 96% --spill-dir . --out out --json --no-pictures \
             {QUICK}"
        ))
        .works();
    let summary: serde_json::Value = serde_json::from_str(&out).expect("JSON and nothing else");
    let bytes = |key: &str| summary[0]["swapped"][key].as_u64().expect("it swapped");
    assert!(bytes("peak_bytes") <= bytes("limit_bytes"));
    assert!(bytes("offloads") > 0 && bytes("fetches") > 0);
    assert_eq!(folder.files(), ["out"], "the spill file leaves no trace");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let folder = Folder::new("profile-refused");
    folder.rekindle("profile mpl").fails(2, &["mlp"]);
    folder.rekindle("profile mlp --batch-size 0").fails(2, &["batch-size"]);
    folder.rekindle("profile mlp --measured 0").fails(2, &["measured"]);
    folder.rekindle("profile mlp --spill-dir .").fails(2, &["--memory-limit"]);
    let tiny = folder.rekindle("profile mlp --batch-size 2 --memory-limit 1MiB --out .");
    tiny.fails(3, &["alone needs", "limit of 1.00 MiB"]);
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

/// How many slices of a trace are in a category.
fn slices(trace: &str, category: &str) -> usize {
    let trace: serde_json::Value = serde_json::from_str(trace).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("a list").iter();
    events.filter(|event| event["cat"] == category).count()
}

#[test]
fn a_trace_shows_one_more_step() {
    let folder = Folder::new("profile-trace");
    let line = "profile mlp --batch-size 2 --out . --no-pictures --trace t.json --json";
    let summary = folder.rekindle(&format!("{line} {QUICK}")).works();
    let summary: serde_json::Value = serde_json::from_str(&summary).expect("JSON");
    let trace = folder.read("t.json");
    let run = ["forward", "backward", "optimizer"].map(|category| slices(&trace, category));
    assert!(run.iter().all(|count| *count > 0), "{run:?}");
    // Sources are nodes too, and never run.
    assert!(run.iter().sum::<usize>() as u64 <= summary[0]["nodes"].as_u64().expect("a number"));
    let model = "resnet18 --image-size 32 --batch-size 16 --optimizer sgd --memory-limit 96%";
    let line = format!("profile {model} --out . --no-pictures --trace swaps.json {QUICK}");
    folder.rekindle(&line).works();
    assert!(slices(&folder.read("swaps.json"), "swap") > 0);
    folder
        .rekindle("profile mlp --batch-sizes 1,2 --trace t.json")
        .fails(2, &["--trace", "--batch-sizes"]);
    folder.rekindle("profile mlp --trace gone/t.json").fails(2, &["gone"]);
}
