//! `cargo xtask bench xl [CASE…]`: GPT-2 XL trains in a small part of its memory with this
//! machine's disk, under a hard limit, archived under `bench/runs`; and the README's picture of it.
//!
//! Each case is `rekindle run` for three steps, the last of which is traced. What the middle one of
//! them takes is compared with how long the kernels of the traced one ran, and with how long its
//! bytes take while nothing computes, both ways at once through a file of the step's size, right
//! after it.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::archive::{Archive, Case, Claim, check_names, lines, list, mebibytes};
use crate::bench_limit::limit::{BESIDE_THE_BUDGET, Limit};
use crate::repo::{Repo, output, show};

/// The budgets.
const CASES: [Case; 2] = [("3GiB", "3221225472"), ("4GiB", "4294967296")];

/// The case that the README shows, and where its picture is.
const SHOWN: (&str, &str) = ("3GiB", "docs/figures/gpt2-xl.svg");

const STEP: &str =
    "run gpt2-xl --batch-size 1 --sequence 128 --optimizer adam --steps 3 --effort 2 --json";

/// What may be resident beside the budget.
const BESIDE: u64 = 64 << 20;
/// What a step may take, as a multiple of the longest of what it does at the same time.
const MOST: f64 = 1.25;

const HEADER: &str = "budget_bytes,plain_bytes,arena_bytes,resident_bytes,limit_bytes,limit,store,\
                      predicted_seconds,profile_seconds,plan_seconds,computed,out_bytes,in_bytes,\
                      out_busy,in_busy,disk_seconds,seconds,losses";

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    check_names(names, &CASES.map(|case| case.0))?;
    show(&mut repo.cargo("build --quiet --release --locked --package rekindle-cli"))?;
    let archive = Archive::open(repo, "xl")?;
    let kept =
        archive.cases(&CASES, names, |case| measure(repo, case), |_, csv| Row::parse(csv))?;
    let claims = claims(&kept);
    let mut text = format!(
        "# GPT-2 XL on a disk\n\n`cargo xtask bench xl`, {}.\n\n`rekindle {STEP} --budget BYTES \
         --offload DIR`, in a process whose limit is its budget and {} MiB, enforced by the \
         system. The last step is traced: computed is the sum of its kernels' times, and busy is \
         how long a transfer was under way in either direction. The disk's seconds are what \
         its bytes take alone, both ways at once, right after the run (`bytes_alone`).\n\n\
         | | {} |\n|---|{}\n",
        archive.cases_made_on(&CASES)?,
        BESIDE_THE_BUDGET >> 20,
        kept.iter().map(|(case, _)| case.0).collect::<Vec<_>>().join(" | "),
        "---|".repeat(kept.len())
    );
    for (name, cell) in CELLS {
        let cells = kept.iter().map(|(_, row)| cell(row)).collect::<Vec<_>>();
        writeln!(text, "| {name} | {} |", cells.join(" | "))?;
    }
    archive.conclude(&format!("{text}\n{}", list(&claims)), &claims)
}

