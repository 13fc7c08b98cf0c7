//! The checkout that the tasks work on: its root, its files, and commands run in it.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The root of the checkout. Every path that a task names is relative to it.
pub(crate) struct Repo {
    root: PathBuf,
    /// What tests have said that they did not run.
    pub(crate) not_run: RefCell<Vec<String>>,
}

/// Begins a line in which a test says what it did not run, and why.
const NOT_RUN: &str = "NOT RUN: ";

impl Repo {
    /// The checkout that this very program was built from.
    pub(crate) fn here() -> Repo {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root");
        Repo { root: root.to_path_buf(), not_run: RefCell::default() }
    }

    /// `relative` as a path that can be opened.
    pub(crate) fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// The text of a file of the checkout.
    pub(crate) fn read(&self, relative: impl AsRef<Path>) -> Result<String> {
        let path = self.path(relative);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// All files under `relative` that end in `.extension`, sorted, relative to the root.
    pub(crate) fn files(&self, relative: &str, extension: &str) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut folders = vec![self.path(relative)];
        while let Some(folder) = folders.pop() {
            if !folder.is_dir() {
                continue;
            }
            for entry in std::fs::read_dir(&folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension() == Some(OsStr::new(extension)) {
                    found.push(path.strip_prefix(&self.root)?.to_path_buf());
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// A command that will run in the root.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    /// Builds the command `rekindle` as the tests do, and gives its path.
    pub(crate) fn tool(&self) -> Result<PathBuf> {
        show(&mut self.cargo("build --quiet --package rekindle-cli --locked"))?;
        Ok(self.target().join("debug/rekindle"))
    }

    /// Where cargo builds.
    pub(crate) fn target(&self) -> PathBuf {
        self.path(std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into()))
    }

    /// Runs tests with their output shown, and remembers what they did not run.
    pub(crate) fn show_tests(&self, command: &mut Command) -> Result<()> {
        let shown = line(command);
        let tests = command.stderr(Stdio::piped()).spawn();
        let mut tests = tests.with_context(|| format!("cannot start `{shown}`"))?;
        let complaints = tests.stderr.take().context("no pipe from the tests")?;
        for complaint in BufReader::new(complaints).lines() {
            let complaint = complaint?;
            eprintln!("{complaint}");
            if complaint.starts_with(NOT_RUN) {
                self.not_run.borrow_mut().push(complaint);
            }
        }
        let status = tests.wait()?;
        ensure!(status.success(), "`{shown}` failed ({status})");
        Ok(())
    }

    /// The cargo that runs this task, with `arguments` separated by blanks.
    pub(crate) fn cargo(&self, arguments: &str) -> Command {
        let mut command = self.command(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        command.args(arguments.split_whitespace());
        command
    }
}

/// Runs `command` with its output shown, and fails when it fails.
pub(crate) fn show(command: &mut Command) -> Result<()> {
    let shown = line(command);
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    ensure!(status.success(), "`{shown}` failed ({status})");
    Ok(())
}

/// Runs `command` and gives what it printed; its complaints are shown.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = line(command);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("cannot start `{shown}`"))?;
    ensure!(output.status.success(), "`{shown}` failed ({})", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("`{shown}` did not print text"))
}

/// The command as a person would type it.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    let words = std::iter::once(program).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
