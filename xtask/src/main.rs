//! The project's own tasks, run as `cargo xtask TASK`.
//!
//! Each task is one file. A task gets the words after its name, and either succeeds or says what to
//! do.

mod archive;
mod bench;
mod bench_analysis;
mod bench_compare;
mod bench_devices;
mod bench_exact;
mod bench_inductor;
mod bench_limit;
mod bench_offload;
mod bench_plan;
mod bench_profile;
mod bench_torch;
mod bench_train;
mod bench_transfers;
mod bench_xl;
mod bench_zoo;
mod boundaries;
mod browser;
mod commands;
mod contest;
mod documents;
mod markdown;
mod own_model;
mod package;
mod python;
mod repo;
mod rust_source;
mod test;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::repo::{Repo, show};

/// A task that `cargo xtask` knows: its name, what it does with the words after it, and the task.
struct Task(&'static str, &'static str, fn(&Repo, &[String]) -> Result<()>);

const TASKS: [Task; 3] = [
    Task("test", "everything that must pass: [STAGE…]", test::run),
    Task("bench", "measure and archive: BENCHMARK [CASE…]", bench::run),
    Task(
        "soak",
        "plans of random graphs: [--graphs N] [--seed S] [--size N] [--processes N]; or bits of \
         random programs that move at random: programs [N]",
        soak,
    ),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(words: &[String]) -> Result<()> {
    let Some((name, rest)) = words.split_first() else {
        bail!("which task?\n{}", usage());
    };
    match TASKS.iter().find(|task| task.0 == name) {
        Some(task) => task.2(&Repo::here(), rest),
        None => bail!("there is no task `{name}`\n{}", usage()),
    }
}

/// Checks everything that must hold of ten thousand plans, on every core, with the words for the
/// soak; or the bits of so many programs.
fn soak(repo: &Repo, words: &[String]) -> Result<()> {
    if words.first().is_some_and(|word| word == "programs") {
        let count = words.get(1).map_or("1000", String::as_str);
        let mut test = repo.cargo("test --release -p rekindle --test random_programs at_random");
        return show(test.env("REKINDLE_PROGRAMS", count));
    }
    show(repo.cargo("run --release -p rekindle-soak --").args(words))
}

fn usage() -> String {
    let mut text = String::from("usage: cargo xtask TASK\n");
    for task in &TASKS {
        text += &format!("  {:<8}{}\n", task.0, task.1);
    }
    text
}
