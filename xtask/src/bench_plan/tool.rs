//! The command line tool as a user runs it, with the processor time and the memory that it takes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};

/// What the tool did.
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    /// Of the processor, so that other work on the machine does not count.
    pub(crate) seconds: f64,
    /// The most bytes that were resident.
    pub(crate) highest: u64,
}

/// How often the tool is looked at; the kernel counts its time in hundredths of a second.
const POLL: Duration = Duration::from_millis(10);

/// Runs `rekindle plan` on a graph and waits for it. The plan goes to `plan`.
pub(crate) fn plan(tool: &Path, graph: &Path, plan: &Path, words: &[&str]) -> Result<Output> {
    let said = plan.with_extension("stdout");
    let complained = plan.with_extension("stderr");
    let mut child = Command::new(tool)
        .arg("plan")
        .arg(graph)
        .args(["--json", "--out"])
        .arg(plan)
        .args(words)
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
        stderr: String::from_utf8_lossy(&std::fs::read(&complained)?).into_owned(),
        seconds,
        highest,
    };
    std::fs::remove_file(said)?;
    std::fs::remove_file(complained)?;
    Ok(output)
}

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

/// The `(N bytes)` in the first line of `text` that contains `what`.
pub(crate) fn bytes_in(text: &str, what: &str) -> Result<u64> {
    let line = text.lines().find(|l| l.contains(what));
    let number = line.and_then(|l| l.rsplit_once('('));
    let number = number.and_then(|(_, n)| n.strip_suffix(" bytes)"));
    let number = number.with_context(|| format!("no bytes for `{what}` in: {text}"))?;
    Ok(number.parse()?)
}
