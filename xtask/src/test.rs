//! `cargo xtask test`: everything that must pass before a change is taken.
//!
//! The stages run in the order of their speed and stop at the first failure. Named stages
//! (`cargo xtask test fmt clippy`) run alone, in the same order. What a test could not do, because
//! files from outside the checkout are not there, is said again at the end.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::repo::{Repo, show};
use crate::{boundaries, browser, commands, documents, own_model, package, python};

/// One thing that is checked: its name, the check, and what to do when it fails.
struct Stage(&'static str, fn(&Repo) -> Result<()>, &'static str);

const STAGES: [Stage; 12] = [
    Stage("documents", documents::check, "make the document say what is there"),
    Stage("fmt", fmt, "run `cargo fmt --all`"),
    Stage(
        "boundaries",
        boundaries::check,
        "keep the rules of ARCHITECTURE.md, or change them there and in xtask",
    ),
    Stage("clippy", clippy, "follow the lint; allow it only with a reason"),
    Stage("doc", doc, "mend the documentation comment"),
    Stage("package", package::check, "a crate must hold all that it is built from"),
    Stage("unit", unit, "run the failing test alone: `cargo test -p CRATE NAME`"),
    Stage("doctest", doctest, "run `cargo test --doc -p CRATE`"),
    Stage("examples", examples, "run it alone: `cargo run -p rekindle --example NAME`"),
    Stage("commands", commands::check, "make the document name what the tool does"),
    Stage(
        "browser",
        browser::check,
        "open target/browser/report/index.html; see crates/report/browser/report.mjs",
    ),
    Stage(
        "python",
        python::check,
        "run it alone: `cargo xtask test python`; remove `.venv` if the environment is broken",
    ),
];

/// Runs the stages named in `words`, or all.
pub(crate) fn run(repo: &Repo, words: &[String]) -> Result<()> {
    if let Some(unknown) = words.iter().find(|word| STAGES.iter().all(|stage| stage.0 != **word)) {
        let names = STAGES.map(|stage| stage.0).join(", ");
        bail!("there is no stage `{unknown}`; the stages are {names}");
    }
    let begin = Instant::now();
    let mut passed = Vec::new();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    for Stage(name, check, remedy) in STAGES.iter().filter(|stage| wanted(stage.0)) {
        eprintln!("==> {name}");
        let start = Instant::now();
        if let Err(error) = check(repo) {
            bail!("stage `{name}` failed\n{error:#}\nwhat to do: {remedy}");
        }
        eprintln!("==> {name} passed in {}", seconds(start.elapsed()));
        passed.push((*name, start.elapsed()));
    }
    summary(&passed, begin.elapsed(), &repo.not_run.borrow());
    Ok(())
}

fn summary(passed: &[(&str, Duration)], whole: Duration, not_run: &[String]) {
    println!();
    for (name, time) in passed {
        println!("{name:<12}{:>9}  passed", seconds(*time));
    }
    println!("{:<12}{:>9}  {} of {} stages", "all", seconds(whole), passed.len(), STAGES.len());
    for line in not_run {
        println!("{line}");
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn fmt(repo: &Repo) -> Result<()> {
    show(&mut repo.cargo("fmt --all --check"))
}

fn clippy(repo: &Repo) -> Result<()> {
    show(&mut repo.cargo("clippy --quiet --workspace --all-targets --locked -- -D warnings"))
}

fn doc(repo: &Repo) -> Result<()> {
    let mut command = repo.cargo("doc --quiet --workspace --no-deps --locked");
    show(command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn unit(repo: &Repo) -> Result<()> {
    repo.show_tests(&mut repo.cargo("test --quiet --workspace --lib --bins --tests --locked"))
}

fn doctest(repo: &Repo) -> Result<()> {
    show(&mut repo.cargo("test --quiet --workspace --doc --locked"))
}

/// The library's examples, one for each stage; and a crate outside the workspace.
const EXAMPLES: [&str; 4] = ["profile", "plan", "rewrite", "train"];

fn examples(repo: &Repo) -> Result<()> {
    for name in EXAMPLES {
        let mut example = repo.cargo("run --quiet --package rekindle --locked --example");
        show(example.arg(name).stdout(Stdio::null()))?;
    }
    own_model::check(repo)
}
