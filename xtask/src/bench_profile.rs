//! `cargo xtask bench profile [CASE…]`: what profiling costs, and whether its numbers add up;
//! archived under `bench/runs`.
//!
//! Runs the example `cost` of `crates/profile` for each case: the sum of the nodes' times against
//! the whole step measured without the profiler, and the time of profiling against as many plain
//! steps. Fails if a bound is broken.

use anyhow::{Context as _, Result, bail};

use crate::archive::{Archive, Case, Claim, check_names, list};
use crate::repo::{Repo, output};

/// Model and batch size.
const CASES: [Case; 2] = [("resnet152", "4"), ("bert-base", "8")];

/// How far the sum of the nodes' times may be from the whole step.
const SUM_BOUND: f64 = 0.03;
/// How much profiling may cost, in plain steps for each step that it runs.
const COST_BOUND: f64 = 1.3;

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    check_names(names, &CASES.map(|case| case.0))?;
    let archive = Archive::open(repo, "profile")?;
    let measure = |(model, batch): &Case| {
        let mut example =
            repo.cargo("run --release --locked --package rekindle-profile --example cost --");
        output(example.args([model, batch]))
    };
    let kept = archive.cases(&CASES, names, measure, claims_of)?;
    let claims: Vec<Claim> = kept.into_iter().flat_map(|(_, claims)| claims).collect();
    archive.conclude(&summary(&archive, &claims)?, &claims)
}

/// What the last line of a case, which has the medians, bears out.
fn claims_of((model, batch): &Case, csv: &str) -> Result<[Claim; 2]> {
    let last = csv.lines().last().context("the example printed nothing")?;
    let cells: Vec<f64> = last.split(',').filter_map(|c| c.parse().ok()).collect();
    let [_, plain, sum, _, difference, cost] = cells[..] else {
        bail!("the last line is not of six numbers: {last}");
    };
    let sum = format!(
        "{model}, batch {batch}: the nodes' times add up to {sum:.3} s, the whole step takes \
         {plain:.3} s: {:+.1} %, of at most {:.0} %",
        100.0 * difference,
        100.0 * SUM_BOUND
    );
    let price = format!(
        "{model}, batch {batch}: a step under the profiler costs {cost:.2} plain steps, of at \
         most {COST_BOUND}"
    );
    Ok([(difference.abs() <= SUM_BOUND, sum), (cost <= COST_BOUND, price)])
}

fn summary(archive: &Archive, claims: &[Claim]) -> Result<String> {
    Ok(format!(
        "# What profiling costs, and whether its numbers add up\n\n\
         `cargo xtask bench profile` {}. In each round come a plain step, a profile as `rekindle \
         profile` makes it (one step of warm-up in which every activation is copied out and back, \
         three measured) and another plain step. All numbers are medians over the rounds; the \
         files have every round.\n\n{}",
        archive.cases_made_on(&CASES)?,
        list(claims)
    ))
}
