//! Every path, link and `cargo xtask` task that the documents name is there.
//!
//! A path is an inline code span of path characters that holds a slash or ends like a file. A
//! placeholder (`bench/runs/<date>`) is checked up to the folder before it. What a command makes is
//! not looked for.

use std::path::Path;

use anyhow::{Result, bail};

use crate::markdown::{Piece, code, documents, links};
use crate::repo::Repo;

/// What commands make at run time: a document may name it, a clone does not hold it.
const MADE: [&str; 3] = ["target", "rekindle-report", ".venv"];
/// Endings that make a word without a slash a file name.
const FILE_ENDINGS: [&str; 6] = [".md", ".toml", ".lock", ".rs", ".py", ".txt"];

/// Fails with every name that leads nowhere.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let mut missing = Vec::new();
    for document in documents(repo)? {
        let text = repo.read(&document)?;
        let exists = |path: &str| is_there(repo, &document, path);
        for Piece { line, text } in wrong_names(&text, exists) {
            missing.push(format!("{document}:{line}: there is no `{text}`"));
        }
    }
    if missing.is_empty() {
        Ok(())
    } else {
        bail!("{}", missing.join("\n"))
    }
}

/// The pieces of `text` that name a path for which `exists` is false, or a task that is none.
fn wrong_names(text: &str, exists: impl Fn(&str) -> bool) -> Vec<Piece> {
    let lost = |path: Option<&str>| path.is_some_and(|path| !exists(path));
    let code = code(text)
        .into_iter()
        .filter(|piece| lost(path_of(&piece.text)) || !task_known(&piece.text));
    let links = links(text)
        .into_iter()
        .filter(|piece| lost(file_of(&piece.text)));
    code.chain(links).collect()
}

/// Whether `path` is in the checkout, seen from the root or from the folder of `document`.
fn is_there(repo: &Repo, document: &str, path: &str) -> bool {
    let folder = Path::new(document).parent().unwrap_or(Path::new(""));
    let made = MADE.iter().any(|made| Path::new(path).starts_with(made));
    made || repo.path(path).exists() || repo.path(folder.join(path)).exists()
}

/// The path that a code span names, if it names one.
fn path_of(span: &str) -> Option<&str> {
    let (path, cut) = match span.find(['<', '*']) {
        Some(at) => (&span[..span[..at].rfind('/')? + 1], true),
        None => (span, false),
    };
    let plain = path
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let inner = path.trim_end_matches('/').contains('/') || path.ends_with('/');
    let named = inner || cut || FILE_ENDINGS.iter().any(|ending| path.ends_with(ending));
    (plain && named && !path.starts_with('/') && !is_format_name(path)).then_some(path)
}

/// A versioned format such as `remat.graph/1` looks like a path and is none.
fn is_format_name(path: &str) -> bool {
    path.rsplit_once('/')
        .is_some_and(|(_, version)| version.parse::<u32>().is_ok())
}

/// The file that a link leads to, unless it leads out of the project or within the page.
fn file_of(link: &str) -> Option<&str> {
    let file = link.split('#').next().unwrap_or_default();
    let outside = link.contains("://") || link.starts_with("mailto:");
    (!file.is_empty() && !outside).then_some(file)
}

/// False for `cargo xtask X` where no task is called X.
fn task_known(span: &str) -> bool {
    match span
        .strip_prefix("cargo xtask ")
        .and_then(|rest| rest.split_whitespace().next())
    {
        Some(name) => name == "TASK" || crate::TASKS.iter().any(|task| task.0 == name),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_names(text: &str, wrong: &[&str]) {
        let found = wrong_names(text, |path| path == "crates/graph" || path == "README.md");
        let found: Vec<&str> = found.iter().map(|piece| piece.text.as_str()).collect();
        assert_eq!(found, wrong);
    }

    #[test]
    fn paths_that_exist_pass() {
        check_names(
            "`crates/graph` `README.md` [a](README.md#b) [c](https://x.org/y)",
            &[],
        );
    }

    #[test]
    fn paths_that_do_not_exist_are_named() {
        check_names(
            "`crates/gone` [a](gone.md) `gone.rs`",
            &["crates/gone", "gone.rs", "gone.md"],
        );
    }

    #[test]
    fn placeholders_are_checked_up_to_their_folder() {
        assert_eq!(
            path_of("bench/runs/<date>-engine/raw.csv"),
            Some("bench/runs/")
        );
        assert_eq!(path_of("bench/runs/*"), Some("bench/runs/"));
    }

    #[test]
    fn words_that_are_no_paths_pass() {
        check_names(
            "`remat.graph/1` `Vec<u8>` `a + b / c` `plan` `/` `n/a b`",
            &[],
        );
    }

    #[test]
    fn tasks_must_exist() {
        check_names(
            "`cargo xtask test fmt` and `cargo xtask lost`",
            &["cargo xtask lost"],
        );
    }
}
