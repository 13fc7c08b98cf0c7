//! `cargo xtask test`: everything that must pass before a change is taken.
//!
//! The stages run in the order of their speed and stop at the first failure. Named stages
//! (`cargo xtask test fmt clippy`) run alone, in the same order.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::repo::{Repo, show};
use crate::{boundaries, browser, commands, documents, python};

/// One thing that is checked.
struct Stage {
    name: &'static str,
    run: fn(&Repo) -> Result<()>,
    /// What to do when it fails.
    remedy: &'static str,
}

const STAGES: [Stage; 11] = [
    Stage {
        name: "documents",
        run: documents::check,
        remedy: "make the document say what is there",
    },
    Stage {
        name: "fmt",
        run: fmt,
        remedy: "run `cargo fmt --all`",
    },
    Stage {
        name: "boundaries",
        run: boundaries::check,
        remedy: "keep the rules of ARCHITECTURE.md, or change them there and in xtask/src/boundaries.rs",
    },
    Stage {
        name: "clippy",
        run: clippy,
        remedy: "follow the lint; allow it only with a reason",
    },
    Stage {
        name: "doc",
        run: doc,
        remedy: "mend the documentation comment",
    },
    Stage {
        name: "unit",
        run: unit,
        remedy: "run the failing test alone: `cargo test -p CRATE NAME`",
    },
    Stage {
        name: "doctest",
        run: doctest,
        remedy: "run `cargo test --doc -p CRATE`",
    },
    Stage {
        name: "examples",
        run: examples,
        remedy: "run it alone: `cargo run -p rekindle --example NAME`",
    },
    Stage {
        name: "commands",
        run: commands::check,
        remedy: "name only verbs that `rekindle --help` lists",
    },
    Stage {
        name: "browser",
        run: browser::check,
        remedy: "open target/browser/report/index.html; the checks are in crates/report/browser/report.mjs",
    },
    Stage {
        name: "python",
        run: python::check,
        remedy: "run it alone: `cargo xtask test python`; remove `.venv` if the environment is broken",
    },
];

/// Runs the stages named in `words`, or all.
pub(crate) fn run(repo: &Repo, words: &[String]) -> Result<()> {
    if let Some(unknown) = words
        .iter()
        .find(|word| STAGES.iter().all(|stage| stage.name != **word))
    {
        let names = STAGES.map(|stage| stage.name).join(", ");
        bail!("there is no stage `{unknown}`; the stages are {names}");
    }
    let begin = Instant::now();
    let mut passed = Vec::new();
    for stage in STAGES
        .iter()
        .filter(|stage| words.is_empty() || words.iter().any(|w| w == stage.name))
    {
        eprintln!("==> {}", stage.name);
        let start = Instant::now();
        if let Err(error) = (stage.run)(repo) {
            bail!(
                "stage `{}` failed\n{error:#}\nwhat to do: {}",
                stage.name,
                stage.remedy
            );
        }
        eprintln!("==> {} passed in {}", stage.name, seconds(start.elapsed()));
        passed.push((stage.name, start.elapsed()));
    }
    summary(&passed, begin.elapsed());
    Ok(())
}

fn summary(passed: &[(&str, Duration)], whole: Duration) {
    println!();
    for (name, time) in passed {
        println!("{name:<12}{:>9}  passed", seconds(*time));
    }
    println!(
        "{:<12}{:>9}  {} of {} stages",
        "all",
        seconds(whole),
        passed.len(),
        STAGES.len()
    );
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
    show(&mut repo.cargo("test --quiet --workspace --lib --bins --tests --examples --locked"))
}

fn doctest(repo: &Repo) -> Result<()> {
    show(&mut repo.cargo("test --quiet --workspace --doc --locked"))
}

/// The library's examples, one for each stage.
const EXAMPLES: [&str; 4] = ["profile", "plan", "rewrite", "train"];

fn examples(repo: &Repo) -> Result<()> {
    for name in EXAMPLES {
        let mut example = repo.cargo("run --quiet --package rekindle --locked --example");
        show(example.arg(name).stdout(Stdio::null()))?;
    }
    Ok(())
}
