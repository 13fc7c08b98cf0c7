//! `cargo xtask bench analysis [PART…]`: everything that `docs/analysis.md` shows.
//!
//! `profiles` profiles the reference models at several batch sizes and copies the pictures that the
//! document names to `docs/figures`; memory is exact, so one measured step is enough. `compare` is
//! `cargo xtask bench compare`, which draws the other pictures.

use anyhow::{Context as _, Result};

use crate::archive::{check_names, is_wanted};
use crate::bench_compare;
use crate::repo::{Repo, show};

const PARTS: [&str; 2] = ["profiles", "compare"];

/// A model, and the rest of its `rekindle profile`.
const PROFILES: [(&str, &str); 2] = [
    ("resnet152", "--batch-sizes 4,8,16,32,64 --optimizer sgd"),
    ("bert-base", "--batch-sizes 4,8,16,32"),
];
/// The pictures of a profile that the document shows: what the peak is made of, and memory over the
/// step.
const PICTURES: [&str; 2] = ["breakdown", "memory"];
/// Where profiles are written; they are large and not kept.
const FOLDER: &str = "target/analysis";
/// Where the document's pictures are.
pub(crate) const FIGURES: &str = "docs/figures";

/// Runs the parts that `words` name, or all.
pub(crate) fn run(repo: &Repo, words: &[String]) -> Result<()> {
    check_names(words, &PARTS)?;
    let [profiled, compared] = PARTS.map(|part| is_wanted(words, part));
    if profiled {
        for (model, rest) in PROFILES {
            profile(repo, model, rest)?;
        }
    }
    match compared {
        true => bench_compare::run(repo, &[]),
        false => Ok(()),
    }
}

fn profile(repo: &Repo, model: &str, rest: &str) -> Result<()> {
    let mut rekindle =
        repo.cargo("run --quiet --release --locked --package rekindle-cli -- profile");
    rekindle.arg(model).args(rest.split(' '));
    show(rekindle.args(["--measured", "1", "--out", FOLDER]))?;
    for picture in PICTURES {
        let name = format!("{model}_{picture}.svg");
        let figure = repo.path(FIGURES).join(&name);
        std::fs::copy(repo.path(FOLDER).join(&name), &figure)
            .with_context(|| format!("cannot copy {name} to {FIGURES}"))?;
        println!("{FIGURES}/{name}");
    }
    Ok(())
}
