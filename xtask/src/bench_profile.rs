//! `cargo xtask bench profile [CASE…]`: what profiling costs, and whether its numbers add up; archived under `bench/runs`.
//!
//! Runs the example `cost` of `crates/profile` for each case: the sum of the nodes' times against the whole step measured
//! without the profiler, and the time of profiling against as many plain steps. Fails if a bound is broken.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};

use crate::archive::{Archive, verdict};
use crate::repo::{Repo, output};

/// Model and batch size.
const CASES: [(&str, &str); 2] = [("resnet152", "4"), ("bert-base", "8")];

/// How far the sum of the nodes' times may be from the whole step.
const SUM_BOUND: f64 = 0.03;
/// How much profiling may cost, in plain steps for each step that it runs.
const COST_BOUND: f64 = 1.3;

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    if let Some(unknown) = names
        .iter()
        .find(|name| CASES.iter().all(|(model, _)| model != name))
    {
        let known = CASES.map(|(model, _)| model).join(", ");
        bail!("there is no case `{unknown}`; the cases are {known}");
    }
    let archive = Archive::open(repo, "profile")?;
    for (model, batch) in CASES
        .iter()
        .filter(|(model, _)| names.is_empty() || names.iter().any(|n| n == model))
    {
        let mut example =
            repo.cargo("run --release --locked --package remat-profile --example cost --");
        let csv = output(example.args([model, batch]))?;
        print!("{csv}");
        archive.write(&format!("{model}.csv"), &csv)?;
    }
    let (text, holds) = summary(&archive)?;
    archive.write("README.md", &text)?;
    println!("{}", archive.folder);
    ensure!(
        holds,
        "a bound is broken; {}/README.md says which",
        archive.folder
    );
    Ok(())
}

/// What the archived cases say, and whether all bounds hold.
fn summary(archive: &Archive) -> Result<(String, bool)> {
    let mut text = format!(
        "# What profiling costs, and whether its numbers add up\n\n\
         `cargo xtask bench profile` {}. In each round come a plain step, a profile as `remat profile` makes it (one step of warm-up in \
         which every activation is copied out and back, three measured) and another plain step. All numbers are medians over the rounds; \
         the files have every round.\n\n",
        archive.made_on
    );
    let mut all = true;
    for (model, batch) in CASES {
        let Some(csv) = archive.read(&format!("{model}.csv"))? else {
            continue;
        };
        let last = csv.lines().last().context("the example printed nothing")?;
        let cells: Vec<f64> = last.split(',').filter_map(|c| c.parse().ok()).collect();
        let [_, plain, sum, _, difference, cost] = cells[..] else {
            bail!("the example's last line is not of six numbers: {last}");
        };
        let sum_holds = difference.abs() <= SUM_BOUND;
        let cost_holds = cost <= COST_BOUND;
        all &= sum_holds && cost_holds;
        writeln!(
            text,
            "- {}: {model}, batch {batch}: the nodes' times add up to {sum:.3} s, the whole step takes {plain:.3} s: {:+.1} %, of at most {:.0} %\n\
             - {}: {model}, batch {batch}: a step under the profiler costs {cost:.2} plain steps, of at most {COST_BOUND}",
            verdict(sum_holds),
            100.0 * difference,
            100.0 * SUM_BOUND,
            verdict(cost_holds),
        )?;
    }
    Ok((text, all))
}
