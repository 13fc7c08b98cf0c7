//! `rekindle run`, `rekindle compare` and `rekindle models` as a user meets them.

mod command;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

#[cfg(target_os = "linux")]
use command::limit::{BESIDE_THE_BUDGET, Limit};
use command::{Folder, has, json};
use serde_json::Value;

/// Small steps of a network with dropout, whose activations are most of its memory.
const SMALL: &str = "transformer-tiny --batch-size 8 --optimizer sgd --effort 0";

/// The bits of each loss, by step.
fn losses(report: &Value) -> Vec<(u64, u64)> {
    let steps = report["steps"].as_array().expect("a list");
    let one = |s: &Value| (s["step"].as_u64().unwrap(), s["loss_bits"].as_u64().unwrap());
    steps.iter().map(one).collect()
}

#[test]
fn a_run_shows_every_stage_and_stays_in_its_budget() {
    let folder = Folder::new("run");
    let out =
        folder.works(&format!("run {SMALL} --budget 70% --steps 2 --check --save w.safetensors"));
    has(&out, &["budget", "profile", "plan", "rewrite", "verify", "place", "every bit", "loss"]);
    assert_eq!(folder.files(), ["w.safetensors"]);
}

#[test]
fn planned_and_plain_runs_have_the_same_losses_and_measured_is_predicted() {
    let folder = Folder::new("same");
    let plain = folder.json(&format!("run {SMALL} --steps 2 --json"));
    assert_eq!(plain["planned"], Value::Null);
    for budget in ["80%", "60%"] {
        let arguments = format!("run {SMALL} --steps 2 --json --budget {budget} --strategy mutwo");
        let planned = folder.json(&arguments);
        assert_eq!(losses(&plain), losses(&planned));
        let budget = planned["planned"]["budget_bytes"].as_u64().expect("bytes");
        for step in planned["steps"].as_array().expect("a list") {
            assert_eq!(step["measured_peak_bytes"], step["predicted_peak_bytes"]);
            assert!(step["measured_peak_bytes"].as_u64() <= Some(budget));
        }
        assert!(plain["plain_peak_bytes"].as_u64() > Some(budget));
    }
}

#[test]
fn a_run_that_is_killed_goes_on_from_its_checkpoint_with_the_same_losses() {
    let folder = Folder::new("kill");
    let steps = 12;
    let run = format!("run {SMALL} --budget 80% --steps {steps}");
    let mut command = folder.command(&format!("{run} --checkpoint c.safetensors"));
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    // The line of a step is printed after its checkpoint is in place.
    let second = |line: &String| line.trim_start().starts_with("2 ");
    let lines = out.lines().map(|line| line.expect("text"));
    assert!(lines.into_iter().any(|line| second(&line)), "no second step");
    child.kill().expect("it still runs");
    child.wait().expect("it is gone");

    let resumed = folder.works(&format!("{run} --resume c.safetensors --json"));
    let resumed = losses(&json(&resumed));
    let whole = losses(&folder.json(&format!("{run} --json")));
    assert!(resumed.first().is_some_and(|&(step, _)| step > 2), "{resumed:?}");
    assert_eq!(resumed, whole[whole.len() - resumed.len()..]);
}

#[test]
fn a_plain_step_over_the_budget_is_refused_before_it_starts() {
    let folder = Folder::new("refused");
    let run = format!("run {SMALL} --steps 1 --checkpoint c.safetensors");
    let words = ["the plain step needs", "smallest arena known"];
    folder.fails(&format!("{run} --plain --budget 60%"), 3, &words);
    let words = ["does not fit in 1.00 MiB", "smallest arena known", "must coexist"];
    folder.fails(&format!("{run} --budget 1MiB"), 3, &words);
    assert_eq!(folder.files(), [""; 0]);
}

/// The system enforces the limit, whatever the engine says of its peaks.
#[cfg(target_os = "linux")]
#[test]
fn under_a_hard_limit_the_plain_step_is_refused_and_the_planned_one_trains() {
    let folder = Folder::new("limit");
    let step = "transformer-tiny --batch-size 128 --optimizer sgd --effort 0 --threads 2";
    let planned = format!("run {step} --budget 40% --steps 1 --json");
    let free = folder.json(&planned);
    let budget = free["planned"]["budget_bytes"].as_u64().expect("bytes");
    let bytes = budget + BESIDE_THE_BUDGET;
    assert!(free["plain_peak_bytes"].as_u64() > Some(bytes), "the plain step must not fit: {free}");
    let limit = Limit::new(bytes);
    let limited = |arguments: &str| {
        let mut command = limit.command(env!("CARGO_BIN_EXE_rekindle"));
        command::Ran::of(command.args(arguments.split_whitespace()))
    };
    let refused = limited(&format!("run {step} --steps 1"));
    refused.fails(3, &["the plain step does not fit in memory"]);
    let trained = json(&limited(&planned).works());
    assert_eq!(losses(&trained), losses(&free), "the limit changes no number");
    let resident = trained["highest_resident_bytes"].as_u64();
    let arena = trained["planned"]["arena_bytes"].as_u64();
    assert!(arena <= resident && resident <= Some(bytes), "{trained}");
}

