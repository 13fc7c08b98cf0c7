//! The example of a crate outside the workspace builds and runs: what docs/models.md shows.
//!
//! It is copied to a folder under `target`, with the profiles of the workspace and its lock file,
//! so that nothing is built twice and nothing is downloaded.

use std::process::Stdio;

use anyhow::Result;

use crate::repo::{Repo, show};

const EXAMPLE: &str = "examples/own-model";
/// As deep below the root as the example, so that its paths lead to the same places.
const TRIAL: &str = "target/own-model";

/// Builds and runs the example.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let trial = repo.path(TRIAL);
    std::fs::create_dir_all(trial.join("src"))?;
    let manifest = repo.read("Cargo.toml")?;
    let profiles = manifest.find("[profile").map_or("", |at| &manifest[at..]);
    let own = repo.read(format!("{EXAMPLE}/Cargo.toml"))?;
    std::fs::write(trial.join("Cargo.toml"), format!("{own}\n{profiles}"))?;
    std::fs::copy(repo.path("Cargo.lock"), trial.join("Cargo.lock"))?;
    let source = repo.path(format!("{EXAMPLE}/src/main.rs"));
    std::fs::copy(source, trial.join("src/main.rs"))?;
    let mut run = repo.cargo("run --quiet --offline --target-dir");
    run.arg(repo.path("target")).current_dir(&trial);
    show(run.stdout(Stdio::null()))
}
