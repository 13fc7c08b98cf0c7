//! The Python part of the tests, in a virtual environment that is made here.
//!
//! The package is built once, from its source distribution, and installed into a folder under
//! `target`, so that what is tested is what a user gets. `.venv` holds what
//! `python/requirements.txt` pins. A stamp beside it records the requirements that it was made
//! from: while they are unchanged it is used again, otherwise it is made anew. An interpreter named
//! in `REKINDLE_PYTHON` is used as it is, and nothing is installed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::repo::{Repo, show};

const REQUIREMENTS: &str = "python/requirements.txt";
const ENVIRONMENT: &str = ".venv";
/// Written last, so that an installation that broke off is not taken for a good one.
const STAMP: &str = ".venv/requirements.stamp";

/// Where the package is installed.
const PACKAGE: &str = "target/python";

/// Where the source distribution and its wheel are built, and where that wheel is tried.
const WHEELS: &str = "target/wheels";
const WHEEL_TRIAL: &str = "target/wheels/trial";
/// Imports the package, which must be the wheel's, with its native half and all that a page about
/// it shows.
const TRIAL: &str = "\
import importlib.metadata, rekindle
assert 'trial' in rekindle.__file__, rekindle.__file__
assert rekindle.parse_budget('3GiB') == 3 << 30
about = importlib.metadata.metadata('rekindle')
for name in 'Summary Keywords Author Classifier Requires-Python License-Expression'.split():
    assert about[name], f'the metadata have no {name}'
assert about.get_payload().startswith('# Rekindle'), 'the metadata have no readme'
assert len(about.get_all('License-File')) == 2, about.get_all('License-File')
assert len(about.get_all('Project-URL')) >= 3, about.get_all('Project-URL')
";

/// What the formatter and the types are checked by, and the longest line that is allowed.
const CHECKS: [&str; 4] = [
    "-m ruff format --check python",
    "-m ruff check --select E501 python",
    "-m mypy",
    "-m mypy.stubtest rekindle._native",
];

/// Half precision as PyTorch computes it here: some virtual processors name matrix units (AMX) that
/// the system does not let them use, and PyTorch then dies of an illegal instruction.
const HALF: &str = "\
import torch
with torch.autocast('cpu', dtype=torch.bfloat16):
    torch.nn.Linear(64, 64)(torch.randn(8, 64)).sum().backward()
";
/// Keeps PyTorch's kernels from those units.
const WITHOUT_MATRIX_UNITS: (&str, &str) = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16");

/// Installs the package, checks its format and types, and runs every test under `python/tests`.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let python = interpreter(repo)?;
    let package = wheel(repo, &python)?;
    let has_half = repo.command(&python).args(["-c", HALF]).output()?.status.success();
    let run = |words: &str| {
        let mut command = repo.command(&python);
        command.args(words.split(' ')).env("PYTHONPATH", &package);
        command
    };
    for words in CHECKS {
        show(&mut run(words))?;
    }
    let mut tests = run("-m unittest discover --start-directory python/tests");
    if !has_half {
        let (name, value) = WITHOUT_MATRIX_UNITS;
        eprintln!("PyTorch's half precision dies on this processor: {name}={value}");
        tests.env(name, value);
    }
    show(tests.env("ENGINE_PEER", engine_peer(repo, "dev")?))
}

/// Installs the package of this checkout as a user would, and gives the folder that Python must
/// know of.
pub(crate) fn package(repo: &Repo, python: &Path) -> Result<PathBuf> {
    let folder = repo.path(PACKAGE);
    // Maturin is among the requirements, so nothing is downloaded.
    install(repo, python, &folder, Path::new("."), "--no-build-isolation")
        .context("`pip install .` does not work")?;
    Ok(folder)
}

/// Builds a source distribution, and a wheel from it in a folder that knows nothing of the
/// checkout, as a packager would; then imports the wheel. Gives the folder that Python must know
/// of.
fn wheel(repo: &Repo, python: &Path) -> Result<PathBuf> {
    let wheels = repo.path(WHEELS);
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels)?;
    }
    let mut command = repo.command(python);
    command.args("-m maturin sdist --out".split(' '));
    show(command.arg(&wheels)).context("`maturin sdist` does not work")?;
    let source = only_file(&wheels, "tar.gz")?;
    let build = "-m pip wheel --quiet --disable-pip-version-check --no-input --no-deps \
        --no-build-isolation --no-index --wheel-dir .";
    let mut command = repo.command(python);
    command.args(build.split_whitespace()).arg(&source);
    // What is compiled of other crates is compiled once for this and for the checkout.
    command.env("CARGO_TARGET_DIR", repo.target());
    command.env("PATH", with_maturin(python)?);
    show(command.current_dir(&wheels)).context("no wheel can be built from the sdist")?;
    let built = only_file(&wheels, "whl")?;
    let trial = repo.path(WHEEL_TRIAL);
    install(repo, python, &trial, &built, "--no-index").context("the wheel cannot be installed")?;
    let mut command = repo.command(python);
    command.args(["-c", TRIAL]).env("PYTHONPATH", &trial);
    show(command.current_dir(&wheels)).context("the wheel does not work")?;
    Ok(trial)
}

