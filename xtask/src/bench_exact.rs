//! `cargo xtask bench exact [CASE…]`: the planner beside a general solver on small random layered
//! graphs, archived under `bench/runs`.
//!
//! The solver is OR-tools' CP-SAT (`python/bench/exact_plans.py`), with [`SECONDS`] for each case.
//! Our plans are made by the command line tool with the default effort.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::archive::{Archive, Case, Claim, check_names, lines, list};
use crate::bench_plan::layered::layered;
use crate::bench_plan::tool;
use crate::python;
use crate::repo::{Repo, output, show};

/// Names of cases: nodes, seed, and budget in percent of the plain peak.
const CASES: [Case; 9] = [
    ("20-1-80", "layered"),
    ("20-1-65", "layered"),
    ("30-1-80", "layered"),
    ("30-1-65", "layered"),
    ("50-1-80", "layered"),
    ("50-1-70", "layered"),
    ("50-2-70", "layered"),
    ("100-1-80", "layered"),
    ("100-1-70", "layered"),
];

/// Seconds that the solver has for a case.
const SECONDS: u32 = 150;

/// What the solver needs, and where it is installed.
const REQUIREMENTS: &str = "python/bench/exact_requirements.txt";
const LIBRARIES: &str = "target/exact";

const HEAD: &str = "overhead,bound,seconds,solver_overhead,solver_bound,solver_status,\
                    solver_seconds";

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    check_names(names, &CASES.map(|case| case.0))?;
    show(&mut repo.cargo("build --release -p rekindle-cli"))?;
    let interpreter = python::interpreter(repo)?;
    let libraries = python::libraries(repo, &interpreter, REQUIREMENTS, LIBRARIES)?;
    let archive = Archive::open(repo, "exact")?;
    let measure = |case: &Case| row(repo, &interpreter, &libraries, case.0);
    let results = archive.cases(&CASES, names, measure, |_, csv| parse(csv))?;
    let claims = claims(&results);
    let line = |(case, row): &(Case, Row)| {
        let show = |x: Option<f64>| x.map_or("–".into(), |x| format!("{:.2}", x.max(0.0)));
        format!(
            "| {} | {} | {} | {:.1} | {} | {:.2} | {} | {:.0} |\n",
            case.0,
            show(row.overhead),
            show(row.bound),
            row.seconds,
            show(row.solver_overhead),
            row.solver_bound.max(0.0),
            row.solver_status,
            row.solver_seconds
        )
    };
    let table: String = results.iter().map(line).collect();
    let text = format!(
        "# The planner beside a general solver\n\n\
         Command `cargo xtask bench exact`, {}. Random layered graphs: nodes, seed, budget in \
         percent of the plain peak. Overheads and bounds in percent of the plain step's time. \
         The solver is OR-tools' CP-SAT on two threads with at most {SECONDS} s for a case; in \
         its model a node runs twice at most, and its bound is one for such plans.\n\n{}\n\
         | case | ours | our bound | s | CP-SAT | its bound | status | s |\n\
         |---|---|---|---|---|---|---|---|\n{table}",
        archive.cases_made_on(&CASES)?,
        list(&claims),
    );
    archive.conclude(&text, &claims)
}

struct Row {
    overhead: Option<f64>,
    bound: Option<f64>,
    seconds: f64,
    solver_overhead: Option<f64>,
    solver_bound: f64,
    solver_status: String,
    solver_seconds: f64,
}

/// Plans a case and has it solved.
fn row(repo: &Repo, interpreter: &Path, libraries: &Path, name: &str) -> Result<String> {
    let numbers: Vec<u64> = name.split('-').map(str::parse).collect::<Result<_, _>>()?;
    let [nodes, seed, share] = numbers[..] else {
        unreachable!("every name has three numbers");
    };
    let place = std::env::temp_dir().join(format!("rekindle-exact-{}", std::process::id()));
    let file = |extension: &str| -> PathBuf { place.with_extension(extension) };
    std::fs::write(file("graph.json"), layered(nodes as usize, seed))?;
    let tool = repo.target().join("release/rekindle");
    let budget = format!("{share}%");
    let words = ["--budget", &budget];
    let planned = tool::plan(&tool, &file("graph.json"), &file("plan.json"), &words)?;
    ensure!(planned.status.success(), "{name}: {}", planned.stderr);
    let said: Value = serde_json::from_slice(&planned.stdout)?;
    let number = |key: &str| said[key].as_f64().with_context(|| format!("no {key}"));
    let percent =
        |time: f64| Ok::<_, anyhow::Error>(100.0 * (time / number("plain_time_us")? - 1.0));
    let bytes = said["budget_bytes"].as_u64().context("no budget")?;
    let mut solve = repo.command(interpreter);
    solve.arg("python/bench/exact_plans.py").arg(file("graph.json"));
    solve.args([bytes.to_string(), SECONDS.to_string()]).env("PYTHONPATH", libraries);
    let solved = output(&mut solve)?;
    let solved = solved.lines().nth(1).context("the solver said nothing")?;
    for extension in ["graph.json", "plan.json"] {
        std::fs::remove_file(file(extension))?;
    }
    Ok(format!(
        "{HEAD}\n{:.4},{:.4},{:.2},{solved}\n",
        percent(number("time_us")?)?,
        percent(number("lower_bound_us")?)?,
        planned.seconds
    ))
}

fn parse(csv: &str) -> Result<Row> {
    let lines = lines(csv)?;
    let line = lines.first().context("an empty table")?;
    Ok(Row {
        overhead: line.optional("overhead")?,
        bound: line.optional("bound")?,
        seconds: line.get("seconds")?,
        solver_overhead: line.optional("solver_overhead")?,
        solver_bound: line.get("solver_bound")?,
        solver_status: line.get("solver_status")?,
        solver_seconds: line.get("solver_seconds")?,
    })
}

/// That no plan of the solver is faster than ours, and none below our bound.
fn claims(results: &[(Case, Row)]) -> Vec<Claim> {
    let name = |which: &dyn Fn(&Row) -> bool| -> Vec<&str> {
        results.iter().filter(|(_, row)| which(row)).map(|(case, _)| case.0).collect()
    };
    let faster = name(&|r| r.solver_overhead.zip(r.overhead).is_some_and(|(s, o)| s < o - 1e-3));
    let below = name(&|r| r.solver_overhead.zip(r.bound).is_some_and(|(s, b)| s < b - 1e-3));
    let proved = name(&|r| r.solver_status == "OPTIMAL");
    vec![
        (
            faster.is_empty(),
            format!(
                "the solver has no faster plan in any of {} cases ({} of them proved to be the \
                 fastest with two runs of a node); faster: {faster:?}",
                results.len(),
                proved.len()
            ),
        ),
        (below.is_empty(), format!("no plan of the solver is below our bound; below: {below:?}")),
    ]
}
