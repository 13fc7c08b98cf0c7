//! `cargo xtask bench compare [CASE…]`: the planned step against the plain one, archived under
//! `bench/runs`.
//!
//! Runs the example `overhead` of `crates/rekindle` for each case, keeps its lines in a file per
//! case, and writes from all files of the day a table with the claims that it bears out, and the
//! figures of `docs/analysis.md`. Fails if a claim does not hold.

use std::fmt::Write as _;

use anyhow::Result;

use crate::archive::{Archive, Case, Claim, check_names, lines, list, mebibytes, median, ratio};
use crate::bench_analysis::FIGURES;
use crate::repo::{Repo, output, show};

/// With the arguments that the example takes: model, batch, optimizer, rounds, budgets, strategies.
/// Small steps get more rounds, since they are noisier.
const CASES: [Case; 8] = [
    ("resnet152-b4", "resnet152 4 sgd 15 70%,50%,35% search,mutwo,sqrt"),
    ("resnet152-b8", "resnet152 8 sgd 5 70%,50%,35% search,mutwo,sqrt"),
    ("resnet152-b16", "resnet152 16 sgd 3 70%,50%,35% search,mutwo,sqrt"),
    ("resnet152-b32", "resnet152 32 sgd 2 70%,50%,35% search,mutwo,sqrt"),
    ("resnet152-b64", "resnet152 64 sgd 2 b32 search"),
    ("bert-base-b8", "bert-base 8 adam 9 70%,50%,35% search,mutwo,sqrt"),
    ("bert-base-b16", "bert-base 16 adam 3 70%,50%,35% search,mutwo,sqrt"),
    ("bert-base-b32", "bert-base 32 adam 2 70%,50%,35% search,mutwo,sqrt"),
];

/// How far the measured overhead may be from the predicted one, in points of percent.
const MOST_POINTS: f64 = 3.0;
/// What half of the peak may cost ResNet-152 at batch 32, in percent.
const MOST_HALF: f64 = 8.0;
/// Steps differ by as much from run to run, in percent: a strategy is slower only beyond it.
const NOISE: f64 = 1.0;

/// The budgets that the figures show, one for each batch size.
const SHOWN: &str = "50%,b32";

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    check_names(names, &CASES.map(|case| case.0))?;
    let archive = Archive::open(repo, "compare")?;
    let measure = |case: &Case| {
        let mut example =
            repo.cargo("run --quiet --release --locked --package rekindle --example overhead --");
        output(example.args(case.1.split(' ')))
    };
    let kept = archive.cases(&CASES, names, measure, |_, csv| parse(csv))?;
    let rows: Vec<Row> = kept.into_iter().flat_map(|(_, rows)| rows).collect();
    let mut figures = repo
        .cargo("run --quiet --release --locked --package rekindle-report --example comparison --");
    show(figures.args([&archive.folder, FIGURES, SHOWN]))?;
    let claims = claims(&rows);
    archive.conclude(&summary(&archive, &rows, &claims)?, &claims)
}

/// A line of the example.
struct Row {
    model: String,
    batch: u32,
    share: String,
    strategy: String,
    budget: u64,
    plain_peak: u64,
    /// Of a strategy without a plan, the smallest arena that it knows.
    predicted_peak: u64,
    plain: Vec<f64>,
    plan_seconds: f64,
    /// Overhead and bound in percent, and how much is recomputed, if the strategy has a plan.
    planned: Option<(f64, f64, u32)>,
    /// Peak and times of a plan that was run; one that is predicted to be far slower than the
    /// search's is not.
    measured: Option<(u64, Vec<f64>)>,
}

impl Row {
    /// The measured overhead in percent: the median over the rounds, in each of which both steps
    /// ran in short turns, so that a machine that is slower for a while is so for both.
    fn overhead(&self) -> Option<f64> {
        Some(100.0 * (ratio(&self.measured.as_ref()?.1, &self.plain) - 1.0))
    }

    fn predicted(&self) -> Option<f64> {
        Some(self.planned?.0)
    }

    fn peak(&self) -> Option<u64> {
        Some(self.measured.as_ref()?.0)
    }

    /// `resnet152, batch 32, 50%, search`.
    fn name(&self) -> String {
        let Row { model, batch, share, strategy, .. } = self;
        format!("{model}, batch {batch}, {share}, {strategy}")
    }
}

/// The rows of one file.
fn parse(csv: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for line in lines(csv)? {
        let measured = match line.optional("measured_peak_bytes")? {
            Some(peak) => Some((peak, line.seconds("planned_seconds")?)),
            None => None,
        };
        let planned = match line.optional("predicted_overhead_percent")? {
            Some(overhead) => Some((overhead, line.get("bound_percent")?, line.get("recomputed")?)),
            None => None,
        };
        rows.push(Row {
            model: line.get("model")?,
            batch: line.get("batch_size")?,
            share: line.get("share")?,
            strategy: line.get("strategy")?,
            budget: line.get("budget_bytes")?,
            plain_peak: line.get("plain_peak_bytes")?,
            predicted_peak: line.get("predicted_peak_bytes")?,
            plain: line.seconds("plain_seconds")?,
            plan_seconds: line.get("plan_seconds")?,
            planned,
            measured,
        });
    }
    Ok(rows)
}

