//! What every verb does alike: JSON, quiet, colours, pipes, disks, interrupts, mistakes.
#![cfg(unix)]

mod command;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use command::{Folder, Ran, has, json};

/// The smallest step with something to recompute.
const SMALL: &str = "transformer-tiny --batch-size 8 --optimizer sgd --effort 0";

const VERBS: [&str; 13] = [
    "profile",
    "plan",
    "frontier",
    "rewrite",
    "verify",
    "run",
    "train",
    "evaluate",
    "compare",
    "max-batch",
    "report",
    "models",
    "demo",
];

#[test]
fn every_verb_that_gives_a_result_gives_it_as_json_and_nothing_else() {
    let folder = Folder::new("json-everywhere");
    let line = "plan @mlp-b256 --budget 100% --effort 0 --out plan.json";
    folder.works(line);
    folder.write("tokens.bin", [7, 0].repeat(200));
    for line in [
        "profile mlp --batch-size 2 --warmup 0 --measured 1 --no-pictures --out .".into(),
        "plan @mlp-b256 --budget 100% --effort 0".into(),
        "frontier @mlp-b256 --points 3 --effort 0".into(),
        "plan @mlp-b256 --budget 100% --effort 0 --store out=1GB/s,in=1GB/s".into(),
        "frontier @mlp-b256 --points 3 --effort 0 --store out=1GB/s,in=1GB/s".into(),
        "rewrite @mlp-b256 plan.json".into(),
        "verify @mlp-b256 plan.json".into(),
        format!("run {SMALL} --budget 80% --steps 1"),
        "compare transformer-tiny --optimizer sgd --effort 0 --batch-sizes 8 --budget 80% --steps \
         1"
        .into(),
        "train gpt2-tiny --sequence 8 --data tokens.bin --updates 1 --out t.safetensors".into(),
        "evaluate gpt2-tiny --sequence 8 --data tokens.bin --weights t.safetensors".into(),
        "max-batch transformer-tiny --optimizer sgd --effort 0 --budget 24MiB".into(),
        "report .".into(),
        "models".into(),
    ] {
        let ran = folder.rekindle(&format!("{line} --json --quiet"));
        assert_eq!(ran.err, "", "{line}");
        let out = ran.works();
        json(&out);
        assert!(!out.contains('\x1b'), "{line}");
    }
}

#[test]
fn every_verb_helps_with_examples() {
    let folder = Folder::new("examples");
    for verb in VERBS {
        let help = folder.works(&format!("{verb} --help"));
        has(&help, &["Examples:", &format!("  rekindle {verb}")]);
    }
    let help = folder.works("--help");
    has(&help, &["  2  ", "  3  ", "  4  ", "  5  ", "  130  ", "  141  "]);
}

#[test]
fn help_fits_in_a_terminal() {
    let folder = Folder::new("width");
    for verb in VERBS.iter().chain(&[""]) {
        let mut command = folder.command(&format!("{verb} --help"));
        let help = Ran::of(command.env("COLUMNS", "80")).works();
        let long = help.lines().find(|line| line.chars().count() > 100);
        assert_eq!(long, None, "{verb}");
    }
}

#[test]
fn mistyped_words_get_a_suggestion() {
    let folder = Folder::new("mistyped");
    folder.fails("plann", 2, &["plan"]);
    folder.fails("run mlp --bugdet 1GiB", 2, &["--budget"]);
    folder.fails("run resnet5", 2, &["resnet50"]);
    folder.fails("plan resnt50 --budget 50%", 2, &["did you mean `resnet50`"]);
    folder.fails("plan resnet50 --budget 50%", 2, &["--batch-size"]);
    folder.fails("run mlp --optimizer adan", 2, &["'adam'"]);
    folder.fails("completions bahs", 2, &["bash"]);
}

#[test]
fn completions_are_scripts_that_know_the_verbs() {
    let folder = Folder::new("completions");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = folder.works(&format!("completions {shell}"));
        has(&script, &VERBS);
    }
}

#[test]
fn quiet_leaves_results_and_errors() {
    let folder = Folder::new("quiet");
    let line = "plan @mlp-b256 --budget 1GiB --out plan.json";
    let ran = folder.rekindle(line);
    assert!(ran.err.contains("note:") && ran.err.contains("wrote"), "{}", ran.err);
    assert!(!ran.err.contains('\x1b'), "no colours in a file");
    let ran = folder.rekindle(&format!("--quiet {line}"));
    assert_eq!(ran.err, "");
    assert!(ran.works().contains("peak"));
    folder.fails("plan nowhere.json --budget 1GiB --quiet", 5, &["error: ", "nowhere.json"]);
}

