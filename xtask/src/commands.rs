//! Every `rekindle` verb that the documents name answers to `--help`.
//!
//! A command is a code span or a fenced line that starts with `rekindle` or with `cargo run
//! --release --`. The fenced commands of the README and of the guide are run as well, in their
//! order, in a folder for each; a comment may name the exit code that is expected.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::markdown::{code, documents};
use crate::repo::Repo;

/// Builds the tool and fails with every verb that it does not know.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let mut verbs = BTreeMap::new();
    for document in documents(repo)? {
        for piece in code(&repo.read(&document)?) {
            if let Some(verb) = verb_of(&piece.text) {
                verbs.entry(verb.to_string()).or_insert(format!("{document}:{}", piece.line));
            }
        }
    }
    let tool = repo.tool()?;
    let mut unknown = Vec::new();
    for (verb, place) in &verbs {
        let answer = Command::new(&tool).args([verb, "--help"]).output()?;
        if !answer.status.success() || answer.stdout.is_empty() {
            unknown.push(format!("{place}: there is no `rekindle {verb}`"));
        }
    }
    ensure!(unknown.is_empty(), "{}", unknown.join("\n"));
    TRIED.iter().try_for_each(|document| try_commands(repo, &tool, document))
}

/// Their commands are really run.
const TRIED: [&str; 2] = ["README.md", "docs/guide.md"];

fn try_commands(repo: &Repo, tool: &Path, document: &str) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("rekindle-commands-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    write_data(&folder)?;
    let commands = fenced_commands(&repo.read(document)?);
    let ran = commands.iter().try_for_each(|command| try_command(tool, &folder, document, command));
    std::fs::remove_dir_all(&folder)?;
    ran
}

/// A small network that PyTorch exported.
const EXPORTED: &[u8] = include_bytes!("../../crates/onnx/tests/small.onnx");

/// What the guide's commands are trained on: pictures of two classes, some tokens, and a model.
fn write_data(folder: &Path) -> Result<()> {
    for (class, is_inside) in [
        ("disc", (|x, y| x * x + y * y < 36) as fn(i32, i32) -> bool),
        ("cross", |x, y| x.abs() < 2 || y.abs() < 2),
    ] {
        std::fs::create_dir_all(folder.join("images").join(class))?;
        for number in 0..20 {
            let pixel = |x: u32, y: u32| {
                let (dx, dy) = (number % 5 - 2, number / 5 - 2);
                let bright = is_inside(x as i32 - 8 + dx, y as i32 - 8 + dy);
                image::Luma([if bright { 200 } else { 20 }])
            };
            let path = folder.join(format!("images/{class}/{number:02}.png"));
            image::GrayImage::from_fn(16, 16, pixel).save(path)?;
        }
    }
    std::fs::write(folder.join("model.onnx"), EXPORTED)?;
    let tokens = (0..4000u32).flat_map(|i| ((i * i % 97) as u16).to_le_bytes());
    Ok(std::fs::write(folder.join("tokens.bin"), tokens.collect::<Vec<u8>>())?)
}

/// A command of a document.
struct Fenced {
    /// Counted from 1.
    line: usize,
    words: Vec<String>,
    /// The exit code.
    code: i32,
}

/// The fenced lines that start with `rekindle`, each with those that it is continued on by `\`.
fn fenced_commands(text: &str) -> Vec<Fenced> {
    let mut fenced = false;
    let mut commands = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((index, content)) = lines.next() {
        if content.starts_with("```") {
            fenced = !fenced;
        }
        let Some(rest) = content.strip_prefix("rekindle ").filter(|_| fenced) else {
            continue;
        };
        let mut whole = rest.to_owned();
        while let Some(begun) = whole.strip_suffix('\\') {
            whole = begun.to_owned() + lines.next().map_or("", |(_, more)| more);
        }
        let (words, comment) = whole.split_once(" #").unwrap_or((&whole, ""));
        let code = comment.trim().strip_prefix("exit code ");
        commands.push(Fenced {
            line: index + 1,
            words: words.split_whitespace().map(|word| word.replace('\'', "")).collect(),
            code: code.and_then(|code| code.parse().ok()).unwrap_or(0),
        });
    }
    commands
}

fn try_command(tool: &Path, folder: &Path, document: &str, step: &Fenced) -> Result<()> {
    let mut command = Command::new(tool);
    let ran = command.args(&step.words).current_dir(folder).output()?;
    ensure!(
        ran.status.code() == Some(step.code),
        "{document}:{}: `rekindle {}` ended with {}, not {}\n{}",
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
    let rest =
        line.strip_prefix("rekindle ").or_else(|| line.strip_prefix("cargo run --release -- "))?;
    let verb = rest.split_whitespace().next()?;
    let plain = verb.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    (plain && !verb.starts_with('-')).then_some(verb)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_found_in_both_forms_and_are_no_flags_or_placeholders() {
        assert_eq!(verb_of("rekindle profile resnet152 --batch-size 4"), Some("profile"));
        assert_eq!(verb_of("cargo run --release -- demo"), Some("demo"));
        assert_eq!(verb_of("rekindle --help"), None);
        assert_eq!(verb_of("rekindle VERB"), None);
        assert_eq!(verb_of("cargo test"), None);
    }

    #[test]
    fn commands_stand_in_fences_and_may_name_a_code() {
        let text = "rekindle models\n```sh\nrekindle models\nls\n\
                    rekindle run mlp \\\n  --plain  # exit code 3\n```\n`rekindle plan`";
        let found = fenced_commands(text);
        let lines: Vec<(usize, i32)> = found.iter().map(|c| (c.line, c.code)).collect();
        assert_eq!(lines, [(3, 0), (5, 3)]);
        assert_eq!(found[1].words, ["run", "mlp", "--plain"]);
    }
}