/// What is claimed of the rows, and whether it holds.
fn claims(rows: &[Row]) -> Vec<Claim> {
    let ours: Vec<&Row> = rows.iter().filter(|r| r.strategy == "search").collect();
    let meets = |r: &Row| r.peak().is_some_and(|peak| peak <= r.budget);
    let met = ours.iter().filter(|r| meets(r)).count();
    let measured = rows.iter().filter(|r| r.measured.is_some()).count();
    let equal = rows.iter().filter(|r| r.peak() == Some(r.predicted_peak)).count();
    let text = format!("measured peak = predicted peak in {equal} of {measured} rows, to the byte");
    let mut claims = vec![
        (met == ours.len(), format!("search meets {met} of {} budgets", ours.len())),
        (equal == measured, text),
    ];
    let off = |r: &&Row| Some((r.overhead()? - r.predicted()?).abs());
    let far = ours.iter().filter_map(|r| Some((off(r)?, r))).max_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((points, row)) = far {
        claims.push((
            points <= MOST_POINTS,
            format!(
                "measured overhead within {points:.1} points of the predicted one, of at most \
                 {MOST_POINTS} ({} is farthest)",
                row.name()
            ),
        ));
    }
    for row in &ours {
        let overhead = row.overhead().unwrap_or(f64::INFINITY);
        if row.model == "resnet152" && row.batch == 32 && row.share == "50%" {
            claims.push((
                overhead <= MOST_HALF,
                format!("{}: {overhead:.1} % more time, of at most {MOST_HALF} %", row.name()),
            ));
        }
        if row.batch == 64 {
            claims.push((
                meets(row),
                format!(
                    "batch 64 trains within the plain peak of batch 32, for {overhead:.1} % more \
                     time"
                ),
            ));
        }
    }
    let mut slower = Vec::new();
    let mut compared = 0;
    for row in rows.iter().filter(|r| r.strategy != "search") {
        let same = |r: &&&Row| (&r.model, r.batch, &r.share) == (&row.model, row.batch, &row.share);
        let Some((search, theirs)) = ours.iter().find(same).zip(row.predicted()) else {
            continue;
        };
        let Some((ours, predicted)) = search.overhead().zip(search.predicted()) else {
            continue;
        };
        compared += 1;
        let slower_by = match row.overhead() {
            Some(measured) => ours - measured,
            None => predicted - theirs,
        };
        if slower_by > NOISE {
            slower.push(format!("{} by {slower_by:.1} points", row.name()));
        }
    }
    let mut text = format!(
        "search is slower than another strategy at the same budget in {} of {compared} rows",
        slower.len()
    );
    if !slower.is_empty() {
        text += &format!(": {}", slower.join("; "));
    }
    claims.push((slower.is_empty(), text));
    claims
}

const HEADER: &str = "\
| model | batch | budget | strategy | plain peak, MiB | planned peak, MiB | plain, s \
| planned, s | overhead, % | predicted, % | bound, % | recomputed | planning, s |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
";

fn summary(archive: &Archive, rows: &[Row], claims: &[Claim]) -> Result<String> {
    let mut text = format!(
        "# The planned step against the plain one\n\n\
         `cargo xtask bench compare` {}. ResNet-152: 224 × 224, SGD with momentum. BERT-base, \
         masked language model: 128 tokens, Adam, dropout 0.1. In a round the plain and the \
         planned steps run side by side, in turns of 0.05 s; one round is not counted; times are \
         medians of the counted ones, overheads medians of the rounds' ratios; the files have \
         every time. A budget is a share of the plain step's arena or, where no plan goes so low, \
         the smallest that `search` reaches; `b32` is the whole plain arena of batch 32. A plan \
         that is predicted to be slower than the search's by more than 10 points is not run. \
         Every planned loss had the plain step's bits.\n\n",
        archive.cases_made_on(&CASES)?
    );
    write!(text, "{}\n{HEADER}", list(claims))?;
    for row in rows {
        write!(
            text,
            "| {} | {} | {} | {} | {:.0} |",
            row.model,
            row.batch,
            row.share,
            row.strategy,
            mebibytes(row.plain_peak)
        )?;
        let dash = || "-".to_owned();
        match row.planned {
            Some((predicted, bound, recomputed)) => writeln!(
                text,
                " {:.0} | {:.3} | {} | {} | {predicted:.1} | {bound:.1} | {recomputed} | {:.1} |",
                mebibytes(row.predicted_peak),
                median(&row.plain),
                row.measured.as_ref().map_or_else(dash, |m| format!("{:.3}", median(&m.1))),
                row.overhead().map_or_else(dash, |o| format!("{o:.1}")),
                row.plan_seconds
            )?,
            None => writeln!(
                text,
                " misses {:.0}; its smallest is {:.0} | {:.3} | - | - | - | - | - | {:.1} |",
                mebibytes(row.budget),
                mebibytes(row.predicted_peak),
                median(&row.plain),
                row.plan_seconds
            )?,
        }
    }
    Ok(text)
}
