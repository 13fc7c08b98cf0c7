//! The walls between the crates, as ARCHITECTURE.md draws them: who may depend on whom, and which
//! crate alone may hold `unsafe`, threads and clocks.
//!
//! Dependencies come from `cargo tree` (normal and build edges: a test may use more). Words come
//! from the sources under `src`, without comments and literals.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};

use crate::repo::{Repo, output};
use crate::rust_source::{code_only, is_word};

/// Every crate of the workspace in the order of the data, and those of the workspace that it may
/// reach, directly or not.
const REACHES: [(&str, &[&str]); 18] = [
    ("rekindle-graph", &[]),
    ("rekindle-analysis", &["graph"]),
    ("rekindle-program", &["graph"]),
    ("rekindle-models", &["graph", "program"]),
    ("rekindle-data", &["graph", "program"]),
    ("rekindle-onnx", &["graph", "models", "program"]),
    ("rekindle-engine", &["graph", "program"]),
    ("rekindle-profile", &["analysis", "engine", "graph", "program"]),
    ("rekindle-plan", &["analysis", "graph", "verify"]),
    ("rekindle-allocator", &["analysis", "graph", "plan", "verify"]),
    ("rekindle-rewrite", &["graph"]),
    ("rekindle-verify", &["graph"]),
    ("rekindle-report", &["analysis", "graph"]),
    ("rekindle", &STAGES),
    ("rekindle-cli", &WITH_REPORT),
    ("rekindle-py", &IN_PYTHON),
    ("rekindle-soak", &["analysis", "graph", "plan", "rewrite", "verify"]),
    ("xtask", &[]),
];
const STAGES: [&str; 11] = [
    "analysis", "data", "engine", "graph", "models", "onnx", "plan", "profile", "program",
    "rewrite", "verify",
];
const WITH_REPORT: [&str; 14] = [
    "rekindle",
    "allocator",
    "analysis",
    "data",
    "engine",
    "graph",
    "models",
    "onnx",
    "plan",
    "profile",
    "program",
    "report",
    "rewrite",
    "verify",
];
/// The wheel plans and draws; it runs no kernel, so the engine is not in it.
const IN_PYTHON: [&str; 7] =
    ["allocator", "analysis", "graph", "plan", "report", "rewrite", "verify"];

/// Times steps that take turns: threads of which one runs at a time.
const TURNS: &str = "crates/rekindle/src/side_by_side.rs";
const CLOCK: &[&str] = &["crates/profile", "crates/cli", "crates/py", "xtask", TURNS];
/// Reads batches while a step computes: one thread, which hands over whole batches in their order.
const AHEAD: &str = "crates/data/src/ahead.rs";
const THREADS: &[&str] = &["crates/engine", TURNS, AHEAD];
/// Words of the language or the library, and the rooms in which alone they may stand.
const RESERVED: [(&str, &[&str]); 6] = [
    ("unsafe", &["crates/engine"]),
    ("thread::spawn", THREADS),
    ("thread::scope", THREADS),
    ("thread::Builder", THREADS),
    ("Instant", CLOCK),
    ("SystemTime", CLOCK),
];

/// Fails with every wall that is broken.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let mut broken = without_entry(&members(repo)?);
    for (package, allowed) in REACHES {
        for reached in workspace_dependencies(repo, package)? {
            let short = reached.strip_prefix("rekindle-").unwrap_or(&reached);
            if !allowed.contains(&short) {
                broken.push(format!("{package} must not depend on {reached}"));
            }
        }
    }
    for folder in ["crates", "xtask"] {
        for file in repo.files(folder, "rs")? {
            if file.components().any(|part| part.as_os_str() == "src") {
                broken.extend(misused_words(&file, &repo.read(&file)?));
            }
        }
    }
    ensure!(broken.is_empty(), "{}", broken.join("\n"));
    Ok(())
}

/// All packages of the workspace.
fn members(repo: &Repo) -> Result<BTreeSet<String>> {
    let tree =
        output(&mut repo.cargo("tree --locked --workspace --depth 0 --prefix none --format {p}"))?;
    Ok(names(&tree).map(String::from).collect())
}

/// A new crate gets its wall when it is made.
fn without_entry(members: &BTreeSet<String>) -> Vec<String> {
    let has_entry = |name: &str| REACHES.iter().any(|reach| reach.0 == name);
    let without = members.iter().filter(|name| !has_entry(name));
    without
        .map(|name| format!("{name}: add what it may reach to xtask/src/boundaries.rs"))
        .collect()
}

/// The packages of the workspace that `package` reaches, without itself.
fn workspace_dependencies(repo: &Repo, package: &str) -> Result<BTreeSet<String>> {
    let mut command = repo.cargo("tree --locked --edges normal,build --prefix none --format {p}");
    let tree = output(command.args(["--package", package]))?;
    let ours = names(&tree).filter(|name| name.starts_with("rekindle") && *name != package);
    Ok(ours.map(String::from).collect())
}

/// The first word of each line that has one: what `cargo tree` prints of a package's name.
fn names(tree: &str) -> impl Iterator<Item = &str> {
    tree.lines().filter_map(|line| line.split_whitespace().next())
}

/// The reserved words that `file` uses although it is in none of their rooms.
fn misused_words(file: &Path, source: &str) -> Vec<String> {
    let code = code_only(source);
    let is_in = |rooms: &[&str]| rooms.iter().any(|room| file.starts_with(room));
    let mut misused = Vec::new();
    for (word, rooms) in RESERVED.iter().filter(|reserved| !is_in(reserved.1)) {
        for (index, line) in code.lines().enumerate() {
            if has_word(line, word) {
                let (file, number, rooms) = (file.display(), index + 1, rooms.join(", "));
                misused.push(format!("{file}:{number}: `{word}` belongs to {rooms} alone"));
            }
        }
    }
    misused
}

/// Whether `word` stands in `line` with no letter, digit or underscore next to it.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_without_an_entry_is_named() {
        let members = ["rekindle", "rekindle-new", "xtask"].map(String::from);
        let found = without_entry(&members.into());
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("rekindle-new: "), "{}", found[0]);
    }

    #[test]
    fn a_reserved_word_is_found_outside_its_room() {
        let misused = |crate_name: &str, source: &str| {
            misused_words(&Path::new("crates").join(crate_name).join("src/lib.rs"), source)
        };
        let found = misused("plan", "fn f() {}\nuse std::time::Instant;\n");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/plan/src/lib.rs:2: `Instant`"), "{}", found[0]);
        assert!(misused("engine", "unsafe fn f() {}").is_empty());
        assert_eq!(misused("graph", "unsafe fn f() {}").len(), 1);
        // Comments and longer words are free.
        let source = "// unsafe\n#![deny(unsafe_code)]\nstruct Instantaneous;\n";
        assert!(misused("graph", source).is_empty());
    }
}
