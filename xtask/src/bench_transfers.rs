//! `cargo xtask bench transfers [GRAPH…]`: plans that move storages to a store, against those that
//! only recompute, archived under `bench/runs`.
//!
//! Every plan is made by the command line tool, as a user would, with the default effort, and
//! replayed by the neutral judge in `../shared`. Seconds are of the processor.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::archive::{Archive, Case, Claim, check_names, lines, list};
use crate::bench_plan::tool;
use crate::repo::{Repo, show};

/// A graph, and the peak in percent that a naive greedy with fetches just in time reaches on it.
const CASES: [Case; 6] = [
    ("resnet152-b32", "81.1"),
    ("resnet50-b32", "87.5"),
    ("bert-base-b16-s128", "76.7"),
    ("gpt2-b8-s512", "82.1"),
    ("densenet121-b32", "91.5"),
    ("unet-b8", "65.7"),
];

const FAST: &str = "out=25GB/s,in=25GB/s,latency=10us";
const DISK: &str = "out=3GB/s,in=3GB/s,latency=100us,half-duplex";
const SHARES: [&str; 3] = ["70", "60", "50"];
/// The budget of the row of the smallest peaks.
const SMALLEST: &str = "smallest";

const HEADER: &str = "store,budget_percent,alone_percent,moved_percent,alone_peak_bytes,\
                      moved_peak_bytes,floor_bytes,seconds,first_seconds";

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    check_names(names, &CASES.map(|case| case.0))?;
    let bench = Bench {
        judge: repo.path("../shared/tools/judge2.py"),
        tool: repo.path("target/release/rekindle"),
        corpus: repo.path("corpus"),
        plan: std::env::temp_dir().join(format!("rekindle-bench-{}.json", std::process::id())),
    };
    ensure!(
        bench.judge.exists(),
        "the judge is not beside the project ({})",
        bench.judge.display()
    );
    show(&mut repo.cargo("build --quiet --release --locked --package rekindle-cli"))?;
    let archive = Archive::open(repo, "transfers")?;
    let kept = archive.cases(&CASES, names, |case| bench.measure(case), |_, csv| rows(csv))?;
    std::fs::remove_file(&bench.plan).ok();
    let claims = claims(&kept);
    let mut text = format!(
        "# Recompute or move\n\n`cargo xtask bench transfers`, {}.\n\nOverheads in percent of the \
         plain step's time, judged by `judge2.py`; peaks in percent of the plain step's.\n\n\
         | graph | store | budget | recompute | or move | seconds | first plan |\n\
         |---|---|---|---|---|---|---|\n",
        archive.cases_made_on(&CASES)?
    );
    for (case, rows) in &kept {
        for row in rows {
            text += &row.line(case.0)?;
        }
    }
    archive.conclude(&format!("{text}\n{}", list(&claims)), &claims)
}

struct Bench {
    judge: PathBuf,
    tool: PathBuf,
    corpus: PathBuf,
    plan: PathBuf,
}

/// A plan as the judge sees it.
struct Judged {
    /// In percent of the plain step's time.
    overhead: f64,
    peak: u64,
    seconds: f64,
}

impl Bench {
    fn measure(&self, case: &Case) -> Result<String> {
        let graph = self.corpus.join(format!("{}.json", case.0));
        let mut csv = format!("{HEADER}\n");
        let shares = SHARES.iter().map(|share| (FAST, *share));
        let disk = SHARES.iter().map(|share| (DISK, *share));
        for (store, share) in [(FAST, case.1)].into_iter().chain(shares).chain(disk) {
            let budget = format!("{share}%");
            let alone = self.judged(&graph, &["--budget", &budget])?;
            let words = ["--budget", &budget, "--store", store];
            let moved = self.judged(&graph, &words)?;
            let first = self.judged(&graph, &[&words[..], &["--effort", "0"]].concat())?;
            let Judged { overhead, peak, seconds } = moved;
            let (name, first) = (name(store), first.seconds);
            let alone = (alone.overhead, alone.peak);
            writeln!(
                csv,
                "{name},{share},{},{overhead},{},{peak},,{seconds},{first}",
                alone.0, alone.1
            )?;
        }
        // A budget of one byte is refused with the smallest that there are.
        let words = ["--budget", "1", "--store", FAST];
        let refused = tool::plan(&self.tool, &graph, &self.plan, &words)?;
        let bytes = |what| tool::bytes_in(&refused.stderr, what);
        let (smallest, alone) = (bytes("smallest budget")?, bytes("without the store")?);
        let floor = bytes("proven lower bound")?;
        let moved = self.judged(&graph, &["--budget", &smallest.to_string(), "--store", FAST])?;
        let Judged { overhead, peak, seconds } = moved;
        writeln!(csv, "fast,{SMALLEST},,{overhead},{alone},{peak},{floor},{seconds},")?;
        Ok(csv)
    }

