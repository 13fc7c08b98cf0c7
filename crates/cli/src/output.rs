//! Files and tables that more than one verb writes.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use remat_graph::{Graph, write_atomically};
use remat_plan::{Action, Planned};

use crate::exit::UsageError;

/// Set once, before a verb runs.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From here on, only results and errors are printed.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether progress and notes are unwanted.
pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Tells something beside the result.
pub(crate) fn note(text: &str) {
    if !is_quiet() {
        eprintln!("note: {text}");
    }
}

/// Refuses an output path whose folder is not there, before any work is done.
pub(crate) fn check_folder(path: Option<&Path>) -> Result<(), UsageError> {
    let Some(path) = path else { return Ok(()) };
    let folder = match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => return Err(UsageError(format!("{} is not a file", path.display()))),
    };
    match folder.is_dir() && !path.is_dir() {
        true => Ok(()),
        false => Err(UsageError(format!(
            "cannot write {}: {} is not a folder that could hold it; make it first",
            path.display(),
            folder.display()
        ))),
    }
}

/// Writes `text` to `path` whole or not at all, and says so.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    write_atomically(path, text.as_bytes())?;
    wrote(path);
    Ok(())
}

/// Says that a file is there.
pub(crate) fn wrote(path: &Path) {
    if !is_quiet() {
        eprintln!("wrote {}", path.display());
    }
}

/// The decisions in the exchange layout of the profiler's files.
pub(crate) fn decisions_csv(graph: &Graph, planned: &Planned) -> String {
    let mut csv = String::from(DECISIONS_HEADER);
    for decision in &planned.decisions {
        let word = match decision.action {
            Action::Retained => "RETAINED",
            Action::Recomputed { .. } => "RECOMPUTE",
        };
        decision_row(
            &mut csv,
            &graph.storage_name(decision.storage),
            word,
            decision.bytes.get(),
            decision.recompute_time.seconds(),
            [decision.created.index(), decision.first_backward.index()],
        );
    }
    csv
}

/// The first line of a decisions file.
pub(crate) const DECISIONS_HEADER: &str = "activation_name,decision,median_mem_size_bytes,\
                                           recomp_time_s,creation_rank,first_bw_use_rank\n";

/// One line of a decisions file.
pub(crate) fn decision_row(
    csv: &mut String,
    name: &str,
    decision: &str,
    bytes: u64,
    seconds: f64,
    [created, first_backward]: [usize; 2],
) {
    let name = csv_field(name);
    writeln!(
        csv,
        "{name},{decision},{bytes},{seconds},{created},{first_backward}"
    )
    .expect("writing to a string cannot fail");
}

/// Quoted where the text would break the row.
fn csv_field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}
