//! `--offload`: a folder on a disk to which tensors may be moved while a step runs.

use std::path::{Path, PathBuf};
use std::time::Instant;

use rekindle::{FitOptions, Offload, with_store};
use rekindle_engine::Layout;
use rekindle_graph::{Budget, Bytes, Micros, Rate, Store, parse_budget, typed_bytes};

use super::stages::Lines;
use crate::exit::UsageError;
use crate::output;

/// Whether and where to.
#[derive(clap::Args)]
#[command(next_help_heading = "Moving tensors to a disk")]
pub(crate) struct Offloading {
    /// Also move tensors to a file in this folder and back while the step computes, parameters and
    /// optimizer state among them; the file has no name, and is gone when the command ends
    #[arg(long, value_name = "DIR")]
    offload: Option<PathBuf>,
    /// The most that the file may take: 40GiB, 800MiB or a number of bytes [default: what the disk
    /// has free]
    #[arg(long, value_name = "BYTES", requires = "offload", value_parser = parse_limit)]
    offload_limit: Option<Bytes>,
}

/// A number of bytes; the signature is what `clap` wants.
fn parse_limit(text: &str) -> Result<Bytes, String> {
    match parse_budget(text)? {
        Budget::Bytes(bytes) => Ok(bytes),
        Budget::Share(_) => Err("is a share, but of what? Give it in bytes, such as 40GiB".into()),
    }
}

impl Offloading {
    pub(crate) fn is_wanted(&self) -> bool {
        self.offload.is_some()
    }

    /// Refuses a folder that cannot take a file, or has no room for it, before anything runs.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let Some(folder) = &self.offload else {
            return Ok(());
        };
        let name = folder.display();
        if !folder.is_dir() {
            let why = match folder.exists() {
                true => "it is no folder; name one on a disk",
                false => "there is no such folder; make it first, or name another",
            };
            return Err(UsageError(format!("cannot move tensors to {name}: {why}")).into());
        }
        output::try_to_write(&folder.join("file"))?;
        match (self.offload_limit, free_bytes(folder)) {
            (Some(limit), Some(free)) if limit > free => Err(UsageError(format!(
                "cannot move up to {limit} to {name}: the disk has {free} free; make room there, \
                 lower --offload-limit, or name a folder on another disk"
            ))
            .into()),
            _ => Ok(()),
        }
    }

    /// The options with a store in the folder, which is measured for storages such as those of this
    /// step; as they are without a folder.
    pub(crate) fn add(
        &self,
        options: FitOptions,
        step: &Layout,
        lines: &Lines,
    ) -> anyhow::Result<FitOptions> {
        let Some(folder) = &self.offload else {
            return Ok(options);
        };
        let limit = self.offload_limit.or_else(|| free_bytes(folder));
        let offload = Some(Offload { folder: folder.clone(), limit });
        let started = Instant::now();
        let mut options = with_store(&FitOptions { offload, ..options }, step.graph())?;
        options.plan.store = options.plan.store.map(rounded);
        if let Some(store) = options.plan.store {
            let (limit, took) = (self.offload_limit, started.elapsed().as_secs_f64());
            let text = store_text(folder, store, limit);
            lines.line("store", format!("{text} (measured in {took:.1} s)"));
        }
        Ok(options)
    }

    /// The flags as they are typed, each with a blank before it.
    pub(crate) fn words(&self) -> String {
        let folder = self.offload.as_ref().map(|f| format!(" --offload {}", f.display()));
        let limit = self.offload_limit.map(|l| format!(" --offload-limit {}", typed_bytes(l)));
        folder.unwrap_or_default() + &limit.unwrap_or_default()
    }
}

fn store_text(folder: &Path, store: Store, limit: Option<Bytes>) -> String {
    let Store { out_rate, in_rate, duplex, .. } = store;
    let ways = if duplex { "both ways at once" } else { "one way at a time" };
    let limit = limit.map_or_else(String::new, |limit| format!(", {limit} at most"));
    let folder = folder.display();
    format!("{folder}{limit}: {out_rate} out, {in_rate} in, {ways}")
}

/// Three digits: more of a measured number is noise, and a store is read by people, too.
fn rounded(store: Store) -> Store {
    let digits = |number: f64| match number > 0.0 {
        true => {
            let unit = 10.0_f64.powi(number.log10().floor() as i32 - 2);
            (number / unit).round() * unit
        }
        false => number,
    };
    // The product above is off by the last bits; the shortest text with three digits is not.
    let exact = |number: f64| format!("{:.6}", digits(number)).parse().unwrap_or(number);
    Store {
        out_rate: Rate(exact(store.out_rate.get())),
        in_rate: Rate(exact(store.in_rate.get())),
        latency: Micros(exact(store.latency.get())),
        ..store
    }
}

/// What a disk has free for us, where the system says so.
#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<Bytes> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize).map(Bytes)
}

/// What a disk has free for us, where the system says so.
#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<Bytes> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_store_reads_well() {
        let store = Store {
            out_rate: Rate(1_234.567_89),
            in_rate: Rate(987.654_321),
            latency: Micros(81.236_7),
            duplex: false,
            limit: None,
            activations_only: false,
        };
        let text = rounded(store).to_string();
        assert_eq!(text, "out=1.23GB/s,in=988MB/s,latency=81.2us,half-duplex");
        let still = Store { latency: Micros::ZERO, ..store };
        assert_eq!(rounded(still).latency, Micros::ZERO);
    }

    #[test]
    fn a_limit_is_in_bytes() {
        assert_eq!(parse_limit("40GiB"), Ok(Bytes(40 << 30)));
        assert!(parse_limit("60%").expect_err("a share").contains("40GiB"));
    }
}
