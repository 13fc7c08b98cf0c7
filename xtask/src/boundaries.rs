//! The walls between the crates, as ARCHITECTURE.md draws them: who may depend on whom, and which
//! crate alone may hold `unsafe`, threads and clocks.
//!
//! Dependencies come from `cargo tree` (normal and build edges: a test may use more). Words come
//! from the sources under `src`, without comments and literals.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};

use crate::repo::{Repo, output};
use crate::rust_source::{code_only, is_word};

/// A crate, and the crates of the workspace that it may reach, directly or not.
struct Reach {
    package: &'static str,
    allowed: &'static [&'static str],
}

/// Every crate of the workspace, in the order of the data.
const REACHES: [Reach; 14] = [
    Reach {
        package: "rekindle-graph",
        allowed: &[],
    },
    Reach {
        package: "rekindle-program",
        allowed: &["rekindle-graph"],
    },
    Reach {
        package: "rekindle-models",
        allowed: &["rekindle-graph", "rekindle-program"],
    },
    Reach {
        package: "rekindle-engine",
        allowed: &["rekindle-graph", "rekindle-program"],
    },
    Reach {
        package: "rekindle-profile",
        allowed: &["rekindle-engine", "rekindle-graph", "rekindle-program"],
    },
    Reach {
        package: "rekindle-plan",
        allowed: &["rekindle-graph", "rekindle-verify"],
    },
    Reach {
        package: "rekindle-rewrite",
        allowed: &["rekindle-graph"],
    },
    Reach {
        package: "rekindle-verify",
        allowed: &["rekindle-graph"],
    },
    Reach {
        package: "rekindle-report",
        allowed: &[],
    },
    Reach {
        package: "rekindle",
        allowed: &[
            "rekindle-engine",
            "rekindle-graph",
            "rekindle-models",
            "rekindle-plan",
            "rekindle-profile",
            "rekindle-program",
            "rekindle-rewrite",
            "rekindle-verify",
        ],
    },
    Reach {
        package: "rekindle-cli",
        allowed: &[
            "rekindle",
            "rekindle-engine",
            "rekindle-graph",
            "rekindle-models",
            "rekindle-plan",
            "rekindle-profile",
            "rekindle-program",
            "rekindle-report",
            "rekindle-rewrite",
            "rekindle-verify",
        ],
    },
    Reach {
        package: "rekindle-py",
        allowed: &[
            "rekindle-engine",
            "rekindle-graph",
            "rekindle-plan",
            "rekindle-profile",
            "rekindle-program",
            "rekindle-report",
            "rekindle-rewrite",
            "rekindle-verify",
        ],
    },
    Reach {
        package: "rekindle-soak",
        allowed: &[
            "rekindle-graph",
            "rekindle-plan",
            "rekindle-rewrite",
            "rekindle-verify",
        ],
    },
    Reach {
        package: "xtask",
        allowed: &[],
    },
];

/// A word of the language or the library that only some crates may use.
struct Reserved {
    word: &'static str,
    rooms: &'static [&'static str],
}

/// Times steps that take turns: the one file outside the engine with threads, of which one runs at
/// a time.
const TURNS: &str = "crates/rekindle/src/side_by_side.rs";
const CLOCK: &[&str] = &["crates/profile", "crates/cli", "crates/py", "xtask", TURNS];
const ENGINE: &[&str] = &["crates/engine"];
const THREADS: &[&str] = &["crates/engine", TURNS];
const RESERVED: [Reserved; 6] = [
    Reserved {
        word: "unsafe",
        rooms: ENGINE,
    },
    Reserved {
        word: "thread::spawn",
        rooms: THREADS,
    },
    Reserved {
        word: "thread::scope",
        rooms: THREADS,
    },
    Reserved {
        word: "thread::Builder",
        rooms: THREADS,
    },
    Reserved {
        word: "Instant",
        rooms: CLOCK,
    },
    Reserved {
        word: "SystemTime",
        rooms: CLOCK,
    },
];

/// Fails with every wall that is broken.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let mut broken = without_entry(&members(repo)?);
    for reach in &REACHES {
        let reached = workspace_dependencies(repo, reach.package)?;
        for package in reached
            .iter()
            .filter(|name| !reach.allowed.contains(&name.as_str()))
        {
            broken.push(format!("{} must not depend on {package}", reach.package));
        }
    }
    for folder in ["crates", "xtask"] {
        for file in repo.files(folder, "rs")? {
            if file.components().any(|part| part.as_os_str() == "src") {
                broken.extend(misused_words(&file, &repo.read(&file)?));
            }
        }
    }
    if broken.is_empty() {
        Ok(())
    } else {
        bail!("{}", broken.join("\n"))
    }
}

/// All packages of the workspace.
fn members(repo: &Repo) -> Result<BTreeSet<String>> {
    let tree =
        output(&mut repo.cargo("tree --locked --workspace --depth 0 --prefix none --format {p}"))?;
    Ok(names(&tree).map(String::from).collect())
}

/// A new crate gets its wall when it is made.
fn without_entry(members: &BTreeSet<String>) -> Vec<String> {
    let has_entry = |name: &str| REACHES.iter().any(|reach| reach.package == name);
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
    tree.lines()
        .filter_map(|line| line.split_whitespace().next())
}

/// The reserved words that `file` uses although it is in none of their rooms.
fn misused_words(file: &Path, source: &str) -> Vec<String> {
    let code = code_only(source);
    let outside = RESERVED
        .iter()
        .filter(|r| !r.rooms.iter().any(|room| file.starts_with(room)));
    let mut misused = Vec::new();
    for reserved in outside {
        for (number, line) in code.lines().enumerate() {
            if has_word(line, reserved.word) {
                misused.push(format!(
                    "{}:{}: `{}` belongs to {} alone",
                    file.display(),
                    number + 1,
                    reserved.word,
                    reserved.rooms.join(", ")
                ));
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
    fn a_reserved_word_is_found_with_its_line() {
        let source = "fn f() {}\nuse std::time::Instant;\n";
        let found = misused_words(Path::new("crates/plan/src/lib.rs"), source);
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("crates/plan/src/lib.rs:2: `Instant`"),
            "{}",
            found[0]
        );
    }

    #[test]
    fn a_reserved_word_is_free_in_its_room() {
        let source = "unsafe fn f() {}";
        assert!(misused_words(Path::new("crates/engine/src/lib.rs"), source).is_empty());
        assert_eq!(
            misused_words(Path::new("crates/graph/src/lib.rs"), source).len(),
            1
        );
    }

    #[test]
    fn comments_and_longer_words_are_free() {
        let source = "// unsafe\n#![deny(unsafe_code)]\nstruct Instantaneous;\n";
        assert!(misused_words(Path::new("crates/graph/src/lib.rs"), source).is_empty());
    }
}
