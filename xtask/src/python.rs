//! The Python part of the tests, in a virtual environment that is made here.
//!
//! `.venv` holds what `python/requirements.txt` pins. A stamp beside it records the requirements that it was
//! made from: while they are unchanged it is used again, otherwise it is made anew. An interpreter named in
//! `REMAT_PYTHON` is used as it is, and nothing is installed.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::repo::{Repo, show};

const REQUIREMENTS: &str = "python/requirements.txt";
const ENVIRONMENT: &str = ".venv";
/// Written last, so that an installation that broke off is not taken for a good one.
const STAMP: &str = ".venv/requirements.stamp";

/// Runs every test under `python/tests` against the optimised engine.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let python = interpreter(repo)?;
    let peer = engine_peer(repo)?;
    let mut tests = repo.command(python);
    tests.args("-m unittest discover --start-directory python/tests".split(' '));
    show(tests.env("ENGINE_PEER", peer))
}

/// Builds the engine's side of the comparisons, optimised, and gives its path.
pub(crate) fn engine_peer(repo: &Repo) -> Result<PathBuf> {
    show(
        &mut repo.cargo("build --quiet --release --locked --package remat --example engine_peer"),
    )?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into());
    Ok(repo.path(target).join("release/examples/engine_peer"))
}

/// A Python that has the requirements; installs them first if need be.
pub(crate) fn interpreter(repo: &Repo) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("REMAT_PYTHON") {
        return Ok(PathBuf::from(given));
    }
    let wanted = repo.read(REQUIREMENTS)?;
    let python = repo.path(ENVIRONMENT).join("bin/python");
    let made_from = std::fs::read_to_string(repo.path(STAMP)).unwrap_or_default();
    if !python.exists() || made_from != wanted {
        make_environment(repo, &python)?;
        std::fs::write(repo.path(STAMP), wanted)?;
    }
    Ok(python)
}

fn make_environment(repo: &Repo, python: &PathBuf) -> Result<()> {
    eprintln!("making {ENVIRONMENT} from {REQUIREMENTS} (about 6 GB, some minutes)");
    let mut version = repo.command("python3");
    if !version
        .arg("--version")
        .output()
        .is_ok_and(|out| out.status.success())
    {
        bail!("there is no `python3`: install Python 3.10 or newer, or set REMAT_PYTHON");
    }
    show(
        repo.command("python3")
            .args(["-m", "venv", "--clear", ENVIRONMENT]),
    )
    .context("cannot make a virtual environment: install the venv module (Debian: python3-venv)")?;
    let install = "-m pip install --quiet --disable-pip-version-check --no-input --requirement";
    show(
        repo.command(python)
            .args(install.split(' '))
            .arg(REQUIREMENTS),
    )
    .context("cannot install the requirements: is the Python package index within reach?")
}
