//! `cargo xtask bench plan`: the planner against its peers, with the neutral judge replaying every plan.
//!
//! In: the corpus and the judge in `../shared` beside the project. Out: a table on the terminal, verdicts, and an archive
//! `bench/runs/DATE-plan/{README.md,raw.csv}`. Every plan is made by the command line tool, as a user would, on one
//! core with the default effort. The task fails if a verdict does.

mod cases;
mod synthetic;

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::repo::{Repo, show};
use cases::{Case, Table, cases};

/// Seconds that one corpus graph may take.
const MOST_SECONDS: f64 = 3.0;
/// Nodes, seconds and bytes of the large graph.
const LARGE: (usize, f64, u64) = (100_000, 60.0, 2 << 30);
/// How much lower than the reference the overhead is to be on average.
const LOWER: f64 = 0.10;
/// The largest gap at half of the peak, in percent of the step's time.
const MOST_GAP: f64 = 5.0;

/// What became of a case.
struct Row {
    case: Case,
    /// In percent, by the judge; `None` if there is no plan.
    overhead: Option<f64>,
    peak: u64,
    /// The most by which the plan can be above the best, in percent of the plain time.
    gap: f64,
    seconds: f64,
    /// `plan`, `proof` (that there is none) or `nothing`.
    outcome: &'static str,
}

impl Row {
    fn line(&self) -> String {
        let show = |x: Option<f64>| x.map_or("–".into(), |x| format!("{x:.2}"));
        format!(
            "{:<10} {:<26} {:>11} {:>9} {:>7} {:>6.2} {:>6.2}  {}",
            self.case.table.name(),
            self.case.graph,
            self.case.budget,
            show(self.overhead),
            show(self.case.peer),
            self.gap,
            self.seconds,
            self.outcome
        )
    }

    /// Not above its peer; where the peer has nothing, a plan or a proof.
    fn holds(&self) -> bool {
        match (self.case.peer, self.overhead) {
            (Some(peer), Some(overhead)) => overhead < peer + self.case.rounding,
            (Some(_), None) => false,
            (None, _) => self.outcome != "nothing",
        }
    }
}

const HEAD: &str =
    "table      graph                           budget  overhead    peer    gap      s  outcome";

/// What the tool did.
struct Output {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Of the processor, so that other work on the machine does not count.
    seconds: f64,
    /// The most bytes that were resident.
    highest: u64,
}

/// How often the tool is looked at; the kernel counts its time in hundredths of a second.
const POLL: Duration = Duration::from_millis(10);

/// Time that a process has used so far, from the 14th and 15th field of its `stat`.
fn processor_seconds(process: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(process.join("stat")).ok()?;
    // The second field is a name in brackets that may contain blanks.
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0)
}

fn resident_bytes(process: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(process.join("status")).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(1024 * kib)
}

struct Bench<'r> {
    repo: &'r Repo,
    graphs: PathBuf,
    judge: PathBuf,
    tool: PathBuf,
    plan: PathBuf,
}

/// Runs the benchmark.
pub(crate) fn run(repo: &Repo) -> Result<()> {
    show(&mut repo.cargo("build --release -p remat-cli"))?;
    let shared = repo.path("../shared");
    let bench = Bench {
        repo,
        graphs: shared.join("graphs"),
        judge: shared.join("tools/judge.py"),
        tool: repo.path("target/release/remat"),
        plan: std::env::temp_dir().join(format!("remat-bench-{}.json", std::process::id())),
    };
    ensure!(
        bench.judge.exists(),
        "the corpus and its judge are not beside the project ({})",
        bench.judge.display()
    );
    println!("{HEAD}");
    let mut rows = Vec::new();
    for case in cases(&bench.graphs)? {
        let row = bench.row(case)?;
        println!("{}", row.line());
        rows.push(row);
    }
    let (seconds, bytes) = bench.large()?;
    let verdicts = verdicts(&rows, seconds, bytes);
    for (holds, text) in &verdicts {
        println!("{} {text}", if *holds { "holds:" } else { "FAILS:" });
    }
    bench.archive(&rows, &verdicts)?;
    ensure!(verdicts.iter().all(|(holds, _)| *holds), "a verdict failed");
    Ok(())
}

