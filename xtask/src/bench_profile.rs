//! `cargo xtask bench profile`: what profiling costs, and whether its numbers add up.
//!
//! Runs the example `cost` of `crates/profile` for each case. It compares the sum of the nodes' times with the whole
//! step measured without the profiler, and the time of profiling with as many plain steps, and fails beyond its bounds.

use anyhow::Result;

use crate::repo::{Repo, show};

/// Model and batch size.
const CASES: [(&str, &str); 2] = [("resnet152", "4"), ("bert-base", "8")];

/// Runs all cases.
pub(crate) fn run(repo: &Repo) -> Result<()> {
    for (model, batch) in CASES {
        let mut example =
            repo.cargo("run --release --locked --package remat-profile --example cost --");
        show(example.args([model, batch]))?;
    }
    Ok(())
}
