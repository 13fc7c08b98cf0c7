//! `cargo xtask bench inductor [CASE…]`: Rekindle against `torch.compile`'s own memory budget where
//! Inductor compiles the step, archived under `bench/runs`.
//!
//! Runs `python/bench/inductor_contest.py` for each case, keeps its lines in a file per case, and
//! writes from all files of the day a table with the claims that it bears out. Fails if a claim
//! does not hold.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use crate::archive::{self, Archive, Case, Claim, check_names, is_wanted, lines, list, mebibytes};
use crate::python;
use crate::repo::{Repo, output};

/// The cases of `python/bench/inductor_contenders.py`, the quickest first.
const CASES: [Case; 12] = [
    ("one-pass", "Six blocks, passed through once"),
    ("two-passes", "Six blocks, passed through twice (pytorch#193193, pytorch#161889)"),
    ("unet", "U-Net, 32 wide, 2 × 128²"),
    ("llama", "Llama, 6 layers, 384 wide, 8 × 128"),
    ("bert", "BERT, 6 layers, 384 wide, 8 × 128"),
    ("gpt2", "GPT-2, 6 layers, 384 wide, 8 × 128"),
    ("vit", "ViT, 6 layers, 384 wide, 16 × 128²"),
    ("resnet50", "ResNet-50, 8 × 160²"),
    ("convnext", "ConvNeXt-T, 8 × 128²"),
    ("bert-bf16", "BERT in bfloat16 by autocast"),
    ("llama-bf16", "Llama in bfloat16 by autocast"),
    ("resnet50-bf16", "ResNet-50 in bfloat16 by autocast"),
];
/// A case that only shows that the benchmark runs; its numbers are printed and not kept.
const TRIALS: [&str; 1] = ["bert-tiny"];
/// Steps of each contender that are timed, and as many of plain Inductor's beside them.
const ROUNDS: u32 = 9;
const TRIAL_ROUNDS: u32 = 2;

/// Our step may take so much more than theirs at their peak, in percent.
const NOISE: f64 = 2.0;

/// By how much a predicted peak may be above the measured one, in percent.
const ABOVE: f64 = 1.0;

/// How much further from double precision gradients may be than plain Inductor's: both round, and
/// not in the same places.
const ERRORS: f64 = 2.0;

/// The contender that the others are timed beside.
const PLAIN: &str = "torch budget 1.0";

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    check_names(names, &[&CASES.map(|case| case.0)[..], &TRIALS].concat())?;
    let interpreter = python::interpreter(repo)?;
    let package = python::package(repo, &interpreter)?;
    let contest = |case: &str, rounds: u32| {
        let mut command = repo.command(&interpreter);
        command.args(["python/bench/inductor_contest.py", case, &rounds.to_string()]);
        output(command.env("PYTHONPATH", &package))
    };
    for trial in TRIALS.iter().filter(|trial| !names.is_empty() && is_wanted(names, trial)) {
        print!("{}", contest(trial, TRIAL_ROUNDS)?);
    }
    if CASES.iter().all(|case| !is_wanted(names, case.0)) {
        return Ok(());
    }
    let archive = Archive::open(repo, "inductor")?;
    let measure = |case: &Case| contest(case.0, ROUNDS);
    let results = archive.cases(&CASES, names, measure, |_, csv| parse(csv))?;
    let claims: Vec<Claim> = results.iter().flat_map(|(case, rows)| claims(case.0, rows)).collect();
    archive.conclude(&summary(&archive, &results, &claims)?, &claims)
}

/// A line of the contest.
struct Row {
    contender: String,
    /// Rekindle's alone.
    budget: Option<u64>,
    peak: u64,
    predicted_peak: Option<u64>,
    gradient_error: f64,
    first_call: f64,
    planning: f64,
    /// Of every round, in which plain Inductor and the contender ran in turns.
    plain_seconds: Vec<f64>,
    seconds: Vec<f64>,
}

impl Row {
    fn is_ours(&self) -> bool {
        self.contender.starts_with("rekindle")
    }

    /// The median over the rounds of this contender's time as a multiple of plain Inductor's.
    fn ratio(&self) -> f64 {
        archive::ratio(&self.seconds, &self.plain_seconds)
    }

    /// Whether the prediction is that of the run: never below it, and hardly above.
    fn is_foreseen(&self) -> bool {
        let most = self.peak as f64 * (1.0 + ABOVE / 100.0);
        self.predicted_peak.is_some_and(|p| p >= self.peak && p as f64 <= most)
    }
}

/// The rows of one file.
fn parse(csv: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for line in lines(csv)? {
        rows.push(Row {
            contender: line.get("contender")?,
            budget: line.optional("budget")?,
            peak: line.get("peak")?,
            predicted_peak: line.optional("predicted_peak")?,
            gradient_error: line.get("gradient_error")?,
            first_call: line.get("first_call_s")?,
            planning: line.get("planning_s")?,
            plain_seconds: line.seconds("plain_seconds")?,
            seconds: line.seconds("seconds")?,
        });
    }
    ensure!(rows.iter().any(|row| row.contender == PLAIN), "there is no row of {PLAIN}");
    Ok(rows)
}

