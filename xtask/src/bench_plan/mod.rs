//! `cargo xtask bench plan [CASE…]`: the planner against its peers, with the neutral judge
//! replaying every plan.
//!
//! In: the corpus and the judge in `../shared` beside the project; names of graphs, or `synthetic`
//! or `mutwo`, or nothing for all. Out: a table on the terminal, verdicts, and an archive
//! `bench/runs/DATE-plan/{README.md,raw.csv}`, in which the named cases replace those of an earlier
//! run of the same day. Every plan is made by the command line tool, as a user would, on one core
//! with the default effort. The task fails if a verdict does.

mod cases;
pub(crate) mod layered;
mod row;
pub(crate) mod synthetic;
pub(crate) mod tool;
mod verdicts;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::archive::{Archive, Claim, lines, list};
use crate::repo::{Repo, show};
use cases::{Case, LAYERED_NAME, SYNTHETIC_NAME, Table, cases};
use row::{Outcome, Row};
use verdicts::claims;

/// Runs of which the fastest says how long the first plan takes.
const FIRST_RUNS: usize = 5;

struct Bench {
    graphs: PathBuf,
    judge: PathBuf,
    tool: PathBuf,
    plan: PathBuf,
}

/// Runs the benchmark, or those of its cases whose graph or table `words` name.
pub(crate) fn run(repo: &Repo, words: &[String]) -> Result<()> {
    let shared = repo.path("../shared");
    let bench = Bench {
        graphs: shared.join("graphs"),
        judge: shared.join("tools/judge.py"),
        tool: repo.target().join("release/rekindle"),
        plan: std::env::temp_dir().join(format!("rekindle-bench-{}.json", std::process::id())),
    };
    ensure!(
        bench.judge.exists(),
        "the corpus and its judge are not beside the project ({})",
        bench.judge.display()
    );
    let cases = cases(&bench.graphs)?;
    for word in words {
        ensure!(
            cases.iter().any(|case| case.is_named(word)),
            "no case has the graph or the table `{word}`"
        );
    }
    show(&mut repo.cargo("build --release -p rekindle-cli"))?;
    let archive = Archive::open(repo, "plan")?;
    let earlier = archive.read("raw.csv")?.unwrap_or(row::CSV_HEAD.into());
    let earlier = lines(&earlier)?;
    println!("{}", row::HEAD);
    let mut rows: Vec<Row> = Vec::new();
    for case in &cases {
        if words.is_empty() || words.iter().any(|word| case.is_named(word)) {
            let row = bench.row(case, &rows)?;
            println!("{}", row.line());
            rows.push(row);
        } else {
            for line in &earlier {
                if Row::is_of(line, case)? {
                    rows.push(Row::from_csv(line, case)?);
                }
            }
        }
    }
    std::fs::remove_file(&bench.plan).ok();
    let claims = claims(&rows);
    print!("{}", list(&claims));
    keep(&archive, &rows, &claims)
}

impl Bench {
    /// Plans a case with the default effort, and if there is a plan with none for the first plan.
    fn row(&self, case: &Case, done: &[Row]) -> Result<Row> {
        // The same question may be in a table twice.
        let same = |row: &&Row| row.case.graph == case.graph && row.case.budget == case.budget;
        if let Some(row) = done.iter().find(same).filter(|_| case.table.is_corpus()) {
            return Ok(Row { case: case.clone(), ..row.clone() });
        }
        let graph = self.graph(case)?;
        let budget = self.budget(case, &graph)?;
        let strategy = if case.table == Table::Mutwo { "mutwo" } else { "search" };
        let words = ["--budget", &budget, "--strategy", strategy];
        let output = tool::plan(&self.tool, &graph, &self.plan, &words)?;
        let mut row = Row {
            case: case.clone(),
            nodes: nodes(&graph)?,
            overhead: None,
            bound: 0.0,
            peak: 0,
            seconds: output.seconds,
            first: None,
            highest: output.highest,
            outcome: Outcome::Plan,
        };
        if output.status.code() == Some(3) {
            // The first line that starts so names the budget.
            let budget = tool::bytes_in(&output.stderr, "error: ")?;
            let proven = tool::bytes_in(&output.stderr, "proven lower bound")? > budget;
            let smallest = tool::bytes_in(&output.stderr, "smallest budget")?;
            row.outcome = match case.table {
                _ if proven => Outcome::Proof,
                Table::Refused => {
                    row.peak = self.peak_at(&graph, smallest)?;
                    Outcome::Larger
                }
                _ => Outcome::Nothing,
            };
            return Ok(row);
        }
        ensure!(output.status.success(), "{} at {}: {}", case.graph, case.budget, output.stderr);
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let (time, peak) = self.judged(&graph)?;
        let plain = number(&said, "plain_time_us")?;
        let percent = |time: f64| 100.0 * (time / plain - 1.0);
        row.overhead = Some(percent(time));
        row.bound = percent(number(&said, "lower_bound_us")?);
        row.peak = peak;
        if case.table != Table::Mutwo {
            row.first = self.first_plan(&graph, &budget)?;
        }
        if matches!(case.table, Table::Layered | Table::Synthetic) {
            std::fs::remove_file(&graph)?;
        }
        Ok(row)
    }

