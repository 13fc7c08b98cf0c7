//! `cargo xtask bench limit [CASE…]`: `rekindle run` under a hard limit of its budget and a
//! constant, archived under `bench/runs`.
//!
//! The limit is the system's (`crates/cli/tests/command/limit.rs` says which), so nothing that the
//! process takes can be forgotten: the planned step trains or the process does not come back with
//! its numbers. The plain step must be refused under the same limit. What was resident at most is
//! the system's number, too.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::archive::{Archive, Case, check_names, lines, list, mebibytes};
use crate::repo::{Repo, show};

#[path = "../../crates/cli/tests/command/limit.rs"]
pub(crate) mod limit;
use limit::{BESIDE_THE_BUDGET, Limit};

/// The step with its flags and, after a bar, the budget that it is planned for.
const CASES: [Case; 3] = [
    ("transformer-tiny-b128", "transformer-tiny --batch-size 128 --optimizer sgd --effort 0|40%"),
    ("resnet152-b8", "resnet152 --batch-size 8 --optimizer sgd|50%"),
    ("bert-base-b16", "bert-base --batch-size 16 --optimizer adam|75%"),
];

const HEADER: &str =
    "step,plain_peak_bytes,budget_bytes,arena_bytes,resident_bytes,limit_bytes,limit,plain_exit";

/// The exit code of a step that does not fit.
const REFUSED: i32 = 3;

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    check_names(names, &CASES.map(|case| case.0))?;
    show(&mut repo.cargo("build --quiet --release --locked --package rekindle-cli"))?;
    let archive = Archive::open(repo, "limit")?;
    let kept = archive.cases(&CASES, names, |case| measure(repo, case), |_, csv| row(csv))?;
    let rows: Vec<Row> = kept.into_iter().map(|(_, row)| row).collect();
    let claims = [
        (rows.iter().all(|row| row.arena <= row.budget), "every arena is within its budget".into()),
        (
            rows.iter().all(|row| row.resident <= row.limit),
            "no process had more in memory than its limit".into(),
        ),
        (
            rows.iter().all(|row| row.plain_exit == Some(REFUSED)),
            "every plain step is refused under the limit under which the planned one trains".into(),
        ),
    ];
    let mut text = format!(
        "# Training under a hard limit\n\n`cargo xtask bench limit`, {}.\n\nThe limit of a \
         process is its budget and {} MiB; the system enforces it. Bytes in MiB.\n\n\
         | step | plain | budget | arena | resident | limit | enforced by |\n\
         |---|---|---|---|---|---|---|\n",
        archive.cases_made_on(&CASES)?,
        mebibytes(BESIDE_THE_BUDGET)
    );
    for row in &rows {
        let bytes = [row.plain, row.budget, row.arena, row.resident, row.limit];
        let cells = bytes.map(|bytes| format!("{:.1}", mebibytes(bytes)));
        writeln!(text, "| {} | {} | {} |", row.step, cells.join(" | "), row.by)?;
    }
    archive.conclude(&format!("{text}\n{}", list(&claims)), &claims)
}

/// Trains without a limit to learn the budget in bytes, then under the limit, then plain.
fn measure(repo: &Repo, case: &Case) -> Result<String> {
    let (step, budget) = case.1.split_once('|').context("a step and a budget")?;
    let binary = repo.target().join("release/rekindle");
    let binary = binary.to_str().context("a path that is text")?;
    let planned = format!("run {step} --steps 1 --json --budget {budget}");
    let free = repo.command(binary).args(planned.split(' ')).output()?;
    let free: Value = serde_json::from_slice(&free.stdout)?;
    let number = |value: &Value| value.as_u64().context("a number of bytes");
    let limit_bytes = number(&free["planned"]["budget_bytes"])? + BESIDE_THE_BUDGET;
    let limit = Limit::new(limit_bytes);
    let limited = |arguments: &str| limit.command(binary).args(arguments.split(' ')).output();
    let trained = limited(&planned)?;
    ensure!(
        trained.status.success(),
        "{} does not train in {limit_bytes} bytes: {}",
        case.0,
        String::from_utf8_lossy(&trained.stderr)
    );
    let trained: Value = serde_json::from_slice(&trained.stdout)?;
    let plain = limited(&format!("run {step} --steps 1"))?.status.code();
    let by = match limit {
        Limit::Group(_) => "control group",
        Limit::AddressSpace(_) => "address space",
    };
    Ok(format!(
        "{HEADER}\n{},{},{},{},{},{limit_bytes},{by},{}\n",
        case.0,
        number(&trained["plain_peak_bytes"])?,
        number(&trained["planned"]["budget_bytes"])?,
        number(&trained["planned"]["arena_bytes"])?,
        number(&trained["highest_resident_bytes"])?,
        plain.map_or(String::new(), |code| code.to_string()),
    ))
}

/// The line of a case.
struct Row {
    step: String,
    plain: u64,
    budget: u64,
    arena: u64,
    resident: u64,
    limit: u64,
    by: String,
    /// How the plain step ended; nothing if it was killed.
    plain_exit: Option<i32>,
}

fn row(csv: &str) -> Result<Row> {
    let lines = lines(csv)?;
    let line = lines.first().context("a line below the head")?;
    Ok(Row {
        step: line.get("step")?,
        plain: line.get("plain_peak_bytes")?,
        budget: line.get("budget_bytes")?,
        arena: line.get("arena_bytes")?,
        resident: line.get("resident_bytes")?,
        limit: line.get("limit_bytes")?,
        by: line.get("limit")?,
        plain_exit: line.optional("plain_exit")?,
    })
}