/// A row of the table: its name, and what a case has there.
type Cell = (&'static str, fn(&Row) -> String);

const CELLS: [Cell; 11] = [
    ("the plain step needs, MiB", |row| format!("{:.0}", mebibytes(row.plain))),
    ("arena, predicted and measured, MiB", |row| format!("{:.1}", mebibytes(row.arena))),
    ("resident at most, MiB", |row| format!("{:.1}", mebibytes(row.resident))),
    ("limit", |row| format!("{:.1} MiB of {}", mebibytes(row.limit), row.by)),
    ("disk", |row| row.store.clone()),
    ("moved out and in, MiB", |row| {
        format!("{:.0}, {:.0}", mebibytes(row.moved[0]), mebibytes(row.moved[1]))
    }),
    ("predicted, s", |row| format!("{:.1}", row.predicted)),
    ("steps, s", |row| {
        row.seconds.iter().map(|s| format!("{s:.1}")).collect::<Vec<_>>().join(", ")
    }),
    ("last step: computed, out busy, in busy, s", |row| {
        format!("{:.1}, {:.1}, {:.1}", row.computed, row.busy[0], row.busy[1])
    }),
    ("its bytes alone, s", |row| format!("{:.1}", row.disk)),
    ("profile, plan, s", |row| format!("{:.0}, {:.0}", row.prepared[0], row.prepared[1])),
];

fn measure(repo: &Repo, case: &Case) -> Result<String> {
    let binary = repo.target().join("release/rekindle");
    let binary = binary.to_str().context("a path that is text")?;
    let folder = repo.target();
    let trace = folder.join(format!("xl-{}.json", case.0));
    let budget: u64 = case.1.parse()?;
    let limit_bytes = budget + BESIDE_THE_BUDGET;
    let limit = Limit::new(limit_bytes);
    let mut command = limit.command(binary);
    command.args(STEP.split(' ')).args(["--budget", case.1, "--offload"]).arg(&folder);
    let ran = command.arg("--trace").arg(&trace).output()?;
    ensure!(ran.status.success(), "{}: {}", case.0, String::from_utf8_lossy(&ran.stderr));
    let said: Value = serde_json::from_slice(&ran.stdout)?;
    let traced: Value = serde_json::from_slice(&std::fs::read(&trace)?)?;
    if case.0 == SHOWN.0 {
        let title = "One training step of GPT-2 XL with Adam, 1 × 128 tokens, in 3 GiB and a disk";
        let plain = said["plain_peak_bytes"].as_f64().context("a number of bytes")?;
        let gib = plain / f64::from(1 << 30);
        let label = format!("the budget, 3 GiB (the plain step needs {gib:.1} GiB)");
        let mut example = repo.cargo(
            "run --quiet --release --locked --package rekindle-report --example step_run --",
        );
        show(example.arg(&trace).args([SHOWN.1, title, case.1, &label]))?;
    }
    let by = match limit {
        Limit::Group(_) => "a control group",
        Limit::AddressSpace(_) => "address space",
    };
    let planned = &said["planned"];
    let sizes =
        [&said["plain_peak_bytes"], &planned["moved_out_bytes"], &planned["moved_in_bytes"]];
    let mut alone = repo
        .cargo("run --quiet --release --locked --package rekindle-engine --example bytes_alone --");
    alone.arg(&folder).args(sizes.map(Value::to_string));
    let alone = output(&mut alone)?.trim().parse()?;
    row(&said, &traced, limit_bytes, by, alone)
}

/// The line of a run, from what it printed, from the trace of its last step and from the seconds
/// that its bytes take alone.
fn row(said: &Value, traced: &Value, limit: u64, by: &str, disk: f64) -> Result<String> {
    let events = traced["traceEvents"].as_array().context("a trace has events")?;
    let seconds = |categories: &[&str]| -> f64 {
        let of = |event: &&Value| categories.iter().any(|category| event["cat"] == *category);
        let times = events.iter().filter(of).filter_map(|event| event["dur"].as_f64());
        times.sum::<f64>() / 1e6
    };
    let planned = &said["planned"];
    let number = |of: &Value, name: &str| of[name].as_f64().with_context(|| format!("no {name}"));
    let whole = |of: &Value, name: &str| of[name].as_u64().with_context(|| format!("no {name}"));
    let store = planned["store"].as_str().context("it moves nothing")?;
    let [out, back] = [whole(planned, "moved_out_bytes")?, whole(planned, "moved_in_bytes")?];
    let steps = said["steps"].as_array().context("it trained")?;
    let list = |name: &str| -> Result<String> {
        let cells = steps.iter().map(|step| Ok(format!("{}", number(step, name)?)));
        Ok(cells.collect::<Result<Vec<_>>>()?.join(" "))
    };
    let equal =
        steps.iter().all(|step| step["predicted_peak_bytes"] == step["measured_peak_bytes"]);
    ensure!(equal, "a measured peak is not the predicted one");
    let cells = [
        whole(planned, "budget_bytes")?.to_string(),
        whole(said, "plain_peak_bytes")?.to_string(),
        whole(planned, "arena_bytes")?.to_string(),
        whole(said, "highest_resident_bytes")?.to_string(),
        limit.to_string(),
        by.into(),
        store.replace(',', " "),
        format!("{:.3}", number(planned, "predicted_time_us")? / 1e6),
        format!("{:.1}", number(planned, "profile_seconds")?),
        format!("{:.1}", number(planned, "plan_seconds")?),
        format!("{:.3}", seconds(&["forward", "backward", "optimizer", "recompute"])),
        out.to_string(),
        back.to_string(),
        format!("{:.3}", seconds(&["out"])),
        format!("{:.3}", seconds(&["in"])),
        format!("{disk:.3}"),
        list("seconds")?,
        list("loss_bits")?,
    ];
    Ok(format!("{HEADER}\n{}\n", cells.join(",")))
}

struct Row {
    budget: u64,
    plain: u64,
    arena: u64,
    resident: u64,
    limit: u64,
    by: String,
    store: String,
    predicted: f64,
    prepared: [f64; 2],
    computed: f64,
    moved: [u64; 2],
    busy: [f64; 2],
    disk: f64,
    seconds: Vec<f64>,
    losses: String,
}

impl Row {
    fn parse(csv: &str) -> Result<Row> {
        let lines = lines(csv)?;
        let line = lines.first().context("a line below the head")?;
        Ok(Row {
            budget: line.get("budget_bytes")?,
            plain: line.get("plain_bytes")?,
            arena: line.get("arena_bytes")?,
            resident: line.get("resident_bytes")?,
            limit: line.get("limit_bytes")?,
            by: line.get("limit")?,
            store: line.get("store")?,
            predicted: line.get("predicted_seconds")?,
            prepared: [line.get("profile_seconds")?, line.get("plan_seconds")?],
            computed: line.get("computed")?,
            moved: [line.get("out_bytes")?, line.get("in_bytes")?],
            busy: [line.get("out_busy")?, line.get("in_busy")?],
            disk: line.get("disk_seconds")?,
            seconds: line.seconds("seconds")?,
            losses: line.get("losses")?,
        })
    }

    /// What the middle one of the steps took: steps against a disk differ by a tenth.
    fn middle(&self) -> f64 {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

fn claims(kept: &[(Case, Row)]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (case, row) in kept {
        let longest = row.computed.max(row.disk);
        let share = row.middle() / longest;
        let resident = row.resident.saturating_sub(row.budget);
        claims.extend([
            (row.arena <= row.budget, format!("{}: the arena is within the budget", case.0)),
            (
                resident <= BESIDE,
                format!(
                    "{}: {:.1} MiB resident beside the budget, of 64",
                    case.0,
                    mebibytes(resident)
                ),
            ),
            (
                share <= MOST,
                format!(
                    "{}: the middle step took {share:.2} of the longer of computation and what its \
                     bytes take alone, of at most {MOST}",
                    case.0
                ),
            ),
        ]);
    }
    if let [(_, one), (_, other)] = kept {
        claims.push((one.losses == other.losses, "both budgets give the same bits".into()));
    }
    claims
}
