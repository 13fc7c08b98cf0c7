//! `cargo xtask bench torch [CASE…]`: Rekindle in PyTorch against PyTorch's own ways to save
//! memory, archived under `bench/runs`.
//!
//! Runs `python/bench/torch_contest.py` for each case, keeps its lines in a file per case, and
//! writes from all files of the day a table with the claims that it bears out. Fails if a claim
//! does not hold.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

use crate::archive::{self, Archive, Case, Claim, check_names, is_wanted, lines, list, mebibytes};
use crate::python;
use crate::repo::{Repo, output};

/// The cases of `python/bench/full_models.py`, with their sizes for a person.
const CASES: [Case; 7] = [
    ("resnet152", "ResNet-152, 4 × 224²"),
    ("resnet50", "ResNet-50, 8 × 224²"),
    ("resnet18", "ResNet-18, 16 × 224²"),
    ("bert-base", "BERT-base MLM with dropout, 8 × 128"),
    ("gpt2", "GPT-2, 4 × 256"),
    ("vit-b16", "ViT-B/16, 8 × 224²"),
    ("unet", "U-Net, 2 × 192²"),
];
/// Cases that only show that the benchmark runs; their numbers are printed and not kept.
const TRIALS: [&str; 2] = ["resnet18-small", "bert-small"];
/// Steps of each contender that are timed, and as many of eager's beside them; of a trial.
const ROUNDS: u32 = 15;
const TRIAL_ROUNDS: u32 = 2;

/// Steps differ by as much from run to run, in percent: a contender is slower only beyond it.
const NOISE: f64 = 2.0;

/// The contender that the others are timed beside.
const EAGER: &str = "eager";

/// A model must train bit for bit at so many budgets at least.
const FEWEST_BUDGETS: usize = 3;

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    check_names(names, &[&CASES.map(|case| case.0)[..], &TRIALS].concat())?;
    let interpreter = python::interpreter(repo)?;
    let package = python::package(repo, &interpreter)?;
    let contest = |case: &str, rounds: u32| {
        let mut command = repo.command(&interpreter);
        command.args(["python/bench/torch_contest.py", case, &rounds.to_string()]);
        output(command.env("PYTHONPATH", &package))
    };
    for trial in TRIALS.iter().filter(|trial| !names.is_empty() && is_wanted(names, trial)) {
        print!("{}", contest(trial, TRIAL_ROUNDS)?);
    }
    if CASES.iter().all(|case| !is_wanted(names, case.0)) {
        return Ok(());
    }
    let archive = Archive::open(repo, "torch")?;
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
    /// Losses, gradients and buffers of three optimizer steps that are not eager's, bit for bit.
    differing: u64,
    gradient_error: f64,
    first_call: f64,
    planning: f64,
    /// Of every round, in which eager and the contender ran in turns.
    eager_seconds: Vec<f64>,
    seconds: Vec<f64>,
}

impl Row {
    fn is_ours(&self) -> bool {
        self.contender.starts_with("rekindle")
    }

    /// The median over the rounds of this contender's time as a multiple of eager's. Of eager
    /// beside itself, it shows how exact that is.
    fn ratio(&self) -> f64 {
        archive::ratio(&self.seconds, &self.eager_seconds)
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
            differing: line.get("differing")?,
            gradient_error: line.get("gradient_error")?,
            first_call: line.get("first_call_s")?,
            planning: line.get("planning_s")?,
            eager_seconds: line.seconds("eager_seconds")?,
            seconds: line.seconds("seconds")?,
        });
    }
    ensure!(!rows.is_empty(), "there is no row");
    Ok(rows)
}

/// What is claimed of one case, and whether it holds.
fn claims(case: &str, rows: &[Row]) -> Vec<Claim> {
    let ours: Vec<&Row> = rows.iter().filter(|row| row.is_ours()).collect();
    let exact = |row: &&&Row| Some(row.peak) == row.predicted_peak && row.budget >= Some(row.peak);
    let exact = ours.iter().filter(exact).count();
    let equal = ours.iter().filter(|row| row.differing == 0).count();
    let mut claims = vec![
        (
            exact == ours.len(),
            format!(
                "{case}: measured peak = predicted peak ≤ budget in {exact} of {} rows, to the \
                 byte",
                ours.len()
            ),
        ),
        (
            equal == ours.len() && equal >= FEWEST_BUDGETS,
            format!(
                "{case}: over 3 optimizer steps Rekindle's losses, gradients and buffers are \
                 eager's, bit for bit, at {equal} of {} budgets",
                ours.len()
            ),
        ),
    ];
    let others: Vec<&Row> = rows.iter().filter(|row| !row.is_ours()).collect();
    for other in &others {
        let best = within(&ours, other.peak).map_or(f64::INFINITY, Row::ratio);
        let theirs = match other.contender == EAGER {
            true => 1.0,
            false => other.ratio(),
        };
        claims.push((
            best <= theirs * (1.0 + NOISE / 100.0),
            format!(
                "{case}: at the peak of {}, {best:.2} × eager's time against its {theirs:.2}",
                other.contender
            ),
        ));
    }
    let peak = |rows: &[&Row]| lowest(rows).map_or(u64::MAX, |row| row.peak);
    let (our_lowest, their_lowest) = (peak(&ours), peak(&others));
    claims.push((
        our_lowest < their_lowest,
        format!(
            "{case}: {:.0} MiB where the lowest of the others is {:.0}",
            mebibytes(our_lowest),
            mebibytes(their_lowest)
        ),
    ));
    claims
}

