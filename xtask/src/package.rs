//! Every crate that is not for the tests alone can be published: it is packed as for the registry,
//! says what a registry shows, and what was packed builds by itself.
//!
//! `cargo package` would build each crate with all below it anew; the packages are unpacked into
//! one workspace instead and checked there. Nothing is downloaded, nothing is published.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::repo::{Repo, show};

/// Where cargo leaves the packages, and where they are tried.
const PACKAGES: &str = "target/package";
const TRIAL: &str = "target/package/trial";

/// Every package holds these.
const FILES: [&str; 4] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "src"];
/// Every manifest has these.
const FIELDS: [&str; 8] = [
    "description",
    "keywords",
    "categories",
    "documentation",
    "repository",
    "readme",
    "license",
    "rust-version",
];

/// Packs every crate and fails with the first that lacks something.
pub(crate) fn check(repo: &Repo) -> Result<()> {
    let packages = repo.path(PACKAGES);
    if packages.exists() {
        std::fs::remove_dir_all(&packages)?;
    }
    show(&mut repo.cargo(
        "package --quiet --workspace --exclude xtask --exclude rekindle-soak --no-verify \
         --offline --allow-dirty",
    ))?;
    let trial = repo.path(TRIAL);
    std::fs::create_dir_all(&trial)?;
    for entry in std::fs::read_dir(&packages)? {
        let package = entry?.path();
        if package.extension().is_some_and(|extension| extension == "crate") {
            let mut tar = repo.command("tar");
            show(tar.arg("--extract").arg("--file").arg(&package).arg("--directory").arg(&trial))?;
        }
    }
    let mut patches = String::new();
    for entry in std::fs::read_dir(&trial)? {
        let folder = entry?.path();
        complete(&folder).with_context(|| format!("{} is not complete", folder.display()))?;
        let folder = folder.file_name().unwrap_or_default().to_string_lossy();
        let name = folder.rsplit_once('-').map_or(&*folder, |(name, _)| name);
        patches += &format!("{name} = {{ path = \"{folder}\" }}\n");
    }
    // With the same profiles the crates from the registry are built already.
    let manifest = repo.read("Cargo.toml")?;
    let profiles = manifest.find("[profile").map_or("", |at| &manifest[at..]);
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n\n\
         [patch.crates-io]\n{patches}\n{profiles}"
    );
    std::fs::write(trial.join("Cargo.toml"), manifest)?;
    std::fs::copy(repo.path("Cargo.lock"), trial.join("Cargo.lock"))?;
    let mut build = repo.cargo("check --quiet --workspace --offline --target-dir");
    show(build.arg(repo.path("target")).current_dir(&trial))
}

/// Whether a package holds what everybody expects of it.
fn complete(package: &Path) -> Result<()> {
    for file in FILES {
        ensure!(package.join(file).exists(), "there is no {file}");
    }
    let manifest = std::fs::read_to_string(package.join("Cargo.toml"))?;
    for field in FIELDS {
        let stands = |line: &str| line.starts_with(&format!("{field} = "));
        ensure!(manifest.lines().any(stands), "the manifest has no {field}");
    }
    Ok(())
}
