//! `rekindle plan`, `rekindle frontier` and `rekindle verify` as a user meets them.

mod command;

use command::{Folder, has, json};
use rekindle_graph::{Plan, Step};

#[test]
fn a_plan_is_written_and_passes_the_check() {
    let folder = Folder::new("plan");
    let out = folder
        .works("plan @unet-b8 --budget 80% --strategy mutwo --out plan.json --decisions d.csv");
    has(&out, &["unet-b8", "2.93 GiB ->", "budget", "bound", "retained", "recomputed"]);
    has(&out, &["at the peak", "planned in"]);
    assert_eq!(folder.files(), ["d.csv", "plan.json"]);

    let plan = Plan::from_json(&folder.read("plan.json")).expect("a plan");
    assert!(plan.peak <= plan.budget);
    assert_eq!(plan.budget.get(), 3_142_118_200 * 80 / 100);

    let csv = folder.read("d.csv");
    let mut lines = csv.lines();
    let header = "activation_name,decision,median_mem_size_bytes,recomp_time_s,creation_rank,\
                  first_bw_use_rank";
    assert_eq!(lines.next(), Some(header));
    let count = |word: &str| csv.lines().filter(|l| l.split(',').nth(1) == Some(word)).count();
    assert!(count("RECOMPUTE") > 0 && count("RETAINED") > 0);
    assert_eq!(count("RECOMPUTE") + count("RETAINED"), lines.count());

    let audit = folder.works("verify @unet-b8 plan.json");
    assert!(audit.starts_with("valid"), "{audit}");

    // JSON holds the same numbers.
    let said = folder.json("plan @unet-b8 --budget 80% --strategy mutwo --out plan.json --json");
    assert_eq!(said["peak_bytes"], plan.peak.get());
    assert_eq!(said["time_us"], plan.time.get());
    assert_eq!(said["plain_peak_bytes"], 3_142_118_200_u64);
    let audit = folder.json("verify @unet-b8 plan.json --json");
    assert_eq!(audit["peak_bytes"], plan.peak.get());
    assert_eq!(audit["recomputed_runs"], said["recomputed_runs"]);
}

#[test]
fn the_same_command_gives_the_same_bytes() {
    let folder = Folder::new("same");
    for strategy in ["search", "mutwo", "sqrt"] {
        let plan = |out: &str| {
            let line = format!("plan @vgg16-b32 --budget 95% --effort 0 --strategy {strategy}");
            folder.works(&format!("{line} --out {out}"));
            folder.read(out)
        };
        assert_eq!(plan("a.json"), plan("b.json"));
    }
}

#[test]
fn a_budget_that_cannot_be_met_writes_nothing() {
    let folder = Folder::new("infeasible");
    let ran = folder.rekindle("plan @mlp-b256 --budget 1MiB --out plan.json --decisions d.csv");
    ran.fails(
        3,
        &["1.00 MiB", "smallest budget with a known plan", "proven lower bound", "must coexist"],
    );
    assert_eq!(folder.files(), [""; 0]);
}

#[test]
fn the_smallest_budget_named_in_the_refusal_works() {
    let folder = Folder::new("smallest");
    for strategy in ["search", "mutwo", "sqrt"] {
        let ran =
            folder.rekindle(&format!("plan @unet-b8 --budget 1% --effort 0 --strategy {strategy}"));
        assert_eq!(ran.code, 3, "{}", ran.err);
        let line = ran.err.lines().find(|l| l.contains("smallest budget"));
        let bytes = line.and_then(|l| l.split(['(', ' ']).rev().nth(1));
        let bytes = bytes.expect("a number of bytes").to_owned();
        folder.works(&format!("plan @unet-b8 --budget {bytes} --effort 0 --strategy {strategy}"));
    }
}

#[test]
fn nonsense_budgets_each_get_a_word() {
    let folder = Folder::new("nonsense");
    for (budget, word) in [
        ("-3GiB", "negative"),
        ("0", "zero"),
        ("0%", "zero"),
        ("12XB", "XB"),
        ("lots", "lots"),
        ("1.5", "whole"),
    ] {
        folder.fails(&format!("plan @mlp-b256 --budget {budget} --out plan.json"), 2, &[word]);
    }
    assert_eq!(folder.files(), [""; 0]);
}

