//! Where a benchmark's numbers are kept: `bench/runs/DATE-NAME`, with what they were measured on.

use std::path::PathBuf;

use anyhow::Result;

use crate::repo::{Repo, output};

/// The folder of one benchmark on one day.
pub(crate) struct Archive {
    /// Relative to the root, for a person.
    pub(crate) folder: String,
    path: PathBuf,
    /// `at commit …, on CPU with N cores`.
    pub(crate) made_on: String,
}

impl Archive {
    /// Opens today's folder of the benchmark `name`; makes it if it is not there.
    pub(crate) fn open(repo: &Repo, name: &str) -> Result<Archive> {
        let date = output(repo.command("date").args(["-u", "+%Y-%m-%d"]))?;
        let commit = output(repo.command("git").args(["rev-parse", "--short", "HEAD"]))?;
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name"));
        let cpu = cpu
            .unwrap_or("an unknown processor")
            .trim_start_matches(['\t', ' ', ':']);
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let folder = format!("bench/runs/{}-{name}", date.trim());
        let path = repo.path(&folder);
        std::fs::create_dir_all(&path)?;
        Ok(Archive {
            folder,
            path,
            made_on: format!("at commit {}, on {cpu} with {cores} cores", commit.trim()),
        })
    }

    /// Writes a file of the folder.
    pub(crate) fn write(&self, file: &str, text: &str) -> Result<()> {
        Ok(std::fs::write(self.path.join(file), text)?)
    }

    /// The text of a file of the folder; nothing if it is not there.
    pub(crate) fn read(&self, file: &str) -> Result<Option<String>> {
        let path = self.path.join(file);
        Ok(match path.exists() {
            true => Some(std::fs::read_to_string(path)?),
            false => None,
        })
    }
}

/// `holds` or `FAILS`, before what was claimed.
pub(crate) fn verdict(holds: bool) -> &'static str {
    match holds {
        true => "holds",
        false => "FAILS",
    }
}
