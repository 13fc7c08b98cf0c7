//! `cargo xtask bench compare [CASE…]`: the planned step against the plain one, archived under `bench/runs`.
//!
//! Each case is a model with its batch sizes. For each share of the plain peak and each strategy `remat compare` runs the two in
//! turns; the archive keeps its rows, and says which of the claims they bear out.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail};

use crate::repo::{Repo, output, show};

/// A model with its sizes, as `remat compare` takes them.
struct Case {
    name: &'static str,
    arguments: &'static str,
}

const CASES: [Case; 4] = [
    Case {
        name: "resnet152",
        arguments: "resnet152 --batch-sizes 4,8,16,32 --optimizer sgd",
    },
    Case {
        name: "bert-base",
        arguments: "bert-base --batch-sizes 8,16,32 --optimizer adam",
    },
    Case {
        name: "resnet50-small",
        arguments: "resnet50 --batch-sizes 8,16 --image-size 96 --optimizer sgd",
    },
    Case {
        name: "bert-base-small",
        arguments: "bert-base --batch-sizes 4 --optimizer sgd",
    },
];

/// Of the plain peak; where no plan goes so low, the smallest that one goes.
const SHARES: [&str; 3] = ["70%", "50%", "35%"];
const STRATEGIES: [&str; 3] = ["search", "mutwo", "sqrt"];

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    if let Some(unknown) = names
        .iter()
        .find(|name| CASES.iter().all(|case| case.name != **name))
    {
        let known = CASES.map(|case| case.name).join(", ");
        bail!("there is no case `{unknown}`; the cases are {known}");
    }
    show(&mut repo.cargo("build --release --package remat-cli"))?;
    let remat = repo.path("target/release/remat");
    let mut rows = Rows::default();
    for case in CASES
        .iter()
        .filter(|case| names.is_empty() || names.iter().any(|n| n == case.name))
    {
        for strategy in STRATEGIES {
            for share in SHARES {
                println!("{} at {share} by {strategy}", case.name);
                let csv = repo.path(format!("target/compare-{}.csv", std::process::id()));
                let mut command = repo.command(&remat);
                command.arg("compare").args(case.arguments.split(' '));
                command
                    .args(["--budget", share, "--strategy", strategy, "--csv"])
                    .arg(&csv);
                if strategy == "search" {
                    command.arg("--or-smallest");
                }
                print!("{}", output(&mut command)?);
                let text = std::fs::read_to_string(&csv).context("compare wrote no table")?;
                std::fs::remove_file(&csv)?;
                rows.add(share, &text)?;
            }
        }
    }
    archive(repo, &rows)
}

/// The rows of all comparisons.
#[derive(Default)]
struct Rows {
    /// With the share that was asked for in front.
    csv: String,
    /// The same for a person.
    table: String,
}

impl Rows {
    /// Adds the rows of one table that `remat compare` wrote.
    fn add(&mut self, share: &str, text: &str) -> Result<()> {
        let mut lines = text.lines();
        let header = lines.next().context("the table is empty")?;
        if self.csv.is_empty() {
            writeln!(self.csv, "budget,{header}")?;
        }
        for line in lines {
            writeln!(self.csv, "{share},{line}")?;
            let cell = |name: &str| {
                let at = header.split(',').position(|column| column == name);
                at.and_then(|at| line.split(',').nth(at)).unwrap_or("")
            };
            writeln!(
                self.table,
                "| {} | {} | {share} | {} | {} | {} | {} | {} | {} | {} | {} |",
                cell("model"),
                cell("batch_size"),
                cell("strategy"),
                mebibytes(cell("plain_peak_bytes")),
                mebibytes(cell("measured_peak_bytes")),
                rounded(cell("plain_seconds"), 3),
                rounded(cell("planned_seconds"), 3),
                rounded(cell("overhead_percent"), 1),
                rounded(cell("predicted_overhead_percent"), 1),
                cell("remark"),
            )?;
            if cell("predicted_peak_bytes") != cell("measured_peak_bytes") {
                bail!("a measured peak is not the predicted one: {line}");
            }
        }
        Ok(())
    }
}

fn mebibytes(cell: &str) -> String {
    let bytes = cell.parse::<f64>();
    bytes.map_or("-".into(), |bytes| {
        format!("{:.1}", bytes / f64::from(1 << 20))
    })
}

fn rounded(cell: &str, places: usize) -> String {
    let value = cell.parse::<f64>();
    value.map_or("-".into(), |value| format!("{value:.places$}"))
}

const HEADER: &str = "\
| model | batch | budget | strategy | plain peak, MiB | planned peak, MiB | plain, s | planned, s | overhead, % | predicted, % | |
|---|---|---|---|---|---|---|---|---|---|---|
";

/// Writes the table with what it was measured on, and every number.
fn archive(repo: &Repo, rows: &Rows) -> Result<()> {
    let date = output(repo.command("date").args(["-u", "+%Y-%m-%d"]))?;
    let commit = output(repo.command("git").args(["rev-parse", "--short", "HEAD"]))?;
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let cpu = cpu
        .unwrap_or("unknown")
        .trim_start_matches(['\t', ' ', ':']);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let folder = format!("bench/runs/{}-compare", date.trim());
    std::fs::create_dir_all(repo.path(&folder))?;
    let readme = format!(
        "# The planned step against the plain one\n\n\
         `cargo xtask bench compare` at commit {}, on {cpu} with {cores} cores. Plain and planned steps took turns; times are \
         medians of three steps after one that is not counted. A measured peak that is not the predicted one, to the byte, \
         would have ended the benchmark. Where a strategy has no plan for the budget the row says so; `search` takes the smallest \
         that it knows then.\n\n{HEADER}{}",
        commit.trim(),
        rows.table
    );
    std::fs::write(repo.path(&folder).join("README.md"), readme)?;
    std::fs::write(repo.path(&folder).join("raw.csv"), &rows.csv)?;
    println!("{folder}");
    Ok(())
}