impl Bench<'_> {
    fn row(&self, case: Case) -> Result<Row> {
        let graph = self.graphs.join(format!("{}.json", case.graph));
        let output = self.tool(&graph, &case.budget)?;
        let seconds = output.seconds;
        if output.status.code() == Some(3) {
            let said = String::from_utf8_lossy(&output.stderr);
            // The first line that starts so names the budget.
            let proof = bytes_in(&said, "proven lower bound")? > bytes_in(&said, "error: ")?;
            return Ok(Row {
                case,
                overhead: None,
                peak: 0,
                gap: 0.0,
                seconds,
                outcome: if proof { "proof" } else { "nothing" },
            });
        }
        ensure!(
            output.status.success(),
            "{} at {}: {}",
            case.graph,
            case.budget,
            String::from_utf8_lossy(&output.stderr)
        );
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let number = |name: &str| said[name].as_f64().with_context(|| format!("no {name}"));
        let mut judge = Command::new("python3");
        let output = judge
            .arg(&self.judge)
            .arg(&graph)
            .arg(&self.plan)
            .output()?;
        ensure!(
            output.status.success(),
            "the judge refuses the plan for {} at {}: {}",
            case.graph,
            case.budget,
            String::from_utf8_lossy(&output.stderr)
        );
        let judged: Value = serde_json::from_slice(&output.stdout)?;
        let time = judged["time_us"].as_f64().context("no time")?;
        let plain = number("plain_time_us")?;
        Ok(Row {
            case,
            overhead: Some(100.0 * (time / plain - 1.0)),
            peak: judged["peak_bytes"].as_u64().context("no peak")?,
            gap: (100.0 * (time - number("lower_bound_us")?) / plain).max(0.0),
            seconds,
            outcome: "plan",
        })
    }

    /// Plans one graph with the tool; its processor time and memory are read while it runs.
    fn tool(&self, graph: &Path, budget: &str) -> Result<Output> {
        let said = self.plan.with_extension("stdout");
        let complained = self.plan.with_extension("stderr");
        let mut child = Command::new(&self.tool)
            .arg("plan")
            .arg(graph)
            .args(["--budget", budget, "--json", "--out"])
            .arg(&self.plan)
            .stdout(File::create(&said)?)
            .stderr(File::create(&complained)?)
            .spawn()?;
        let process = PathBuf::from(format!("/proc/{}", child.id()));
        let (mut seconds, mut highest) = (0.0, 0);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            seconds = processor_seconds(&process).unwrap_or(seconds);
            highest = resident_bytes(&process).unwrap_or(highest);
            std::thread::sleep(POLL);
        };
        let output = Output {
            status,
            stdout: std::fs::read(&said)?,
            stderr: std::fs::read(&complained)?,
            seconds,
            highest,
        };
        std::fs::remove_file(said)?;
        std::fs::remove_file(complained)?;
        Ok(output)
    }

    /// Seconds and highest resident bytes of planning the large graph at half of its peak.
    fn large(&self) -> Result<(f64, u64)> {
        let graph = self.plan.with_extension("graph.json");
        std::fs::write(&graph, synthetic::training_step(LARGE.0))?;
        let output = self.tool(&graph, "50%")?;
        ensure!(
            output.status.success(),
            "no plan for the large graph: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        std::fs::remove_file(&graph)?;
        Ok((output.seconds, output.highest))
    }

    fn archive(&self, rows: &[Row], verdicts: &[(bool, String)]) -> Result<()> {
        let said = |program: &str, arguments: &[&str]| -> Result<String> {
            let output = self.repo.command(program).args(arguments).output()?;
            Ok(String::from_utf8(output.stdout)?.trim().to_string())
        };
        let date = said("date", &["+%Y-%m-%d"])?;
        let commit = said("git", &["rev-parse", "--short", "HEAD"])?;
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpus.lines().find_map(|l| l.strip_prefix("model name\t: "));
        let mut text = format!(
            "# Planner, {date}\n\nCommand `cargo xtask bench plan`, commit {commit}, CPU {}, one thread; seconds are processor time.\n\
             Overheads and gaps in percent of the plain step's time; every plan replayed by the neutral judge.\n\n",
            cpu.unwrap_or("unknown")
        );
        for (holds, verdict) in verdicts {
            let _ = writeln!(
                text,
                "- {}: {verdict}",
                if *holds { "holds" } else { "fails" }
            );
        }
        let _ = writeln!(text, "\n```text\n{HEAD}");
        let mut raw =
            String::from("table,graph,budget,overhead,peer,peak_bytes,gap,seconds,outcome\n");
        for row in rows {
            let _ = writeln!(text, "{}", row.line());
            let plain = |x: Option<f64>| x.map_or(String::new(), |x| format!("{x:.4}"));
            let _ = writeln!(
                raw,
                "{},{},{},{},{},{},{:.4},{:.3},{}",
                row.case.table.name(),
                row.case.graph,
                row.case.budget,
                plain(row.overhead),
                plain(row.case.peer),
                row.peak,
                row.gap,
                row.seconds,
                row.outcome
            );
        }
        text += "```\n";
        let folder = self.repo.path(format!("bench/runs/{date}-plan"));
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("README.md"), text)?;
        std::fs::write(folder.join("raw.csv"), raw)?;
        std::fs::remove_file(&self.plan).ok();
        Ok(())
    }
}

