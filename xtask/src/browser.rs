//! The report in a real browser: the tool makes one of a small network, and Chromium opens it.
//!
//! Debian's Chromium is installed with `apt-get` if there is none; `playwright-core`, which drives
//! it, goes to `target/browser`. The checks are in `crates/report/browser/report.mjs`; pictures of
//! the page are left beside it.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::repo::{Repo, show};

/// Where everything that this stage makes goes.
const FOLDER: &str = "target/browser";
/// The version that the checks were written with.
const DRIVER: &str = "playwright-core@1.65.0";
const CHECKS: &str = "crates/report/browser/report.mjs";
const BROWSER: &str = "/usr/bin/chromium";

/// The step that is shown: small, with numbered layers and dropout, and most of its memory in
/// activations.
const STEP: &str = "transformer-tiny --optimizer sgd";
const STEM: &str = "transformer-tiny_bs8";

/// A store that is fast enough to be worth it.
const STORE: &str = "--store out=10GB/s,in=10GB/s,latency=10us";

/// Makes a report, opens it, and fails with the first thing that is not as it should be.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    install(repo)?;
    let report = format!("{FOLDER}/report");
    let folder = repo.path(&report);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    make(repo, &report)?;
    let mut node = repo.command("node");
    node.arg(CHECKS).arg(format!("{report}/index.html"));
    show(node.args([&report, FOLDER, BROWSER]))
}

/// Every file that the report can show, by the commands that its user would type.
fn make(repo: &Repo, report: &str) -> Result<()> {
    let graph = format!("{report}/{STEM}.graph.json");
    let tool = repo.tool()?;
    for line in [
        format!(
            "profile {STEP} --batch-size 8 --warmup 1 --measured 3 --no-pictures --out {report}"
        ),
        format!("plan {graph} --budget 70% --effort 1 --out {report}/{STEM}.plan.json"),
        format!(
            "plan {graph} --budget 60% --effort 1 {STORE} --out {report}/{STEM}.moving.plan.json"
        ),
        format!(
            "frontier {graph} --points 5 --effort 0 {STORE} --out {report}/{STEM}.frontier.csv"
        ),
        format!(
            "compare {STEP} --batch-sizes 4,8 --budget 70% --effort 0 --steps 1 --check \
             --csv {report}/compare.csv"
        ),
        format!("report {report}"),
    ] {
        let mut rekindle = repo.command(&tool);
        rekindle.arg("--quiet").args(line.split_whitespace());
        show(rekindle.stdout(Stdio::null()))?;
    }
    Ok(())
}

fn install(repo: &Repo) -> Result<()> {
    for program in ["node", "npm"] {
        let mut version = repo.command(program);
        if !version.arg("--version").output().is_ok_and(|out| out.status.success()) {
            bail!("there is no `{program}`: install Node.js 18 or newer (Debian: nodejs, npm)");
        }
    }
    if !Path::new(BROWSER).exists() {
        eprintln!("installing chromium");
        let words = "install --yes --quiet --no-install-recommends chromium".split(' ');
        show(repo.command("apt-get").args(["update", "--quiet"]))
            .and_then(|()| show(repo.command("apt-get").args(words)))
            .context("cannot install chromium: run `apt-get install chromium` as root")?;
    }
    let driver = repo.path(FOLDER).join("node_modules/playwright-core");
    if !driver.exists() {
        std::fs::create_dir_all(repo.path(FOLDER))?;
        let words = "install --no-save --no-audit --no-fund --prefix".split(' ');
        show(repo.command("npm").args(words).args([FOLDER, DRIVER]))
            .context("cannot install playwright-core: is the npm registry within reach?")?;
    }
    Ok(())
}