/// The row that was planned for `peak`: the highest that is not above it. The fastest of all below
/// would be chosen among noisy times, which the other side is not.
fn within<'r>(rows: &[&'r Row], peak: u64) -> Option<&'r Row> {
    let below = rows.iter().copied().filter(|row| row.peak <= peak);
    below.max_by_key(|row| row.peak)
}

fn lowest<'r>(rows: &[&'r Row]) -> Option<&'r Row> {
    rows.iter().copied().min_by_key(|row| row.peak)
}

const OVERVIEW: &str = "\
| model | eager | the lowest of PyTorch's own | Rekindle in that memory | Rekindle's lowest \
| planning, s |
|---|---|---|---|---|---|
";

/// A line for each case: peaks in MiB, and times as multiples of eager's.
fn overview(results: &[(Case, Vec<Row>)]) -> String {
    let mut text = OVERVIEW.to_owned();
    for (case, rows) in results {
        let (ours, others): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.is_ours());
        let eager = others.iter().find(|row| row.contender == EAGER);
        let (Some(eager), Some(peer), Some(least)) = (eager, lowest(&others), lowest(&ours)) else {
            continue;
        };
        let cell = |row: &Row| format!("{:.0} MiB, × {:.2}", mebibytes(row.peak), row.ratio());
        let there = within(&ours, peer.peak).map_or("-".into(), cell);
        let planning = ours.iter().map(|row| row.planning).fold(0.0, f64::max);
        let _ = writeln!(
            text,
            "| {} | {:.0} MiB | {} ({}) | {there} | {} | {planning:.1} |",
            case.1,
            mebibytes(eager.peak),
            cell(peer),
            peer.contender,
            cell(least),
        );
    }
    text
}

const HEADER: &str = "\
| contender | peak, MiB | time × eager | numbers that differ | largest gradient error \
| first call, s | planning, s |
|---|---|---|---|---|---|---|
";

fn summary(archive: &Archive, results: &[(Case, Vec<Row>)], claims: &[Claim]) -> Result<String> {
    let mut text = format!(
        "# Rekindle in PyTorch against PyTorch's own ways to save memory\n\n\
         `cargo xtask bench torch` {}. Versions: `python/requirements.txt`. A step is forward and \
         backward, in training mode; its peak is the sum of all live storages, parameters, \
         gradients and batch included. Each contender has a process of its own and is timed \
         beside eager: in a round both run a step, in turns of 0.1 s in which the other process \
         is stopped. malloc keeps what is freed. Times are medians of the rounds' ratios to \
         eager, and the files have every time; eager beside itself shows how exact they are. \
         Compiled contenders run operation by operation in the same executor. `torch budget` is \
         `torch._functorch.config.activation_memory_budget`; Rekindle's budgets are the peaks of \
         the others (of peaks within 1 % of each other, the lowest), and one below them all. The \
         numbers that may differ from eager's are the losses, gradients and buffers of three \
         optimizer steps; a gradient error is the largest difference in the first as a share of \
         the parameter's largest gradient. Where the others differ: `checkpoint` runs a block \
         again with its batch-norm, whose running statistics move twice; PyTorch's partitioner \
         gets them computed apart (`python/bench/batch_norm.py`), which rounds otherwise, and it \
         draws dropout anew where it recomputes. Planning includes the timing of every \
         operation.\n\n",
        archive.cases_made_on(&CASES)?
    );
    text += &overview(results);
    text.push('\n');
    text += &list(claims);
    for (case, rows) in results {
        write!(text, "\n## {}\n\n{HEADER}", case.1)?;
        for row in rows {
            writeln!(
                text,
                "| {} | {:.0} | {:.2} | {} | {:.0e} | {:.1} | {:.1} |",
                row.contender,
                mebibytes(row.peak),
                row.ratio(),
                row.differing,
                row.gradient_error,
                row.first_call,
                row.planning
            )?;
        }
    }
    Ok(text)
}