/// What is claimed of one case, and whether it holds.
fn claims(case: &str, rows: &[Row]) -> Vec<Claim> {
    let (ours, others): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.is_ours());
    let held = ours.iter().filter(|row| row.budget >= Some(row.peak)).count();
    let foreseen = ours.iter().filter(|row| row.is_foreseen()).count();
    let plain_error = rows.iter().find(|row| row.contender == PLAIN).map(|row| row.gradient_error);
    let most = ERRORS * plain_error.unwrap_or(0.0);
    let close = ours.iter().filter(|row| row.gradient_error <= most).count();
    let all = ours.len();
    let mut claims = vec![
        (held == all, format!("{case}: the budget is held in {held} of {all} rows")),
        (
            foreseen == all,
            format!(
                "{case}: the predicted peak is not below the measured one, and at most {ABOVE} % \
                 above, in {foreseen} of {all} rows"
            ),
        ),
        (
            close == all,
            format!(
                "{case}: gradients are within {ERRORS} × plain Inductor's distance from double \
                 precision in {close} of {all} rows"
            ),
        ),
        (is_monotone(&ours), format!("{case}: a lower budget has no higher peak, in {all} rows")),
    ];
    for other in &others {
        let best = within(&ours, other.peak).map_or(f64::INFINITY, Row::ratio);
        let theirs = match other.contender == PLAIN {
            true => 1.0,
            false => other.ratio(),
        };
        claims.push((
            best <= theirs * (1.0 + NOISE / 100.0),
            format!(
                "{case}: at the peak of {}, {best:.2} × plain Inductor's time against its \
                 {theirs:.2}",
                other.contender
            ),
        ));
    }
    let lowest = |rows: &[&Row]| rows.iter().map(|row| row.peak).min().unwrap_or(u64::MAX);
    claims.push((
        lowest(&ours) < lowest(&others),
        format!(
            "{case}: {:.0} MiB where the lowest of the others is {:.0}",
            mebibytes(lowest(&ours)),
            mebibytes(lowest(&others))
        ),
    ));
    claims
}

/// Whether of two rows the one with the lower budget has no higher peak.
fn is_monotone(ours: &[&Row]) -> bool {
    ours.iter().all(|a| ours.iter().all(|b| a.budget >= b.budget || a.peak <= b.peak))
}

/// The row that was planned for `peak`: the highest that is not above it. The fastest of all below
/// would be chosen among noisy times, which the other side is not.
fn within<'r>(rows: &[&'r Row], peak: u64) -> Option<&'r Row> {
    let below = rows.iter().copied().filter(|row| row.peak <= peak);
    below.max_by_key(|row| row.peak)
}

const HEADER: &str = "\
| contender | budget, MiB | peak, MiB | predicted | time × plain | gradient error \
| first call, s | planning, s |
|---|---|---|---|---|---|---|---|
";

fn summary(archive: &Archive, results: &[(Case, Vec<Row>)], claims: &[Claim]) -> Result<String> {
    let mut text = format!(
        "# Rekindle against `torch.compile`'s memory budget, both compiled by Inductor\n\n\
         `cargo xtask bench inductor` {}. Versions: `python/requirements.txt`. A step is forward \
         and backward, in training mode, on one thread; its peak is what the allocator has handed \
         out by its own events, scratch included, on top of parameters, buffers and batch. Each \
         contender has a process of its own and is timed beside plain `torch.compile`: in a round \
         both run a step, in turns of 0.1 s in which the other process is stopped. Times are \
         medians of the rounds' ratios. `torch budget` is \
         `torch._functorch.config.activation_memory_budget`; Rekindle's budgets are the peaks of \
         the others (of peaks within 1 % of each other, the lowest), and one below them all. A \
         gradient error is the distance of all gradients from those of the same step in double \
         precision, with the same draws, as a share of their length.\n\n",
        archive.cases_made_on(&CASES)?
    );
    text += &list(claims);
    let size = |bytes: Option<u64>| bytes.map_or("".into(), |b| format!("{:.1}", mebibytes(b)));
    for (case, rows) in results {
        write!(text, "\n## {}\n\n{HEADER}", case.1)?;
        for row in rows {
            writeln!(
                text,
                "| {} | {} | {:.1} | {} | {:.2} | {:.0e} | {:.0} | {:.0} |",
                row.contender,
                size(row.budget),
                mebibytes(row.peak),
                size(row.predicted_peak),
                row.ratio(),
                row.gradient_error,
                row.first_call,
                row.planning
            )?;
        }
    }
    Ok(text)
}
