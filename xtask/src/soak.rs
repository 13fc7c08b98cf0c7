//! `cargo xtask soak`: plans ten thousand random graphs and checks everything that must hold, on
//! every core.

use anyhow::Result;

use crate::repo::{Repo, show};

/// Runs the soak at full length; the words go to it (`--graphs N --seed S --size N --processes N`).
pub(crate) fn run(repo: &Repo, words: &[String]) -> Result<()> {
    show(repo.cargo("run --release -p rekindle-soak --").args(words))
}
