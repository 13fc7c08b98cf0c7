//! `cargo xtask bench transfers [GRAPH…]`: plans that move storages to a store, against those that
//! only recompute, archived under `bench/runs`.
//!
//! Every plan is made by the command line tool, as a user would, with the default effort, and
//! replayed by the neutral judge in `../shared`. Seconds are of the processor.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::archive::{Archive, Case, Claim, check_names, lines, list, median};
use crate::bench_plan::{layered, synthetic, tool};
use crate::repo::{Repo, show};

/// A graph, and the peak in percent that a naive greedy with fetches just in time reaches on it,
/// where that is known.
const CASES: [Case; 12] = [
    ("resnet152-b32", "81.1"),
    ("resnet50-b32", "87.5"),
    ("bert-base-b16-s128", "76.7"),
    ("gpt2-b8-s512", "82.1"),
    ("densenet121-b32", "91.5"),
    ("unet-b8", "65.7"),
    ("vgg16-b32", ""),
    ("mlp-b256", ""),
    ("seed-transformer-b64-s128", ""),
    ("synthetic-2000", ""),
    ("layered-1000-3", ""),
    (LARGEST, ""),
];
/// How the names of graphs begin that are made here.
const SYNTHETIC: &str = "synthetic-";
const LAYERED: &str = "layered-";
const LARGEST: &str = "synthetic-100000";

/// Stores by name. The first two are planned for at every budget, the others at one.
const STORES: [(&str, &str); 5] = [
    ("fast", "out=25GB/s,in=25GB/s,latency=10us"),
    ("disk", "out=3GB/s,in=3GB/s,latency=100us,half-duplex"),
    ("faster", "out=50GB/s,in=50GB/s,latency=5us"),
    ("uneven", "out=6GB/s,in=12GB/s,latency=20us"),
    ("slow", "out=1GB/s,in=1GB/s,latency=500us,half-duplex"),
];
const FAST: &str = STORES[0].0;
const EVERYWHERE: usize = 2;
const SHARES: [&str; 6] = ["90", "70", "60", "50", "40", "30"];
/// Those over which the overhead is averaged; the one of the other stores and large graphs.
const AVERAGED: [&str; 3] = ["70", "60", "50"];
const MIDDLE: &str = "60";
/// The budget of the row of the smallest peaks.
const SMALLEST: &str = "smallest";
/// Runs of which the fastest says how long a first plan takes.
const FIRST_RUNS: usize = 2;

const HEADER: &str = "store,budget_percent,alone_percent,moved_percent,bound_percent,\
                      alone_peak_bytes,moved_peak_bytes,floor_bytes,seconds,first_seconds";

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    check_names(names, &CASES.map(|case| case.0))?;
    let bench = Bench {
        judge: repo.path("../shared/tools/judge2.py"),
        tool: repo.target().join("release/rekindle"),
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
         plain step's time, judged by `judge2.py`; peaks in percent of the plain step's. No plan \
         with the store takes less time than the bound. Seconds are of the processor.\n\n",
        archive.cases_made_on(&CASES)?
    );
    for (name, words) in STORES {
        writeln!(text, "- {name}: `{words}`")?;
    }
    text += "\n| graph | store | budget | recompute | or move | bound | seconds | first plan |\n\
             |---|---|---|---|---|---|---|---|\n";
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

/// A plan as the judge sees it; times in percent of the plain step's, above it.
struct Judged {
    overhead: f64,
    bound: f64,
    peak: u64,
    seconds: f64,
}

impl Bench {
    fn measure(&self, case: &Case) -> Result<String> {
        let graph = self.graph(case.0)?;
        let is_made = case.0.starts_with(SYNTHETIC) || case.0.starts_with(LAYERED);
        let shares: &[&str] = if is_made { &[MIDDLE] } else { &SHARES };
        let mut csv = format!("{HEADER}\n");
        for share in shares.iter().copied().chain((!case.1.is_empty()).then_some(case.1)) {
            let budget = format!("{share}%");
            let alone = self.judged(&graph, &["--budget", &budget])?;
            let (time, bytes) =
                alone.map_or((String::new(), 0), |alone| (alone.overhead.to_string(), alone.peak));
            for (name, store) in stores_at(case.0, share) {
                let words = ["--budget", &budget, "--store", store];
                // Below the floor there is none.
                let Some(moved) = self.judged(&graph, &words)? else {
                    continue;
                };
                let first = self.first_seconds(&graph, &words)?;
                let Judged { overhead, bound, peak, seconds } = moved;
                writeln!(
                    csv,
                    "{name},{share},{time},{overhead},{bound},{bytes},{peak},,{seconds},{first}"
                )?;
            }
        }
        if !is_made {
            csv += &self.smallest(&graph)?;
        }
        Ok(csv)
    }