#[test]
fn a_budget_above_the_peak_gives_the_plain_schedule_and_says_so() {
    let folder = Folder::new("above");
    let ran = folder.rekindle("plan @mlp-b256 --budget 1GiB --out plan.json");
    assert!(ran.err.contains("above the plain step's peak"), "{}", ran.err);
    let out = ran.works();
    assert!(out.contains("no plan under this budget is faster"), "{out}");
    let plan = Plan::from_json(&folder.read("plan.json")).expect("a plan");
    let mut runs: Vec<_> =
        plan.schedule.steps.iter().filter(|s| matches!(s, Step::Run(_))).collect();
    let count = runs.len();
    runs.dedup();
    assert_eq!(runs.len(), count);
}

#[test]
fn bad_files_and_arguments_are_told_apart() {
    let folder = Folder::new("bad");
    folder.fails("plan nowhere.json --budget 1GiB", 5, &["nowhere.json"]);
    folder.write("half.json", "{\"format\": ");
    folder.fails("plan half.json --budget 1GiB", 5, &["half.json", "not a graph"]);
    folder.fails("verify @mlp-b256 half.json", 5, &["half.json", "not a plan"]);
    let line = "plan @mlp-b256 --budget 90% --out no/such/folder/plan.json";
    folder.fails(line, 2, &["no/such/folder"]);
    folder.fails("plan @mlp-b256 --budget 90% --strategy magic", 2, &["magic", "search"]);
    folder.fails("plan @mlp-b256 --budget 90% --effort 99", 2, &["99"]);
    folder.fails("plan @mlp-b256 --budget 90% --time-limit 0", 2, &["time limit"]);
    folder.fails("plan @mlp-b256", 2, &["--budget"]);
    assert_eq!(folder.files(), ["half.json"]);
}

#[test]
fn verify_lists_every_violation() {
    let folder = Folder::new("violations");
    folder.works("plan @mlp-b256 --budget 100% --out plan.json");
    let mut plan = Plan::from_json(&folder.read("plan.json")).expect("a plan");
    plan.peak.0 -= 1;
    plan.time.0 += 100.0;
    plan.schedule.steps.remove(0);
    folder.write("plan.json", plan.to_json());
    let ran = folder.rekindle("verify @mlp-b256 plan.json");
    assert!(ran.err.lines().count() >= 4, "{}", ran.err);
    ran.fails(4, &["plan.json is not valid", "not live", "peak", "takes"]);
    let ran = folder.rekindle("verify @mlp-b256 plan.json --json");
    let told = json(&ran.out);
    ran.fails(4, &["plan.json is not valid"]);
    assert_eq!(told["valid"], false);
    let violations = told["violations"].as_array().expect("a list");
    assert!(violations.len() >= 3, "{told:#}");
    folder.fails("verify @vgg16-b32 plan.json", 4, &["mlp-b256", "vgg16-b32"]);
}

#[test]
fn a_graph_and_its_plan_are_told_apart_and_take_no_flags_of_a_model() {
    let folder = Folder::new("swapped");
    folder.works("plan @mlp-b256 --budget 100% --effort 0 --out plan.json");
    folder.fails("verify plan.json @mlp-b256", 5, &["plan.json", "it is a plan and no graph"]);
    folder.fails("verify @mlp-b256 @mlp-b256", 5, &["mlp-b256.json", "it is a graph and no plan"]);
    for flag in ["--budget 50%", "--steps 1", "--threads 2", "--effort 3"] {
        let name = flag.split(' ').next().expect("a word");
        let line = format!("verify @mlp-b256 plan.json {flag}");
        folder.fails(&line, 2, &["cannot be used with", name]);
    }
    let line = "plan @mlp-b256 --batch-size 4 --budget 100%";
    folder.fails(line, 2, &["names a file", "--batch-size"]);
}

