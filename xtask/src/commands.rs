//! Every `rekindle` verb that the documents name answers to `--help`.
//!
//! A command is a code span or a fenced line that starts with `rekindle` or with `cargo run
//! --release --`. The fenced commands of the guide are run as well, in their order, in a folder of
//! their own; a comment may name the exit code that is expected.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::markdown::{code, documents};
use crate::repo::{Repo, show};

/// Builds the tool and fails with every verb that it does not know.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let mut verbs = BTreeMap::new();
    for document in documents(repo)? {
        for piece in code(&repo.read(&document)?) {
            if let Some(verb) = verb_of(&piece.text) {
                verbs
                    .entry(verb.to_string())
                    .or_insert(format!("{document}:{}", piece.line));
            }
        }
    }
    show(&mut repo.cargo("build --quiet --package rekindle-cli --locked"))?;
    let mut unknown = Vec::new();
    for (verb, place) in &verbs {
        let mut command = repo.cargo("run --quiet --package rekindle-cli --locked --");
        let answer = command.args([verb.as_str(), "--help"]).output()?;
        if !answer.status.success() || answer.stdout.is_empty() {
            unknown.push(format!("{place}: there is no `rekindle {verb}`"));
        }
    }
    if !unknown.is_empty() {
        bail!("{}", unknown.join("\n"));
    }
    run_guide(repo)
}

/// Its commands are really run.
const GUIDE: &str = "docs/guide.md";

fn run_guide(repo: &Repo) -> Result<()> {
    let binary = std::fs::canonicalize(repo.path("target/debug/rekindle"))
        .context("the tool was built, but is not in target/debug")?;
    let folder = std::env::temp_dir().join(format!("rekindle-guide-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let steps = guide_commands(&repo.read(GUIDE)?);
    let ran = steps
        .iter()
        .try_for_each(|step| run_step(&binary, &folder, step));
    std::fs::remove_dir_all(&folder)?;
    ran
}

/// A command of the guide.
#[derive(Debug, PartialEq)]
struct GuideCommand {
    /// Counted from 1.
    line: usize,
    words: Vec<String>,
    /// The exit code.
    code: i32,
}

/// The fenced lines that start with `rekindle`.
fn guide_commands(text: &str) -> Vec<GuideCommand> {
    let mut fenced = false;
    let mut commands = Vec::new();
    for (index, content) in text.lines().enumerate() {
        if content.starts_with("```") {
            fenced = !fenced;
        }
        let Some(rest) = content.strip_prefix("rekindle ").filter(|_| fenced) else {
            continue;
        };
        let (words, comment) = rest.split_once(" #").unwrap_or((rest, ""));
        let code = comment.trim().strip_prefix("exit code ");
        commands.push(GuideCommand {
            line: index + 1,
            words: words.split_whitespace().map(String::from).collect(),
            code: code.and_then(|code| code.parse().ok()).unwrap_or(0),
        });
    }
    commands
}

fn run_step(binary: &Path, folder: &Path, step: &GuideCommand) -> Result<()> {
    let mut command = Command::new(binary);
    let ran = command.args(&step.words).current_dir(folder).output()?;
    ensure!(
        ran.status.code() == Some(step.code),
        "{GUIDE}:{}: `rekindle {}` ended with {}, not {}\n{}",
        step.line,
        step.words.join(" "),
        ran.status,
        step.code,
        String::from_utf8_lossy(&ran.stderr)
    );
    Ok(())
}

/// The verb of a `rekindle` command line, if it is one: capitals stand for any verb, a dash starts
/// a flag.
fn verb_of(line: &str) -> Option<&str> {
    let rest = line
        .strip_prefix("rekindle ")
        .or_else(|| line.strip_prefix("cargo run --release -- "))?;
    let verb = rest.split_whitespace().next()?;
    verb.chars()
        .all(|c| c.is_ascii_lowercase() || c == '-')
        .then_some(verb)
        .filter(|v| !v.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_found_in_both_forms() {
        assert_eq!(
            verb_of("rekindle profile resnet152 --batch-size 4"),
            Some("profile")
        );
        assert_eq!(verb_of("cargo run --release -- demo"), Some("demo"));
    }

    #[test]
    fn guide_commands_stand_in_fences_and_may_name_a_code() {
        let text = "rekindle models\n```sh\nrekindle models\nls\nrekindle run mlp --plain  # exit code 3\n```\n`rekindle plan`";
        let found = guide_commands(text);
        let lines: Vec<(usize, i32)> = found.iter().map(|c| (c.line, c.code)).collect();
        assert_eq!(lines, [(3, 0), (5, 3)]);
        assert_eq!(found[1].words, ["run", "mlp", "--plain"]);
    }

    #[test]
    fn flags_placeholders_and_other_commands_are_no_verbs() {
        assert_eq!(verb_of("rekindle --help"), None);
        assert_eq!(verb_of("rekindle VERB"), None);
        assert_eq!(verb_of("cargo test"), None);
    }
}
