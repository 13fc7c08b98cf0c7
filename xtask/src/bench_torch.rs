//! `cargo xtask bench torch [CASE…]`: Rekindle in PyTorch against PyTorch's own ways to save
//! memory, archived under `bench/runs`.
//!
//! Runs `python/bench/torch_contest.py` for each case, keeps its lines in a file per case, and
//! writes from all files of the day a table with the claims that it bears out. Fails if a claim
//! does not hold.

use std::fmt::Write as _;

use anyhow::Result;

use crate::archive::{Archive, Case, Claim, Line, list, mebibytes};
use crate::contest::{Contest, Results, Row, lowest, within};
use crate::repo::Repo;

const CONTEST: Contest = Contest {
    archive: "torch",
    script: "python/bench/torch_contest.py",
    cases: &CASES,
    trials: &["resnet18-small", "bert-small"],
    rounds: 15,
    beside: [EAGER, EAGER, "eager_seconds"],
};

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
/// The contender that the others are timed beside.
const EAGER: &str = "eager";

/// A model must train bit for bit at so many budgets at least.
const FEWEST_BUDGETS: usize = 3;

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    let Some((archive, results)) = CONTEST.run(repo, names, differing)? else {
        return Ok(());
    };
    let of_case = |(case, rows): &(Case, Vec<(Row, u64)>)| {
        [claims(case.0, rows), CONTEST.claims(case.0, rows.iter().map(|(row, _)| row))].concat()
    };
    let claims: Vec<Claim> = results.iter().flat_map(of_case).collect();
    archive.conclude(&summary(&archive, &results, &claims)?, &claims)
}

/// How many losses, gradients and buffers of three optimizer steps are not eager's, bit for bit.
fn differing(line: &Line<'_>) -> Result<u64> {
    line.get("differing")
}

/// What is claimed of one case, and whether it holds.
fn claims(case: &str, rows: &[(Row, u64)]) -> Vec<Claim> {
    let ours: Vec<&(Row, u64)> = rows.iter().filter(|(row, _)| row.is_ours()).collect();
    let exact = |row: &Row| Some(row.peak) == row.predicted_peak && row.budget >= Some(row.peak);
    let exact = ours.iter().filter(|(row, _)| exact(row)).count();
    let equal = ours.iter().filter(|(_, differing)| *differing == 0).count();
    vec![
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
    ]
}

const OVERVIEW: &str = "\
| model | eager | the lowest of PyTorch's own | Rekindle in that memory | Rekindle's lowest \
| planning, s |
|---|---|---|---|---|---|
";

/// A line for each case: peaks in MiB, and times as multiples of eager's.
fn overview(results: &Results<u64>) -> String {
    let mut text = OVERVIEW.to_owned();
    for (case, rows) in results {
        let rows = rows.iter().map(|(row, _)| row);
        let (ours, others): (Vec<&Row>, Vec<&Row>) = rows.partition(|row| row.is_ours());
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

fn summary(archive: &Archive, results: &Results<u64>, claims: &[Claim]) -> Result<String> {
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
        for (row, differing) in rows {
            writeln!(
                text,
                "| {} | {:.0} | {:.2} | {} | {:.0e} | {:.1} | {:.1} |",
                row.contender,
                mebibytes(row.peak),
                row.ratio(),
                differing,
                row.gradient_error,
                row.first_call,
                row.planning
            )?;
        }
    }
    Ok(text)
}