    /// The row of the smallest peaks.
    fn smallest(&self, graph: &Path) -> Result<String> {
        // A budget of one byte is refused with the smallest that there are.
        let words = ["--budget", "1", "--store", STORES[0].1];
        let refused = tool::plan(&self.tool, graph, &self.plan, &words)?;
        let bytes = |what| tool::bytes_in(&refused.stderr, what);
        let (smallest, alone) = (bytes("smallest budget")?, bytes("without the store")?);
        let floor = bytes("proven lower bound")?;
        let words = ["--budget", &smallest.to_string(), "--store", STORES[0].1];
        let moved = self.judged(graph, &words)?.context("no plan for the smallest budget")?;
        let Judged { overhead, bound, peak, seconds } = moved;
        Ok(format!("{FAST},{SMALLEST},,{overhead},{bound},{alone},{peak},{floor},{seconds},\n"))
    }

    /// The file of a graph, which is made where it is none of the corpus.
    fn graph(&self, name: &str) -> Result<PathBuf> {
        let text = if let Some(nodes) = name.strip_prefix(SYNTHETIC) {
            synthetic::training_step(nodes.parse()?)
        } else if let Some(name) = name.strip_prefix(LAYERED) {
            let (nodes, seed) = name.split_once('-').context("no seed")?;
            layered::layered(nodes.parse()?, seed.parse()?)
        } else {
            return Ok(self.corpus.join(format!("{name}.json")));
        };
        let path = self.plan.with_extension("graph.json");
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// The plan for these words, replayed by the judge; nothing where the budget is refused.
    fn judged(&self, graph: &Path, words: &[&str]) -> Result<Option<Judged>> {
        let made = tool::plan(&self.tool, graph, &self.plan, words)?;
        if !made.status.success() && made.stderr.contains("smallest budget") {
            return Ok(None);
        }
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
        let plain = number(&said, "plain_time_us")?;
        // The judge rounds times to a thousandth of a microsecond.
        let above = |time: f64| (1e8 * (time / plain - 1.0)).round().max(0.0) / 1e6;
        Ok(Some(Judged {
            overhead: above(number(&judged, "time_us")?),
            bound: above(number(&said, "lower_bound_us")?),
            peak: judged["peak_bytes"].as_u64().context("no peak")?,
            seconds: made.seconds,
        }))
    }

    /// How long the first plan takes: the fastest of a few.
    fn first_seconds(&self, graph: &Path, words: &[&str]) -> Result<f64> {
        let words = [words, &["--effort", "0"]].concat();
        let mut least = f64::INFINITY;
        for _ in 0..FIRST_RUNS {
            least = least.min(tool::plan(&self.tool, graph, &self.plan, &words)?.seconds);
        }
        Ok(least)
    }
}

/// The stores that a budget is planned with.
fn stores_at(graph: &str, share: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let count = match share {
        MIDDLE if graph != LARGEST => STORES.len(),
        share if SHARES.contains(&share) && graph != LARGEST => EVERYWHERE,
        _ => 1,
    };
    STORES.into_iter().take(count)
}

/// One line of a case's table.
struct Row {
    store: String,
    budget: String,
    alone: Option<f64>,
    moved: f64,
    bound: f64,
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
            bound: line.get("bound_percent")?,
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
        let Row { store, budget, moved, bound, seconds, .. } = self;
        let mib = |bytes: u64| format!("{:.1} MiB", crate::archive::mebibytes(bytes));
        let alone = match self.alone {
            Some(alone) => format!("{alone:.2}"),
            None if self.floor.is_some() => format!("down to {}", mib(self.alone_peak)),
            None => "cannot".into(),
        };
        let moved = match self.floor {
            Some(_) => format!("{moved:.2} at {}", mib(self.moved_peak)),
            None => format!("{moved:.2}"),
        };
        let first = self.first.map_or(String::new(), |seconds| format!("{seconds:.2}"));
        writeln!(
            text,
            "| {graph} | {store} | {budget} | {alone} | {moved} | {bound:.2} | {seconds:.2} | \
             {first} |"
        )?;
        Ok(text)
    }