    /// The budget of a case as the command takes it.
    fn budget(&self, case: &Case, graph: &Path) -> Result<String> {
        let Some(times) = case.budget.strip_suffix('x') else {
            return Ok(case.budget.clone());
        };
        let output = tool::plan(&self.tool, graph, &self.plan, &["--budget", "1"])?;
        let smallest = tool::bytes_in(&output.stderr, "smallest budget")?;
        let bytes = (smallest as f64 * times.parse::<f64>()?).ceil();
        Ok((bytes as u64).to_string())
    }

    /// The peak of the plan for a budget that a refusal named, by the judge.
    fn peak_at(&self, graph: &Path, budget: u64) -> Result<u64> {
        let words = ["--budget", &budget.to_string()];
        let output = tool::plan(&self.tool, graph, &self.plan, &words)?;
        ensure!(
            output.status.success(),
            "{budget} bytes were named for {}, and then refused: {}",
            graph.display(),
            output.stderr
        );
        Ok(self.judged(graph)?.1)
    }

    /// Seconds until there is a plan at effort 0, the least of a few runs, since other work on the
    /// machine only ever adds to them; nothing if effort 0 finds none. The judge replays the plan.
    fn first_plan(&self, graph: &Path, budget: &str) -> Result<Option<f64>> {
        let words = ["--budget", budget, "--effort", "0"];
        let mut least = f64::INFINITY;
        for _ in 0..FIRST_RUNS {
            let output = tool::plan(&self.tool, graph, &self.plan, &words)?;
            if !output.status.success() {
                return Ok(None);
            }
            let said: Value = serde_json::from_slice(&output.stdout)?;
            least = least.min(number(&said, "seconds")?);
        }
        self.judged(graph)?;
        Ok(Some(least))
    }

    /// The file of a case's graph; a synthetic or random one is made.
    fn graph(&self, case: &Case) -> Result<PathBuf> {
        let text = if let Some(nodes) = case.graph.strip_prefix(SYNTHETIC_NAME) {
            synthetic::training_step(nodes.parse()?)
        } else if let Some(name) = case.graph.strip_prefix(LAYERED_NAME) {
            let (nodes, seed) = name.split_once('-').context("no seed")?;
            layered::layered(nodes.parse()?, seed.parse()?)
        } else {
            return Ok(self.graphs.join(format!("{}.json", case.graph)));
        };
        let path = self.plan.with_extension("graph.json");
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// Time in microseconds and peak of the plan, by the judge.
    fn judged(&self, graph: &Path) -> Result<(f64, u64)> {
        let mut judge = Command::new("python3");
        let output = judge.arg(&self.judge).arg(graph).arg(&self.plan).output()?;
        ensure!(
            output.status.success(),
            "the judge refuses the plan for {}: {}",
            graph.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        let judged: Value = serde_json::from_slice(&output.stdout)?;
        let peak = judged["peak_bytes"].as_u64().context("no peak")?;
        Ok((number(&judged, "time_us")?, peak))
    }
}

fn number(said: &Value, name: &str) -> Result<f64> {
    said[name].as_f64().with_context(|| format!("no {name}"))
}

fn nodes(graph: &Path) -> Result<u64> {
    let graph: Value = serde_json::from_slice(&std::fs::read(graph)?)?;
    Ok(graph["nodes"].as_array().context("no nodes")?.len() as u64)
}

fn keep(archive: &Archive, rows: &[Row], claims: &[Claim]) -> Result<()> {
    let raw: String = rows.iter().map(|row| row.csv() + "\n").collect();
    archive.write("raw.csv", &format!("{}\n{raw}", row::CSV_HEAD))?;
    let table: String = rows.iter().map(|row| row.line() + "\n").collect();
    let text = format!(
        "# Planner\n\n\
         Command `cargo xtask bench plan`, {}; one thread. Overheads, bounds and peers in percent \
         of the plain step's time; every plan replayed by the neutral judge. *s*: processor time \
         of the whole command at the default effort; *first s*: until there is a plan at effort \
         0, the least of {FIRST_RUNS} runs.\n\n{}\n```text\n{}\n{table}```\n",
        archive.made_on,
        list(claims),
        row::HEAD
    );
    archive.conclude(&text, claims)
}
