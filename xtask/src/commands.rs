//! Every `remat` verb that the documents name answers to `--help`.
//!
//! A command is a code span or a fenced line that starts with `remat` or with `cargo run --release --`.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

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
    show(&mut repo.cargo("build --quiet --package remat-cli --locked"))?;
    let mut unknown = Vec::new();
    for (verb, place) in &verbs {
        let mut command = repo.cargo("run --quiet --package remat-cli --locked --");
        let answer = command.args([verb.as_str(), "--help"]).output()?;
        if !answer.status.success() || answer.stdout.is_empty() {
            unknown.push(format!("{place}: there is no `remat {verb}`"));
        }
    }
    if unknown.is_empty() {
        Ok(())
    } else {
        bail!("{}", unknown.join("\n"))
    }
}

/// The verb of a `remat` command line, if it is one: capitals stand for any verb, a dash starts a flag.
fn verb_of(line: &str) -> Option<&str> {
    let rest = line
        .strip_prefix("remat ")
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
            verb_of("remat profile resnet152 --batch-size 4"),
            Some("profile")
        );
        assert_eq!(verb_of("cargo run --release -- demo"), Some("demo"));
    }

    #[test]
    fn flags_placeholders_and_other_commands_are_no_verbs() {
        assert_eq!(verb_of("remat --help"), None);
        assert_eq!(verb_of("remat VERB"), None);
        assert_eq!(verb_of("cargo test"), None);
    }
}