    /// Whether any plan must take more time than the plain step.
    fn has_bound(&self) -> bool {
        self.bound > 1e-6
    }

    /// Whether this plan does.
    fn costs(&self) -> bool {
        self.moved > 1e-6
    }
}

fn claims(kept: &[(Case, Vec<Row>)]) -> Vec<Claim> {
    let all = || kept.iter().flat_map(|(case, rows)| rows.iter().map(move |row| (case, row)));
    let captured = |case: &Case| !case.0.starts_with(SYNTHETIC) && !case.0.starts_with(LAYERED);
    let is_averaged = |row: &Row| row.store == FAST && AVERAGED.contains(&row.budget.as_str());
    let ratios: Vec<f64> = all()
        .filter(|(case, row)| captured(case) && is_averaged(row))
        .filter_map(|(_, row)| Some(row.moved / row.alone.filter(|alone| *alone > 0.0)?))
        .collect();
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len().max(1) as f64;
    let not_slower = |row: &Row| row.alone.is_none_or(|alone| row.moved <= alone + 1e-6);
    let naive = |case: &Case, row: &Row| row.store == FAST && row.budget == case.1;
    let near = |row: &Row| row.floor.is_none_or(|floor| row.moved_peak * 10 <= floor * 11);
    let lower = |row: &Row| row.floor.is_none() || row.moved_peak < row.alone_peak;
    let compared = all().filter(|(_, row)| row.alone.is_some()).count();
    let costly = || all().filter(|(_, row)| row.costs());
    let gaps: Vec<f64> = costly().map(|(_, row)| row.moved - row.bound).collect();
    let bounded = costly().filter(|(_, row)| row.has_bound()).count();
    let seconds = |of: &dyn Fn(&Case) -> bool| {
        all().filter(|(case, _)| of(case)).map(|(_, row)| row.seconds).fold(0.0, f64::max)
    };
    let largest = seconds(&|case| case.0 == LARGEST);
    let others = seconds(&|case| case.0 != LARGEST);
    let first = all().filter(|(case, _)| case.0 != LARGEST).filter_map(|(_, row)| row.first);
    let first = first.fold(0.0, f64::max);
    let mut claims = vec![
        (
            all().all(|(_, row)| not_slower(row)),
            format!("a store never makes a plan slower, in {compared} cells"),
        ),
        (
            mean(&ratios) <= 0.6,
            format!(
                "at 25 GB/s each way and 70, 60 and 50 % the overhead is {:.2} of recomputation's \
                 on average, over {} cells of captured graphs",
                mean(&ratios),
                ratios.len()
            ),
        ),
        (
            all().filter(|(case, row)| naive(case, row)).all(|(_, row)| row.moved <= 0.1),
            "at the peaks of a naive greedy the overhead is at most 0.1 %".into(),
        ),
        (
            all().all(|(_, row)| lower(row) && near(row)),
            "the lowest peaks are below those of recomputation and within 10 % of the floor".into(),
        ),
        (
            all().all(|(_, row)| row.bound <= row.moved + 1e-6),
            format!(
                "no plan is faster than its bound, which is above zero in {bounded} of the {} \
                 cells whose plan costs time, and {:.2} points below the plan in the median",
                gaps.len(),
                median(&gaps)
            ),
        ),
        (others <= 5.0, format!("a plan takes at most 5 seconds of the processor: {others:.2}")),
        (first <= 0.2, format!("a first plan takes at most 0.2 seconds: {first:.2}")),
    ];
    if kept.iter().any(|(case, _)| case.0 == LARGEST) {
        let holds = largest <= 90.0;
        claims.push((holds, format!("one of 100,000 nodes at most 90 seconds: {largest:.2}")));
    }
    claims
}
