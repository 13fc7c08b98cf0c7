//! How the tool speaks: standard output, standard error, and the files that more than one verb
//! writes.
//!
//! The usual `println!` panics when the reader is gone or the disk is full; the macros here take
//! its place in the whole crate. Colours are stripped where no terminal shows them, or `NO_COLOR`
//! is set.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rekindle_graph::{Graph, destination, write_atomically};
use rekindle_plan::{Choice, Planned};

use crate::exit::{self, UsageError};

/// Prints a result.
macro_rules! print {
    ($($text:tt)*) => {
        $crate::output::print_result(format_args!($($text)*))
    };
}

/// Prints a line of a result.
macro_rules! println {
    () => {
        $crate::output::print_result(format_args!("\n"))
    };
    ($($text:tt)*) => {
        $crate::output::print_result(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// Prints a line beside the result.
macro_rules! eprintln {
    ($($text:tt)*) => {
        $crate::output::print_aside(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// Writes to standard output. That the reader has left ends the tool quietly; that the output
/// cannot be written ends it with an error.
pub(crate) fn print_result(text: std::fmt::Arguments<'_>) {
    let mut stdout = anstream::stdout().lock();
    let Err(why) = stdout.write_fmt(text).and_then(|()| stdout.flush()) else {
        return;
    };
    if why.kind() == ErrorKind::BrokenPipe {
        exit::now(exit::CLOSED_PIPE);
    }
    error(&format!("cannot write to standard output: {why}"));
    exit::now(exit::BAD_FILE)
}

/// Writes to standard error; a closed one is no reason to stop.
pub(crate) fn print_aside(text: std::fmt::Arguments<'_>) {
    let _ = anstream::stderr().lock().write_fmt(text);
}

const BOLD: &str = "\x1b[1m";
const BOLD_RED: &str = "\x1b[1;31m";
const BOLD_YELLOW: &str = "\x1b[1;33m";
const BOLD_GREEN: &str = "\x1b[1;32m";
const PLAIN: &str = "\x1b[0m";

/// Stands out on a terminal.
pub(crate) fn bold(text: &str) -> String {
    format!("{BOLD}{text}{PLAIN}")
}

/// Says what went wrong.
pub(crate) fn error(text: &str) {
    eprintln!("{BOLD_RED}error:{PLAIN} {text}");
}

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
        eprintln!("{BOLD_YELLOW}note:{PLAIN} {text}");
    }
}

/// Refuses, before any work is done, an output whose folder is not there, and one that would
/// replace an input or another output.
pub(crate) fn check_outputs(
    outputs: &[Option<&PathBuf>],
    inputs: &[Option<&PathBuf>],
) -> Result<(), UsageError> {
    let mut taken: Vec<PathBuf> = inputs.iter().flatten().filter_map(|p| place(p)).collect();
    for path in outputs.iter().flatten() {
        check_folder(path)?;
        // Devices and pipes can take several outputs.
        let Some(place) = place(path) else { continue };
        if taken.contains(&place) {
            return Err(UsageError(format!(
                "cannot write {}: the same file is named twice in this command, and would be \
                 lost; name another",
                path.display()
            )));
        }
        taken.push(place);
    }
    Ok(())
}

/// Where a file is or will be, however it is named; nothing for what is no file.
fn place(path: &Path) -> Option<PathBuf> {
    let path = destination(path);
    match path.exists() {
        true => path.is_file().then_some(path),
        false => Some(
            folder_of(&path)?
                .canonicalize()
                .ok()?
                .join(path.file_name()?),
        ),
    }
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> Option<&Path> {
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Some(Path::new(".")),
        folder => folder,
    }
}

fn check_folder(path: &Path) -> Result<(), UsageError> {
    let Some(folder) = folder_of(path) else {
        return Err(UsageError(format!("{} is not a file", path.display())));
    };
    let why = match (path.is_dir(), folder.is_dir()) {
        (true, _) => "it is a folder; name a file in it".to_owned(),
        (_, false) => format!("there is no folder {}; make it first", folder.display()),
        (false, true) => return Ok(()),
    };
    Err(UsageError(format!(
        "cannot write {}: {why}",
        path.display()
    )))
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
        eprintln!("{BOLD_GREEN}wrote{PLAIN} {}", path.display());
    }
}

/// The decisions in the exchange layout of the profiler's files.
pub(crate) fn decisions_csv(graph: &Graph, planned: &Planned) -> String {
    let mut csv = String::from(DECISIONS_HEADER);
    for decision in &planned.decisions {
        let word = match decision.choice {
            Choice::Keep => "RETAINED",
            Choice::Recompute { .. } => "RECOMPUTE",
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
pub(crate) fn csv_field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}