/// The file in `folder` whose name has that ending.
fn only_file(folder: &Path, ending: &str) -> Result<PathBuf> {
    let files = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut files = files.iter().map(std::fs::DirEntry::path);
    let found = files.find(|path| path.to_string_lossy().ends_with(ending));
    found.with_context(|| format!("no .{ending} was made in {}", folder.display()))
}

/// `PATH` with the folder of the interpreter, where maturin is, also where its environment is not
/// the active one.
fn with_maturin(python: &Path) -> Result<std::ffi::OsString> {
    let beside = python.parent().map(Path::to_path_buf).unwrap_or_default();
    let known = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(beside).chain(std::env::split_paths(&known));
    Ok(std::env::join_paths(path)?)
}

/// Installs the package at `source` into an empty `folder`.
fn install(repo: &Repo, python: &Path, folder: &Path, source: &Path, option: &str) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    let install = "-m pip install --quiet --disable-pip-version-check --no-input --no-deps";
    let mut command = repo.command(python);
    command.args(install.split(' ')).arg(option).arg("--target");
    command.arg(folder).arg(source);
    show(command.env("PATH", with_maturin(python)?))
}

/// Builds the engine's side of the comparisons with a profile, and gives its path. Its kernels are
/// optimised in both: `dev` shares what the tests have built, `release` is for times.
pub(crate) fn engine_peer(repo: &Repo, profile: &str) -> Result<PathBuf> {
    let mut build = repo.cargo("build --quiet --locked --package rekindle --example engine_peer");
    show(build.args(["--profile", profile]))?;
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(repo.target().join(folder).join("examples/engine_peer"))
}

/// What models of public libraries need beside the requirements of the tests, and where it is
/// installed.
pub(crate) const MODEL_REQUIREMENTS: &str = "python/bench/requirements.txt";
const MODEL_LIBRARIES: &str = "target/zoo";

/// Where Python finds our package and the models of public libraries; installs what is missing.
pub(crate) fn path_with_models(repo: &Repo, interpreter: &Path) -> Result<OsString> {
    let package = package(repo, interpreter)?;
    let models = libraries(repo, interpreter, MODEL_REQUIREMENTS, MODEL_LIBRARIES)?;
    Ok(std::env::join_paths([package, models])?)
}

/// Installs what the file `requirements` lists into `folder`, once for each list; gives the folder
/// that Python must know of.
pub(crate) fn libraries(
    repo: &Repo,
    interpreter: &Path,
    requirements: &str,
    folder: &str,
) -> Result<PathBuf> {
    let (folder, wanted) = (repo.path(folder), repo.read(requirements)?);
    let stamp = folder.join("requirements.stamp");
    if std::fs::read_to_string(&stamp).unwrap_or_default() != wanted {
        let install = "-m pip install --quiet --disable-pip-version-check --no-input --no-deps \
            --upgrade --target";
        let mut command = repo.command(interpreter);
        command.args(install.split_whitespace()).arg(&folder);
        show(command.args(["--requirement", requirements]))
            .with_context(|| format!("cannot install what {requirements} lists"))?;
        std::fs::write(&stamp, wanted)?;
    }
    Ok(folder)
}

/// A Python that has the requirements; installs them first if need be.
pub(crate) fn interpreter(repo: &Repo) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("REKINDLE_PYTHON") {
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
    if !version.arg("--version").output().is_ok_and(|out| out.status.success()) {
        bail!("there is no `python3`: install Python 3.10 or newer, or set REKINDLE_PYTHON");
    }
    show(repo.command("python3").args(["-m", "venv", "--clear", ENVIRONMENT])).context(
        "cannot make a virtual environment: install the venv module (Debian: python3-venv)",
    )?;
    let install = "-m pip install --quiet --disable-pip-version-check --no-input --requirement";
    show(repo.command(python).args(install.split(' ')).arg(REQUIREMENTS))
        .context("cannot install the requirements: is the Python package index within reach?")
}
