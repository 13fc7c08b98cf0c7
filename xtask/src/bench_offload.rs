//! `cargo xtask bench offload [CASE…]`: a step that moves tensors to this machine's disk against
//! the plain one and against one that only recomputes, archived under `bench/runs`.
//!
//! Runs the example `offload` of `crates/rekindle` for each case, with the store in `target`.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::archive::{Archive, Case, Claim, check_names, lines, list, mebibytes, median, ratio};
use crate::repo::{Repo, output};

/// With the arguments that the example takes: model, batch, optimizer, rounds, budget.
const CASES: [Case; 3] = [
    ("resnet152-b4-50", "resnet152 4 sgd 9 50%"),
    ("resnet152-b4-35", "resnet152 4 sgd 9 35%"),
    ("bert-base-b8-30", "bert-base 8 adam 9 30%"),
];

/// How far the measured overhead may be from the predicted one, in points of percent.
const MOST_POINTS: f64 = 5.0;
/// How much of recomputation's overhead moving may cost, for ResNet-152.
const MOST_OF_RECOMPUTATION: f64 = 0.5;

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    check_names(names, &CASES.map(|case| case.0))?;
    let archive = Archive::open(repo, "offload")?;
    let measure = |case: &Case| {
        let mut example =
            repo.cargo("run --quiet --release --locked --package rekindle --example offload --");
        output(example.args(case.1.split(' ')).arg(repo.target()))
    };
    let kept = archive.cases(&CASES, names, measure, |_, csv| Measured::parse(csv))?;
    let claims = claims(&kept);
    let mut text = format!(
        "# Recompute or move, on a disk\n\n`cargo xtask bench offload`, {}.\n\nThe steps took \
         turns, one step each, after a round that is not counted. Overheads are medians over the \
         rounds, against the plain step of the same round. Waits are what compute stood still, in \
         the median; the plan's own are in brackets. Bytes in MiB. Every number that a step \
         leaves was compared with the plain step's, bit by bit.\n\n\
         | case | step | budget | peak | overhead, % | predicted, % | moved out, in | waited, s |\n\
         |---|---|---|---|---|---|---|---|\n",
        archive.cases_made_on(&CASES)?
    );
    for (case, measured) in &kept {
        for step in &measured.steps {
            text += &measured.line(case.0, step)?;
        }
        writeln!(text, "| {} | disk | | | | | {} | |", case.0, measured.moving()?.store)?;
    }
    archive.conclude(&format!("{text}\n{}", list(&claims)), &claims)
}

/// A case: the plain step first.
struct Measured {
    steps: Vec<Step>,
}

struct Step {
    name: String,
    store: String,
    budget: u64,
    predicted_peak: u64,
    measured_peak: u64,
    predicted: f64,
    moved: [u64; 2],
    waited: f64,
    compared: u64,
    stood_still: Vec<f64>,
    seconds: Vec<f64>,
}

impl Measured {
    fn parse(csv: &str) -> Result<Measured> {
        let step = |line: &crate::archive::Line<'_>| {
            Ok(Step {
                name: line.get("step")?,
                store: line.get("store")?,
                budget: line.get("budget_bytes")?,
                predicted_peak: line.get("predicted_peak_bytes")?,
                measured_peak: line.get("measured_peak_bytes")?,
                predicted: line.get("predicted_percent")?,
                moved: [line.get("moved_out_bytes")?, line.get("moved_in_bytes")?],
                waited: line.get("waited_seconds")?,
                compared: line.get("numbers_compared")?,
                stood_still: line.seconds("stood_still")?,
                seconds: line.seconds("seconds")?,
            })
        };
        Ok(Measured { steps: lines(csv)?.iter().map(step).collect::<Result<_>>()? })
    }

    fn step(&self, name: &str) -> Result<&Step> {
        let step = self.steps.iter().find(|step| step.name == name);
        step.with_context(|| format!("there is no step `{name}`"))
    }

    fn moving(&self) -> Result<&Step> {
        self.step("move")
    }

    /// In percent of the plain step's time.
    fn overhead(&self, step: &Step) -> f64 {
        100.0 * (ratio(&step.seconds, &self.steps[0].seconds) - 1.0)
    }

    fn line(&self, case: &str, step: &Step) -> Result<String> {
        let [out, back] = step.moved.map(mebibytes);
        let mut text = String::new();
        writeln!(
            text,
            "| {case} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {out:.0}, {back:.0} | {:.3} ({:.3}) |",
            step.name,
            mebibytes(step.budget),
            mebibytes(step.measured_peak),
            self.overhead(step),
            step.predicted,
            median(&step.stood_still),
            step.waited
        )?;
        Ok(text)
    }
}

fn claims(kept: &[(Case, Measured)]) -> Vec<Claim> {
    let steps = || kept.iter().flat_map(|(_, measured)| measured.steps.iter());
    let planned = || steps().filter(|step| step.name != "plain");
    let equal = planned().filter(|step| step.measured_peak == step.predicted_peak).count();
    let within = planned().filter(|step| step.measured_peak <= step.budget).count();
    let compared = planned().filter(|step| step.compared > 0).count();
    let count = planned().count();
    let mut claims = vec![
        (equal == count, format!("measured peak = predicted peak in {equal} of {count} steps")),
        (within == count, format!("{within} of {count} peaks are within their budget")),
        (compared == count, format!("every bit of {compared} of {count} is the plain step's")),
    ];
    for ((case, _), measured) in kept {
        let (Ok(moving), Ok(alone)) = (measured.moving(), measured.step("recompute")) else {
            continue;
        };
        let [moves, recomputes] = [moving, alone].map(|step| measured.overhead(step));
        let points = (moves - moving.predicted).abs();
        claims.push((
            points <= MOST_POINTS,
            format!("{case}: {points:.1} points from the prediction, of at most {MOST_POINTS}"),
        ));
        if case.starts_with("resnet152") {
            let share = (moves / recomputes).max(0.0);
            claims.push((
                moves <= MOST_OF_RECOMPUTATION * recomputes,
                format!(
                    "{case}: {share:.2} of recomputation's overhead, of at most \
                     {MOST_OF_RECOMPUTATION}"
                ),
            ));
        }
    }
    claims
}