/// The `(N bytes)` in the first line of `text` that contains `what`.
fn bytes_in(text: &str, what: &str) -> Result<u64> {
    let line = text.lines().find(|l| l.contains(what));
    let number = line.and_then(|l| l.rsplit_once('('));
    let number = number.and_then(|(_, n)| n.strip_suffix(" bytes)"));
    let number = number.with_context(|| format!("no bytes for `{what}` in: {text}"))?;
    Ok(number.parse()?)
}

fn verdicts(rows: &[Row], large_seconds: f64, large_bytes: u64) -> Vec<(bool, String)> {
    let mut verdicts = Vec::new();
    for table in [Table::Torch, Table::Reference, Table::Published] {
        let of_table: Vec<&Row> = rows.iter().filter(|r| r.case.table == table).collect();
        let held = of_table.iter().filter(|r| r.holds()).count();
        let text = format!(
            "{}: {held} of {} cells at or below the peer",
            table.name(),
            of_table.len()
        );
        verdicts.push((held == of_table.len(), text));
    }
    let ratios: Vec<f64> = rows
        .iter()
        .filter(|r| r.case.table == Table::Reference)
        .filter_map(|r| Some(r.overhead? / r.case.peer?))
        .collect();
    let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
    verdicts.push((
        mean <= 1.0 - LOWER,
        format!(
            "reference: overhead {:.1} % lower on average of {} cells",
            100.0 * (1.0 - mean),
            ratios.len()
        ),
    ));
    let slowest = rows.iter().map(|r| r.seconds).fold(0.0, f64::max);
    verdicts.push((
        slowest <= MOST_SECONDS,
        format!("speed: slowest corpus plan {slowest:.2} s, of at most {MOST_SECONDS} s"),
    ));
    verdicts.push((
        large_seconds <= LARGE.1 && large_bytes <= LARGE.2,
        format!(
            "speed: {} nodes in {large_seconds:.1} s and {} MiB",
            LARGE.0,
            large_bytes >> 20
        ),
    ));
    let half = rows.iter().filter(|r| r.case.budget == "50%");
    let gap = half.map(|r| r.gap).fold(0.0, f64::max);
    verdicts.push((
        gap <= MOST_GAP,
        format!("bound: largest gap at 50 % is {gap:.2} % of the step"),
    ));
    verdicts
}