    /// The plan for these words, replayed by the judge.
    fn judged(&self, graph: &std::path::Path, words: &[&str]) -> Result<Judged> {
        let made = tool::plan(&self.tool, graph, &self.plan, words)?;
        ensure!(made.status.success(), "{} {words:?}: {}", graph.display(), made.stderr);
        let mut judge = Command::new("python3");
        let output = judge.arg(&self.judge).arg(graph).arg(&self.plan).output()?;
        ensure!(
            output.status.success(),
            "the judge refuses the plan for {} {words:?}: {}",
            graph.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        let judged: Value = serde_json::from_slice(&output.stdout)?;
        let said: Value = serde_json::from_slice(&made.stdout)?;
        let number =
            |of: &Value, name: &str| of[name].as_f64().with_context(|| format!("no {name}"));
        let time = number(&judged, "time_us")? / number(&said, "plain_time_us")?;
        let peak = judged["peak_bytes"].as_u64().context("no peak")?;
        Ok(Judged { overhead: 100.0 * (time - 1.0), peak, seconds: made.seconds })
    }
}

fn name(store: &str) -> &'static str {
    if store == FAST { "fast" } else { "disk" }
}

/// One line of a case's table.
struct Row {
    store: String,
    budget: String,
    alone: Option<f64>,
    moved: f64,
    alone_peak: u64,
    moved_peak: u64,
    floor: Option<u64>,
    seconds: f64,
    first: Option<f64>,
}

fn rows(csv: &str) -> Result<Vec<Row>> {
    let row = |line: &crate::archive::Line<'_>| {
        Ok(Row {
            store: line.get("store")?,
            budget: line.get("budget_percent")?,
            alone: line.optional("alone_percent")?,
            moved: line.get("moved_percent")?,
            alone_peak: line.get("alone_peak_bytes")?,
            moved_peak: line.get("moved_peak_bytes")?,
            floor: line.optional("floor_bytes")?,
            seconds: line.get("seconds")?,
            first: line.optional("first_seconds")?,
        })
    };
    lines(csv)?.iter().map(row).collect()
}

impl Row {
    fn line(&self, graph: &str) -> Result<String> {
        let mut text = String::new();
        let Row { store, budget, moved, seconds, .. } = self;
        let mib = |bytes: u64| format!("{:.1} MiB", crate::archive::mebibytes(bytes));
        let alone = match self.alone {
            Some(alone) => format!("{alone:.2}"),
            None => format!("down to {}", mib(self.alone_peak)),
        };
        let moved = match self.floor {
            Some(_) => format!("{moved:.2} at {}", mib(self.moved_peak)),
            None => format!("{moved:.2}"),
        };
        let first = self.first.map_or(String::new(), |seconds| format!("{seconds:.2}"));
        writeln!(
            text,
            "| {graph} | {store} | {budget} | {alone} | {moved} | {seconds:.2} | {first} |"
        )?;
        Ok(text)
    }
}

fn claims(kept: &[(Case, Vec<Row>)]) -> Vec<Claim> {
    let all = || kept.iter().flat_map(|(case, rows)| rows.iter().map(move |row| (case, row)));
    let is_share = |row: &Row| row.store == "fast" && SHARES.contains(&row.budget.as_str());
    let ratios: Vec<f64> = all()
        .filter(|(_, row)| is_share(row))
        .filter_map(|(_, row)| Some(row.moved / row.alone?))
        .collect();
    let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
    let not_slower = |row: &Row| row.alone.is_none_or(|alone| row.moved <= alone + 1e-6);
    let naive = |case: &Case, row: &Row| row.store == "fast" && row.budget == case.1;
    let near = |row: &Row| row.floor.is_none_or(|floor| row.moved_peak * 10 <= floor * 11);
    let lower = |row: &Row| row.floor.is_none() || row.moved_peak < row.alone_peak;
    vec![
        (
            all().all(|(_, row)| not_slower(row)),
            "a store never makes a plan slower, at 25 GB/s each way and on a disk of 3 GB/s".into(),
        ),
        (
            mean <= 0.6,
            format!("at 70, 60 and 50 % the overhead is {mean:.2} of recomputation's on average"),
        ),
        (
            all().filter(|(case, row)| naive(case, row)).all(|(_, row)| row.moved <= 0.1),
            "at the peaks of a naive greedy the overhead is at most 0.1 %".into(),
        ),
        (
            all().all(|(_, row)| lower(row) && near(row)),
            "the lowest peaks are below those of recomputation and within 10 % of the floor".into(),
        ),
        (all().all(|(_, row)| row.seconds <= 5.0), "every plan takes at most 5 seconds".into()),
        (
            all().all(|(_, row)| row.first.is_none_or(|seconds| seconds <= 0.2)),
            "every first plan takes at most 0.2 seconds".into(),
        ),
    ]
}