#[test]
fn every_number_is_verified() {
    let folder = Folder::new("numeric");
    let step = "--sequence 32 --batch-size 8 --optimizer sgd --effort 0";
    let verify = format!("verify --numeric gpt2-tiny {step} --budget 60% --json");
    let found = folder.json(&verify);
    assert_eq!(found["equal"], true);
    assert!(found["numbers"].as_u64() > Some(2 * 100_000), "parameters and gradients");
    assert!(found["recomputed_runs"].as_u64() > Some(0));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let folder = Folder::new("nonsense");
    folder.fails("run resnet19", 2, &["resnet19", "resnet18"]);
    folder.fails("run resnet18 --batch-size 0", 2, &["above zero"]);
    folder.fails("run mlp --budget much", 2, &["unknown unit"]);
    for (flags, word) in [
        ("--threads 1025", "more than 1024"),
        ("--steps 0", "--steps"),
        ("--check", "--budget"),
        ("--check --budget 90% --plain", "--plain"),
        ("--profile .", "--budget"),
        ("--profile . --budget 90% --plain", "--plain"),
        ("--report", "give a --budget"),
        ("--report --budget 90% --plain", "the plain step has none"),
    ] {
        folder.fails(&format!("run mlp --batch-size 2 {flags}"), 2, &[word]);
    }
    for flag in ["--resume", "--weights"] {
        let ran = folder.rekindle(&format!("run mlp --budget 90% {flag} nothing.safetensors"));
        assert_eq!(ran.out, "", "refused before anything is done");
        ran.fails(5, &["cannot read nothing.safetensors"]);
    }
    assert_eq!(folder.files(), [""; 0]);
}

#[test]
fn a_run_goes_on_from_its_own_checkpoint_until_nothing_is_left() {
    let folder = Folder::new("goes-on");
    let run = |flags: &str| folder.rekindle(&format!("run {SMALL} --json {flags}"));
    run("--steps 1 --checkpoint c").works();
    let second = json(&run("--steps 2 --resume c --checkpoint c").works());
    assert_eq!(losses(&second).len(), 1);
    let third = run("--steps 2 --resume c --checkpoint c");
    assert!(third.err.contains("give more --steps"), "{}", third.err);
    assert_eq!(losses(&json(&third.works())), []);
    folder.write("empty", "");
    for (flags, words) in [
        ("--resume empty", ["empty", "it is no checkpoint"]),
        ("--resume c --seed 7", ["seed 0", "seed 7"]),
    ] {
        // Refused before anything is planned: this budget would be, too.
        run(&format!("{flags} --budget 1KiB")).fails(5, &words);
    }
}

#[test]
fn a_comparison_has_a_row_for_each_batch_size_and_two_charts() {
    let folder = Folder::new("compare");
    let step = "transformer-tiny --optimizer sgd --effort 0";
    let out = folder.works(&format!(
        "compare {step} --batch-sizes 4,8 --budget 70% --steps 1 --check --csv t.csv --charts c"
    ));
    assert!(out.contains("every bit the same"), "{out}");
    let csv = folder.read("t.csv");
    assert_eq!(csv.lines().count(), 3, "{csv}");
    let (header, row) = (csv.lines().next().unwrap(), csv.lines().nth(1).unwrap());
    let cell = |name: &str| {
        let at = header.split(',').position(|column| column == name);
        row.split(',').nth(at.expect(name)).expect("a cell")
    };
    assert_eq!(cell("predicted_peak_bytes"), cell("measured_peak_bytes"));
    assert_eq!(cell("bit_equal"), "yes");
    for picture in ["transformer-tiny_peak_memory", "transformer-tiny_latency"] {
        assert!(folder.read(&format!("c/{picture}.svg")).contains("planned"));
    }
}

