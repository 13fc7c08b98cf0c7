//! What the system does not give, what others left behind, and files that are no files: each is an
//! error with its reason and exit code, found before any work is done where that is possible.
#![cfg(unix)]

mod command;

use std::fs::File;
use std::process::Command;

use command::{Folder, Ran, json};

/// A training step that is over at once.
const SMALL: &str = "run transformer-tiny --batch-size 2 --sequence 16 --optimizer sgd --threads 1";

/// Runs `rekindle` under a limit that the shell sets, such as `ulimit -f 8`.
fn limited(folder: &Folder, limit: &str, arguments: &str) -> Ran {
    let tool = folder.command(arguments);
    let mut shell = Command::new("bash");
    shell
        .args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")])
        .arg(tool.get_program())
        .args(tool.get_args())
        .current_dir(&folder.0);
    Ran::of(&mut shell)
}

#[test]
fn sizes_that_no_machine_has_are_an_error() {
    let folder = Folder::new("absurd");
    let most = usize::MAX.to_string();
    // The second is small enough for every tensor before the position ids.
    for sizes in ["--sequence", "--image-size", "--batch-size"] {
        for size in ["100000000000", "30000000000", &most] {
            let model = if sizes == "--image-size" { "resnet18" } else { "transformer-tiny" };
            let line = format!("run {model} {sizes} {size}");
            limited(&folder, "ulimit -v 2000000", &line).fails(3, &["reduce the batch"]);
        }
    }
    let line = "run transformer-tiny --sequence 1000000 --batch-size 1";
    limited(&folder, "ulimit -v 2000000", line).fails(3, &["does not fit in memory"]);
}

#[test]
fn threads_that_cannot_start_are_an_error() {
    let folder = Folder::new("threads");
    let ran = limited(&folder, "ulimit -v 1000000", "run mlp --batch-size 1 --threads 1024");
    ran.fails(1, &["of 1024 threads", "--threads"]);
}

#[test]
fn a_limit_on_files_is_an_error_and_leaves_none() {
    let folder = Folder::new("file-size");
    for flag in ["save", "checkpoint", "trace"] {
        // In blocks of 1024 bytes.
        let line = format!("{SMALL} --steps 1 --{flag} it");
        limited(&folder, "ulimit -f 8", &line).fails(5, &["it", "too large"]);
        assert_eq!(folder.files(), [""; 0], "{flag}");
    }
    let line = "plan @unet-b8 --effort 0 --budget 90% --out it";
    limited(&folder, "ulimit -f 1", line).fails(5, &["cannot write it", "too large"]);
    assert_eq!(folder.files(), [""; 0]);
}

#[test]
fn what_is_no_regular_file_is_not_read() {
    let folder = Folder::new("no-file");
    folder.make_fifo("fifo");
    std::fs::create_dir(folder.0.join("profile")).expect("writable");
    folder.make_fifo("profile/mlp_bs4.graph.json");
    for line in [
        "plan @ --budget 90%",
        "plan --node-stats @ --activation-stats @ --budget 90%",
        "frontier @",
        "rewrite @mlp-b256 @",
        "rewrite @ @",
        "verify @mlp-b256 @",
        "verify @ @",
        "run mlp --weights @",
        "run mlp --resume @",
    ] {
        for file in ["fifo", "/dev/zero"] {
            let words = line.split(' ').map(|word| if word == "@" { file } else { word });
            let line = words.collect::<Vec<_>>().join(" ");
            folder.fails(&line, 5, &[file, "no regular file"]);
        }
    }
    folder.fails("run mlp --budget 90% --profile profile", 5, &["profile"]);
    // A folder may hold anything; what is no file is none of a report's.
    folder.fails("report profile", 2, &["profile"]);
}

