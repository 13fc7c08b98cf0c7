//! `cargo xtask bench inductor [CASE…]`: Rekindle against `torch.compile`'s own memory budget where
//! Inductor compiles the step, archived under `bench/runs`.
//!
//! Runs `python/bench/inductor_contest.py` for each case, keeps its lines in a file per case, and
//! writes from all files of the day a table with the claims that it bears out. Fails if a claim
//! does not hold.

use std::fmt::Write as _;

use anyhow::Result;

use crate::archive::{Archive, Case, Claim, list, mebibytes};
use crate::contest::{Contest, Results, Row};
use crate::repo::Repo;

const CONTEST: Contest = Contest {
    archive: "inductor",
    script: "python/bench/inductor_contest.py",
    cases: &CASES,
    trials: &["bert-tiny"],
    rounds: 9,
    beside: [PLAIN, "plain Inductor", "plain_seconds"],
};

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
/// By how much a predicted peak may be above the measured one, in percent.
const ABOVE: f64 = 1.0;

/// How much further from double precision gradients may be than plain Inductor's: both round, and
/// not in the same places.
const ERRORS: f64 = 2.0;

/// The contender that the others are timed beside.
const PLAIN: &str = "torch budget 1.0";

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    let Some((archive, results)) = CONTEST.run(repo, names, |_| Ok(()))? else {
        return Ok(());
    };
    let of_case = |(case, rows): &(Case, Vec<(Row, ())>)| {
        let rows = rows.iter().map(|(row, ())| row).collect::<Vec<_>>();
        [claims(case.0, &rows), CONTEST.claims(case.0, rows.into_iter())].concat()
    };
    let claims: Vec<Claim> = results.iter().flat_map(of_case).collect();
    archive.conclude(&summary(&archive, &results, &claims)?, &claims)
}

/// Whether the prediction is that of the run: never below it, and hardly above.
fn is_foreseen(row: &Row) -> bool {
    let most = row.peak as f64 * (1.0 + ABOVE / 100.0);
    row.predicted_peak.is_some_and(|p| p >= row.peak && p as f64 <= most)
}

/// What is claimed of one case, and whether it holds.
fn claims(case: &str, rows: &[&Row]) -> Vec<Claim> {
    let ours: Vec<&Row> = rows.iter().copied().filter(|row| row.is_ours()).collect();
    let held = ours.iter().filter(|row| row.budget >= Some(row.peak)).count();
    let foreseen = ours.iter().filter(|row| is_foreseen(row)).count();
    let plain_error = rows.iter().find(|row| row.contender == PLAIN).map(|row| row.gradient_error);
    let most = ERRORS * plain_error.unwrap_or(0.0);
    let close = ours.iter().filter(|row| row.gradient_error <= most).count();
    let all = ours.len();
    vec![
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
    ]
}

/// Whether of two rows the one with the lower budget has no higher peak.
fn is_monotone(ours: &[&Row]) -> bool {
    ours.iter().all(|a| ours.iter().all(|b| a.budget >= b.budget || a.peak <= b.peak))
}

const HEADER: &str = "\
| contender | budget, MiB | peak, MiB | predicted | time × plain | gradient error \
| first call, s | planning, s |
|---|---|---|---|---|---|---|---|
";

fn summary(archive: &Archive, results: &Results<()>, claims: &[Claim]) -> Result<String> {
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
        for (row, ()) in rows {
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