#[test]
fn a_comparison_without_any_plan_is_written_and_fails() {
    let folder = Folder::new("compare-nothing");
    let line = "compare transformer-tiny --optimizer sgd --effort 0 --batch-sizes 4 --budget 1MiB \
                --steps 1 --json";
    let ran = folder.rekindle(&format!("{line} --csv t.csv"));
    let rows = json(&ran.out);
    ran.fails(3, &["no batch size has a plan that fits"]);
    let remark = rows[0]["remark"].as_str().expect("a remark");
    assert!(remark.contains("no plan fits in 1.00 MiB; the"), "{remark}");
    assert!(folder.read("t.csv").contains(remark));

    let rows = folder.json(&format!("{line} --or-smallest"));
    let bytes = |column: &str| rows[0][column].as_u64().expect(column);
    assert!(bytes("budget_bytes") > 1 << 20);
    assert!(bytes("measured_peak_bytes") <= bytes("budget_bytes"));
    assert!(rows[0]["remark"].is_null());
}

#[test]
fn models_are_listed_with_their_parameters() {
    let folder = Folder::new("models");
    let out = folder.works("models");
    assert!(out.contains("resnet152") && out.contains("60.2 M"), "{out}");
    let listed = folder.json("models --json");
    assert!(listed.as_array().is_some_and(|rows| rows.len() >= 11));
}

#[test]
fn a_trace_nests_in_order_and_shows_the_peak() {
    let folder = Folder::new("trace");
    let ran = folder.json(&format!("run {SMALL} --budget 70% --steps 2 --trace t.json --json"));
    let trace = json(&folder.read("t.json"));
    let events = trace["traceEvents"].as_array().expect("a list");
    let of = |kind: &str| events.iter().filter(move |e| e["ph"] == kind).collect::<Vec<_>>();
    let number = |event: &Value, key: &str| event[key].as_f64().expect("a number");
    let slices = of("X");
    let (step, nodes) = slices.split_first().expect("a step");
    assert_eq!(step["name"], "step 2");
    let mut end = number(step, "ts");
    for node in nodes {
        assert!(number(node, "ts") >= end, "slices do not overlap");
        end = number(node, "ts") + number(node, "dur");
    }
    assert!(end <= number(step, "ts") + number(step, "dur"), "the step holds them all");
    let recomputed = nodes.iter().filter(|n| n["cat"] == "recompute").count();
    assert_eq!(Some(recomputed as u64), ran["planned"]["recomputed_runs"].as_u64());
    for category in ["forward", "backward", "optimizer"] {
        assert!(nodes.iter().any(|n| n["cat"] == category), "{category}");
    }
    let counters = of("C");
    assert_eq!(counters.len(), nodes.len());
    let peak = counters.iter().filter_map(|c| c["args"]["bytes"].as_u64()).max();
    assert_eq!(peak, ran["planned"]["live_peak_bytes"].as_u64());
}

#[test]
fn a_check_begins_with_the_weights_of_the_run() {
    let folder = Folder::new("check-weights");
    let run = |more: &str| folder.rekindle(&format!("run {SMALL} --budget 80% --steps 1 {more}"));
    run("--save w.safetensors").works();
    let checked = json(&run("--weights w.safetensors --check --json").works());
    assert!(checked["numbers_compared"].as_u64() > Some(0));
    // What the run refuses, the check refuses before it.
    let line = "run mlp --budget 99.9% --steps 1 --check --weights w.safetensors";
    folder.fails(line, 5, &["w.safetensors"]);
}

#[test]
fn a_batch_that_this_machine_cannot_hold_is_told_in_its_row() {
    let folder = Folder::new("too-large");
    // A terabyte of activations; the first batch size is compared all the same.
    let line = "compare transformer-tiny --optimizer sgd --batch-sizes 8,400000 --budget 90% \
                --effort 0 --steps 1";
    let rows = folder.json(&format!("{line} --json"));
    assert!(rows[0]["measured_peak_bytes"].as_u64() > Some(0));
    assert!(rows[1]["measured_peak_bytes"].is_null());
    let remark = rows[1]["remark"].as_str().expect("a remark");
    assert!(remark.contains("this machine has"), "{remark}");
    let line = "run transformer-tiny --optimizer sgd --batch-size 400000 --steps 1";
    folder.fails(line, 3, &["does not fit in memory", "not fit either"]);
    // Not even the position ids of this one would fit.
    let line = "plan transformer-tiny --batch-size 100000000 --budget 50%";
    folder.fails(line, 3, &["this machine has"]);
}