/// An output that cannot be written is found before the step is even built: nothing is printed.
#[test]
fn an_output_that_cannot_be_written_costs_no_training() {
    let folder = Folder::new("unwritable");
    folder.write("file", "in the way");
    for flag in ["save", "checkpoint", "trace", "report"] {
        for place in ["file/it", "/proc/it"] {
            let flag =
                if flag == "report" { "--budget 90% --report=" } else { &format!("--{flag} ") };
            let ran = folder.rekindle(&format!("{SMALL} --steps 1 {flag}{place}"));
            assert!(ran.code == 2 || ran.code == 5, "{flag}{place}: {}", ran.err);
            assert!(ran.err.contains(place), "{flag}{place}: {}", ran.err);
            assert_eq!(ran.out, "", "{flag}{place}");
        }
    }
    for line in [
        "profile mlp --out /proc/it",
        "plan @unet-b8 --budget 60% --out /proc/it",
        "plan @unet-b8 --budget 60% --decisions /proc/it",
        "frontier @unet-b8 --out /proc/it",
        "compare mlp --csv /proc/it",
        "compare mlp --charts /proc/it",
        "demo --small --out /proc/it",
    ] {
        let ran = folder.rekindle(line);
        assert_eq!(ran.out, "", "{line}");
        ran.fails(5, &["/proc/it"]);
    }
    assert_eq!(folder.files(), ["file"]);
}

#[test]
fn what_a_killed_run_left_goes_with_the_next_file() {
    let folder = Folder::new("killed");
    folder.write("c.safetensors.123-4.rekindle-partial", "half");
    let held = File::create(folder.0.join("other.7-0.rekindle-partial")).expect("writable");
    held.lock().expect("locks work");
    folder.works("plan @mlp-b256 --budget 100% --effort 0 --out plan.json");
    assert_eq!(folder.files(), ["other.7-0.rekindle-partial", "plan.json"]);
}

#[test]
fn control_characters_in_names_do_not_reach_the_terminal() {
    let folder = Folder::new("escapes");
    let mut graph = json(&command::corpus("mlp-b256"));
    let bad = "\u{1b}[2J\u{9b}8m\u{202e}";
    graph["name"] = bad.into();
    for node in graph["nodes"].as_array_mut().expect("a list") {
        node["name"] = format!("{bad}{}", node["name"].as_str().expect("a name")).into();
    }
    folder.write("g.json", graph.to_string());
    // As on a terminal: nothing is stripped.
    let show = |line: &str| Ran::of(folder.command(line).env("CLICOLOR_FORCE", "1"));
    let plan = show("plan g.json --budget 100% --effort 0 --verbose --out plan.json");
    let smallest = show("plan g.json --budget 1");
    let file = show("plan \u{1b}]0;x.json --budget 1");
    let flag = show("plan --\u{1b}]0;x");
    assert!(plan.out.contains("\\u001b[2J\\u009b8m\\u202e"), "{}", plan.out);
    assert_eq!([plan.code, smallest.code, file.code, flag.code], [0, 3, 5, 2]);
    for text in [plan.out, plan.err, smallest.err, file.err, flag.err] {
        let ours = ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[1;31m", "\u{1b}[1;32m", "\u{1b}[1;33m"];
        let rest = ours.iter().fold(text, |text, colour| text.replace(colour, ""));
        let hidden = rest.chars().find(|c| c.is_control() && *c != '\n' || *c == '\u{202e}');
        assert_eq!(hidden, None, "{rest:?}");
    }
    // A file keeps the names as they are, and so does JSON for whoever reads it.
    let told = folder.works("rewrite g.json plan.json --json --quiet");
    assert!(!told.contains('\u{9b}'), "{told}");
    json(&told);
}

#[test]
fn of_many_violations_the_first_are_printed() {
    let folder = Folder::new("violations");
    let steps = vec![r#"{"free": 0}"#; 100_000].join(",");
    let plan = format!(
        r#"{{"format": "remat.plan/1", "graph": "mlp-b256", "budget_bytes": 1, "peak_bytes": 1,
            "time_us": 1.0, "steps": [{steps}]}}"#
    );
    folder.write("plan.json", plan);
    let ran = folder.rekindle("verify @mlp-b256 plan.json");
    assert!(ran.err.lines().count() < 30, "{} lines", ran.err.lines().count());
    ran.fails(4, &["not valid", "more"]);
    let ran = folder.rekindle("verify @mlp-b256 plan.json --json");
    let found = json(&ran.out);
    let found = found["violations"].as_array().expect("a list").len();
    assert!(found >= 100_000, "JSON has all of them: {found}");
}
