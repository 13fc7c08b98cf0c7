//! Every path, link, function and `cargo xtask` task that the documents name is there, every crate
//! of others has its reason, and no line of code or text is longer than a screen is wide.
//!
//! A path is an inline code span of path characters that holds a slash or ends like a file. A
//! placeholder (`bench/runs/<date>`) is checked up to the folder before it. What a command makes is
//! not looked for. A function is a span `path::name`: the file at `path` defines `name`.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::markdown::{Piece, code, documents, links};
use crate::repo::Repo;
use crate::rust_source::{code_only, is_word};

/// What commands make at run time: a document may name it, a clone does not hold it.
const MADE: [&str; 3] = ["target", "rekindle-report", ".venv"];
/// Endings that make a word without a slash a file name.
const FILE_ENDINGS: [&str; 6] = [".md", ".toml", ".lock", ".rs", ".py", ".txt"];

/// Folders of the checkout with code or text, and how the files in them end. Archives stay as they
/// were measured.
const FOLDERS: [&str; 5] = ["crates", "xtask", "python", "docs", "corpus"];
const ENDINGS: [&str; 7] = ["rs", "py", "pyi", "mjs", "js", "css", "md"];
/// The most characters of a line.
const COLUMNS: usize = 100;

/// Fails with every name that leads nowhere, and every line that is too long.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let mut wrong = Vec::new();
    let documents = documents(repo)?;
    for document in &documents {
        let text = repo.read(document)?;
        let exists = |path: &str| is_there(repo, document, path);
        for Piece { line, text } in wrong_names(&text, exists) {
            wrong.push(format!("{document}:{line}: there is no `{text}`"));
        }
        for Piece { line, text } in code(&text) {
            if place_of(&text).is_some_and(|(path, name)| !defines(repo, path, name)) {
                wrong.push(format!("{document}:{line}: `{text}` is not defined there"));
            }
        }
        wrong.extend(long_lines(document, &text));
    }
    for (folder, ending) in FOLDERS.iter().flat_map(|f| ENDINGS.map(|e| (f, e))) {
        for file in repo.files(folder, ending)? {
            let file = file.to_string_lossy().into_owned();
            if !documents.contains(&file) {
                wrong.extend(long_lines(&file, &repo.read(&file)?));
            }
        }
    }
    let architecture = repo.read("ARCHITECTURE.md")?;
    for name in dependencies(&repo.read("Cargo.toml")?) {
        if !architecture.contains(&format!("`{name}`")) {
            wrong.push(format!("ARCHITECTURE.md: why `{name}` is there is not said"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// The crates of others that the workspace uses.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let section = manifest.split("\n[").find_map(|part| part.strip_prefix("workspace.dep"));
    let lines = section.unwrap_or_default().lines();
    let names = lines.filter_map(|line| line.split_once(" = "));
    names.map(|(name, _)| name).filter(|name| !name.starts_with("rekindle"))
}

/// The lines of `file` with too many characters. Tables and links of Markdown cannot be broken.
fn long_lines(file: &str, text: &str) -> Vec<String> {
    let whole =
        |line: &str| file.ends_with(".md") && (line.starts_with('|') || line.contains("]("));
    let long = |line: &str| line.chars().count() > COLUMNS && !whole(line);
    let lines = text.lines().enumerate().filter(|(_, line)| long(line));
    lines
        .map(|(index, _)| format!("{file}:{}: more than {COLUMNS} characters", index + 1))
        .collect()
}

/// The file and the name in it of a span `path::name`; of `path::Type::method` the method.
fn place_of(span: &str) -> Option<(&str, &str)> {
    let (path, names) = span.split_once("::")?;
    let is_source = path.contains('/') && (path.ends_with(".rs") || path.ends_with(".py"));
    is_source.then(|| (path, names.rsplit("::").next().unwrap_or(names)))
}

/// Whether the file at `path` defines `name`.
fn defines(repo: &Repo, path: &str, name: &str) -> bool {
    const KEYWORDS: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "def", "class"];
    let source = repo.read(path).unwrap_or_default();
    let code = if path.ends_with(".rs") { code_only(&source) } else { source };
    let words: Vec<&str> = code.split(|c| !is_word(c)).filter(|w| !w.is_empty()).collect();
    words.windows(2).any(|pair| KEYWORDS.contains(&pair[0]) && pair[1] == name)
}

/// The pieces of `text` that name a path for which `exists` is false, or a task that is none.
fn wrong_names(text: &str, exists: impl Fn(&str) -> bool) -> Vec<Piece> {
    let lost = |path: Option<&str>| path.is_some_and(|path| !exists(path));
    let code = code(text)
        .into_iter()
        .filter(|piece| lost(path_of(&piece.text)) || !task_known(&piece.text));
    let links = links(text).into_iter().filter(|piece| lost(file_of(&piece.text)));
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
    let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let inner = path.trim_end_matches('/').contains('/') || path.ends_with('/');
    let named = inner || cut || FILE_ENDINGS.iter().any(|ending| path.ends_with(ending));
    // A versioned format such as `remat.graph/1` looks like a path and is none.
    let format = path.rsplit_once('/').is_some_and(|(_, version)| version.parse::<u32>().is_ok());
    (plain && named && !path.starts_with('/') && !format).then_some(path)
}

/// The file that a link leads to, unless it leads out of the project or within the page.
fn file_of(link: &str) -> Option<&str> {
    let file = link.split('#').next().unwrap_or_default();
    let outside = link.contains("://") || link.starts_with("mailto:");
    (!file.is_empty() && !outside).then_some(file)
}

/// False for `cargo xtask X` where no task is called X.
fn task_known(span: &str) -> bool {
    match span.strip_prefix("cargo xtask ").and_then(|rest| rest.split_whitespace().next()) {
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
    fn paths_and_tasks_must_exist() {
        check_names("`crates/graph` `README.md` [a](README.md#b) [c](https://x.org/y)", &[]);
        check_names("`crates/gone` [a](gone.md) `gone.rs`", &["crates/gone", "gone.rs", "gone.md"]);
        // Words that are no paths.
        check_names("`remat.graph/1` `Vec<u8>` `a + b / c` `plan` `/` `n/a b`", &[]);
        check_names("`cargo xtask test fmt` and `cargo xtask lost`", &["cargo xtask lost"]);
    }

    #[test]
    fn a_place_is_a_file_and_a_name_in_it() {
        let place = place_of("crates/plan/src/lib.rs::Options::check");
        assert_eq!(place, Some(("crates/plan/src/lib.rs", "check")));
        assert_eq!(place_of("rekindle::fit"), None);
        let here = |name| defines(&Repo::here(), "xtask/src/documents.rs", name);
        assert!(here("place_of") && here("COLUMNS") && !here("gone"));
    }

    #[test]
    fn dependencies_are_those_of_others() {
        let manifest =
            "[workspace]\n[workspace.dependencies]\nrekindle = 1\ncsv = \"1\"\n[x]\ny = 1";
        assert_eq!(dependencies(manifest).collect::<Vec<_>>(), ["csv"]);
    }

    #[test]
    fn long_lines_are_named_unless_they_cannot_be_broken() {
        let long = "x".repeat(COLUMNS + 1);
        let text = format!("{}\n{long}\n| {long} |\n[{long}](a.md)\n", "é".repeat(COLUMNS));
        assert_eq!(long_lines("a.md", &text), ["a.md:2: more than 100 characters"]);
        assert_eq!(long_lines("a.rs", &text).len(), 3);
    }

    #[test]
    fn placeholders_are_checked_up_to_their_folder() {
        assert_eq!(path_of("bench/runs/<date>-engine/raw.csv"), Some("bench/runs/"));
        assert_eq!(path_of("bench/runs/*"), Some("bench/runs/"));
    }
}