#[test]
fn times_that_are_too_much_for_a_sum_are_the_fault_of_the_graph() {
    let folder = Folder::new("long");
    let graph = r#"{"format": "remat.graph/1", "name": "long",
        "storages": [{"bytes": 1, "role": "activation"}],
        "nodes": [{"name": "a", "phase": "forward", "time_us": 1e308, "reads": [], "writes": [0]},
                  {"name": "b", "phase": "backward", "time_us": 1e308, "reads": [0], "writes": []}],
        "outputs": [], "targets": [1]}"#;
    folder.write("long.json", graph);
    folder.fails("plan long.json --budget 100%", 5, &["long.json", "node n0 (a)", "1e308"]);
}

#[test]
fn the_frontier_is_monotone_in_both_directions() {
    let folder = Folder::new("frontier");
    for strategy in ["search", "mutwo", "sqrt"] {
        let line = format!("frontier @unet-b8 --points 5 --effort 0 --strategy {strategy}");
        folder.works(&format!("{line} --out f.csv"));
        let csv = folder.read("f.csv");
        assert!(csv.starts_with("budget_bytes,peak_bytes,time_us,overhead_percent,"));
        let number = |text: &str| text.parse::<f64>().expect("a number");
        let rows = csv.lines().skip(1);
        let rows: Vec<Vec<f64>> = rows.map(|l| l.split(',').map(number).collect()).collect();
        assert!(rows.len() >= 2, "{csv}");
        for pair in rows.windows(2) {
            assert!(pair[1][0] < pair[0][0], "budgets descend:\n{csv}");
            assert!(pair[1][1] <= pair[0][1], "peaks never rise:\n{csv}");
            assert!(pair[1][2] >= pair[0][2], "times never fall:\n{csv}");
        }
    }
    folder.fails("frontier @unet-b8 --points 1", 2, &["points"]);
}

#[test]
fn a_time_limit_ends_with_the_best_plan_so_far_and_says_so() {
    let folder = Folder::new("limit");
    let ran = folder.rekindle("plan @resnet50-b32 --budget 60% --effort 10 --time-limit 0.3");
    let out = ran.works();
    assert!(out.contains("stopped at the time limit"), "{out}");
}

#[test]
fn a_model_is_measured_and_planned_by_name() {
    let folder = Folder::new("model");
    let said = folder.json("plan mlp --batch-size 64 --budget 99% --json");
    assert!(said["peak_bytes"].as_u64() <= said["budget_bytes"].as_u64());
    assert!(said["plain_time_us"].as_f64() > Some(0.0));
    folder.fails("plan mlp --budget 99%", 2, &["--batch-size"]);
    folder.fails("plan mpl --batch-size 4 --budget 99%", 2, &["mpl", "mlp"]);
}

#[test]
fn help_names_the_exit_codes() {
    let folder = Folder::new("help");
    let out = folder.works("--help");
    assert!(out.contains("Exit codes"), "{out}");
    for verb in ["plan", "frontier", "verify"] {
        assert!(out.contains(verb));
        folder.works(&format!("{verb} --help"));
    }
}

#[test]
fn a_budget_may_bound_what_a_gpus_allocator_reserves() {
    let folder = Folder::new("allocator");
    let line = "plan @vgg16-b32 --effort 0 --json";
    for allocator in ["cuda", "cuda-expandable"] {
        let said = folder.json(&format!("{line} --budget 90% --allocator {allocator}"));
        let bytes = |key: &str| said[key].as_u64().expect("bytes");
        let reserved = bytes("predicted_reserved_bytes");
        assert!(bytes("peak_bytes") <= bytes("predicted_allocated_bytes"));
        assert!(bytes("predicted_allocated_bytes") <= reserved);
        assert!(reserved <= bytes("budget_bytes"));
    }
    // What is reserved is more than what is live, so the smallest budget is larger.
    let words = ["by prediction the allocator reserves", "expandable"];
    folder.fails("plan @vgg16-b32 --effort 0 --budget 1MiB --allocator cuda", 3, &words);
}