#[test]
fn a_closed_pipe_is_silent() {
    let folder = Folder::new("pipe");
    for line in ["models", "plan @mlp-b256 --budget 1GiB --verbose", "completions bash"] {
        // The reader is gone before the first word.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let ran = Ran::of(folder.command(&format!("{line} --quiet")).stdout(writer));
        assert_eq!((ran.code, ran.err.as_str()), (141, ""), "{line}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_and_no_panic() {
    let folder = Folder::new("full");
    let full = || File::create("/dev/full").expect("Linux has one");
    let ran = Ran::of(folder.command("models").stdout(full()));
    ran.fails(5, &["standard output", "space"]);
    let ran = Ran::of(folder.command("plan nowhere.json --budget 1GiB").stderr(full()));
    assert_eq!(ran.code, 5);
    // Nothing takes the device's place, and the error names it.
    let ran = folder.rekindle("plan @mlp-b256 --budget 1GiB --out /dev/full");
    ran.fails(5, &["/dev/full", "space"]);
    let ran = folder.rekindle(&format!("run {SMALL} --steps 1 --checkpoint /dev/full"));
    ran.fails(5, &["/dev/full"]);
    assert!(!std::fs::metadata("/dev/full").expect("still there").is_file());
    folder.works("plan @mlp-b256 --budget 1GiB --out /dev/null");
}

#[test]
fn files_that_cannot_be_are_told_apart() {
    let folder = Folder::new("cannot");
    std::fs::create_dir(folder.0.join("folder")).expect("writable");
    folder.write("text", "no graph");
    for line in [
        "plan @mlp-b256 --budget 90% --out folder",
        "plan @mlp-b256 --budget 90% --decisions folder",
        "frontier @mlp-b256 --out folder",
        "run mlp --save folder",
        "run mlp --checkpoint folder",
        "compare mlp --csv folder",
    ] {
        folder.fails(line, 2, &["folder", "name a file in it"]);
    }
    for line in [
        "plan folder --budget 90%",
        "plan text --budget 90%",
        "verify text text",
        "rewrite text text",
        "run mlp --weights text --steps 1",
        "run mlp --resume text --steps 1",
        "run mlp --resume folder --steps 1",
        "run mlp --budget 99% --profile folder --steps 1",
    ] {
        let ran = folder.rekindle(line);
        assert!(!ran.err.contains("panicked"), "{line}: {}", ran.err);
        ran.fails(5, &["error: "]);
    }
    // Not even root may write there.
    if std::path::Path::new("/proc/self").exists() {
        let line = "plan @mlp-b256 --budget 100% --effort 0 --out /proc/plan.json";
        folder.fails(line, 5, &["/proc/plan.json"]);
        let line = "profile mlp --batch-size 1 --warmup 0 --measured 1 --out /proc/profile";
        folder.fails(line, 5, &["/proc/profile"]);
    }
    folder.fails("profile mlp --out text", 5, &["text"]);
    assert_eq!(folder.read("text"), "no graph", "nothing was overwritten");
    assert_eq!(folder.files(), ["folder", "text"]);
}

#[test]
fn a_file_that_is_named_twice_is_not_written() {
    let folder = Folder::new("twice");
    let line = "plan @mlp-b256 --budget 100% --effort 0 --out plan.json";
    folder.works(line);
    folder.write("g.json", command::corpus("mlp-b256"));
    std::os::unix::fs::symlink("g.json", folder.0.join("link")).expect("links work");
    std::os::unix::fs::symlink("gone", folder.0.join("to-gone")).expect("links work");
    let before = (folder.files(), folder.read("g.json"), folder.read("plan.json"));
    for line in [
        "plan g.json --budget 100% --out g.json",
        "plan link --budget 100% --decisions ./g.json",
        "plan g.json --budget 100% --out new --decisions ./new",
        "plan g.json --budget 100% --out gone --decisions to-gone",
        "frontier g.json --out link",
        "rewrite g.json plan.json --out plan.json",
        "rewrite g.json plan.json --out new --dot new",
        "run mlp --weights g.json --save g.json",
        "run mlp --save new --trace new",
        "run mlp --resume g.json --save g.json",
        "report . --out plan.json",
    ] {
        folder.fails(line, 2, &["named twice"]);
    }
    let after = (folder.files(), folder.read("g.json"), folder.read("plan.json"));
    assert_eq!(before, after);
    // A device takes everything.
    folder.works("plan g.json --budget 100% --effort 0 --out /dev/null --decisions /dev/null");
}

/// Sends SIGINT, as Ctrl-C does, once `is_time` says so of a line. Gives what the tool said of it.
fn interrupted(folder: &Folder, line: &str, mut is_time: impl FnMut(&str) -> bool) -> String {
    let mut command = folder.command(line);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.any(|line| is_time(&line.expect("text"))));
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill is there").success());
    // Read on to the end: a closed pipe would be another reason to stop.
    lines.for_each(drop);
    let said = std::io::read_to_string(child.stderr.take().expect("piped")).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "{said}");
    said
}

#[test]
fn an_interrupted_run_leaves_a_whole_checkpoint() {
    let folder = Folder::new("interrupt-run");
    let line = format!("run {SMALL} --steps 1000000 --checkpoint c.safetensors");
    // A few steps on, a checkpoint is being written most of the time.
    let fifth = |line: &str| line.split_whitespace().next() == Some("5");
    let said = interrupted(&folder, &line, fifth);
    assert!(said.contains("interrupted") && !said.contains("panicked"), "{said}");
    assert_eq!(folder.files(), ["c.safetensors"]);
    folder.works(&format!("run {SMALL} --steps 7 --resume c.safetensors"));
}

#[test]
fn an_interrupted_profile_leaves_only_whole_files() {
    let folder = Folder::new("interrupt-profile");
    let sizes = vec!["1"; 500].join(",");
    let line = format!("profile mlp --batch-sizes {sizes} --warmup 0 --measured 1 --out here");
    // From the second on, files are being replaced most of the time.
    let mut written = 0;
    interrupted(&folder, &line, |line| {
        written += usize::from(line.starts_with("wrote"));
        written == 4
    });
    let names = folder.files_in("here");
    assert!(names.iter().all(|name| !name.contains("partial")), "{names:?}");
    assert!(rekindle_analysis::read_profile(&folder.0.join("here"), "mlp", 1).is_ok());
}
