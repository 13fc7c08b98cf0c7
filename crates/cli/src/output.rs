//! How the tool speaks: standard output, standard error, and the files that more than one verb
//! writes.
//!
//! The usual `println!` panics when the reader is gone or the disk is full; the macros here take
//! its place in the whole crate. Colours are stripped where no terminal shows them, or `NO_COLOR`
//! is set. Names come from files of others: whatever in them could move the cursor, hide text or
//! turn it around is made visible before it reaches a terminal.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, bail};
use rekindle_analysis::{csv_text, text_cell};
use rekindle_graph::{FileError, Graph, check_writable, destination, write_atomically};
use rekindle_plan::{Choice, Decision, Planned};

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
    let text = visible(&text.to_string());
    let mut stdout = anstream::stdout().lock();
    let written = stdout.write_all(text.as_bytes());
    let Err(why) = written.and_then(|()| stdout.flush()) else {
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
    let text = visible(&text.to_string());
    let _ = anstream::stderr().lock().write_all(text.as_bytes());
}

/// The text with every control character but our own colours, line ends and tabs as `\u001b`, as
/// JSON has it too: so JSON stays what it is.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let ours = COLOURS.into_iter().find(|colour| rest.starts_with(*colour));
        let whole = ours.map_or(c.len_utf8(), str::len);
        match ours.is_some() || matches!(c, '\n' | '\t') || !is_hidden(c) {
            true => shown.push_str(&rest[..whole]),
            false => write!(shown, "\\u{:04x}", c as u32).expect("strings take everything"),
        }
        rest = &rest[whole..];
    }
    shown
}

/// Whether a character shows nothing, and may change how others are shown: control characters,
/// line ends of other kinds, and marks for the direction of text.
fn is_hidden(c: char) -> bool {
    let marks = ['\u{200e}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2066}'..='\u{2069}'];
    c.is_control() || marks.iter().any(|range| range.contains(&c))
}

const BOLD: &str = "\x1b[1m";
const BOLD_RED: &str = "\x1b[1;31m";
const BOLD_YELLOW: &str = "\x1b[1;33m";
const BOLD_GREEN: &str = "\x1b[1;32m";
const PLAIN: &str = "\x1b[0m";
const COLOURS: [&str; 5] = [BOLD, BOLD_RED, BOLD_YELLOW, BOLD_GREEN, PLAIN];

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

/// Refuses, before any work is done, an output that cannot be written, and one that would replace
/// an input or another output.
pub(crate) fn check_outputs(
    outputs: &[Option<&PathBuf>],
    inputs: &[Option<&PathBuf>],
) -> anyhow::Result<()> {
    let mut taken: Vec<PathBuf> = inputs.iter().flatten().filter_map(|p| place(p)).collect();
    for path in outputs.iter().flatten() {
        check_folder(path)?;
        // Devices and pipes can take several outputs.
        let Some(place) = place(path) else { continue };
        if taken.contains(&place) {
            bail!(UsageError(format!(
                "cannot write {}: the same file is named twice in this command, and would be \
                 lost; name another",
                path.display()
            )));
        }
        taken.push(place);
        try_to_write(path)?;
    }
    Ok(())
}

/// Makes a folder for outputs if it is not there, before any work is done, and finds out whether
/// files can be written to it.
pub(crate) fn make_folder(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    try_to_write(&folder.join("file"))
}

/// Refuses a file that cannot be written.
pub(crate) fn try_to_write(path: &Path) -> anyhow::Result<()> {
    Ok(check_writable(path).map_err(|source| FileError::Write { path: path.to_owned(), source })?)
}

/// Where a file is or will be, however it is named; nothing for what is no file.
fn place(path: &Path) -> Option<PathBuf> {
    let path = destination(path);
    match path.exists() {
        true => path.is_file().then_some(path),
        false => Some(folder_of(&path)?.canonicalize().ok()?.join(path.file_name()?)),
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
    Err(UsageError(format!("cannot write {}: {why}", path.display())))
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

/// One line of a decisions file.
pub(crate) struct DecisionRow {
    /// The activation's name.
    pub(crate) name: String,
    /// `RETAINED`, `RECOMPUTE` or `MOVE`.
    pub(crate) word: &'static str,
    /// Its size.
    pub(crate) bytes: u64,
    /// How long it takes to make it again.
    pub(crate) seconds: f64,
    /// The rank of its maker.
    pub(crate) created: u32,
    /// The rank of its first backward use.
    pub(crate) first_backward: u32,
    /// Why, in a few words; given for every row of a plan that moves something, and for no other.
    pub(crate) reason: Option<&'static str>,
}

/// Decisions in the exchange layout of the profiler's files; with a column more where there are
/// reasons.
pub(crate) fn decisions_csv(rows: impl Iterator<Item = DecisionRow>) -> String {
    let columns = "activation_name,decision,median_mem_size_bytes,recomp_time_s,creation_rank,\
                   first_bw_use_rank";
    let mut columns: Vec<&str> = columns.split(',').collect();
    let mut rows = rows.peekable();
    columns.extend(rows.peek().and_then(|row| row.reason).map(|_| "reason"));
    let cells = |row: DecisionRow| {
        let mut cells = vec![
            text_cell(&row.name),
            row.word.into(),
            row.bytes.to_string(),
            row.seconds.to_string(),
            row.created.to_string(),
            row.first_backward.to_string(),
        ];
        cells.extend(row.reason.map(text_cell));
        cells
    };
    csv_text(&columns, rows.map(cells))
}

/// The decisions of a plan.
pub(crate) fn decisions_of(graph: &Graph, planned: &Planned) -> String {
    let has_reasons = planned.plan.schedule.has_transfers();
    let row = |decision: &Decision| DecisionRow {
        name: graph.storage_name(decision.storage),
        word: match decision.choice {
            Choice::Keep => "RETAINED",
            Choice::Recompute { .. } => "RECOMPUTE",
            Choice::Move { .. } => "MOVE",
        },
        reason: has_reasons.then(|| decision.reason.text()),
        bytes: decision.bytes.get(),
        seconds: decision.recompute_time.seconds(),
        created: decision.created.0,
        first_backward: decision.first_backward.0,
    };
    decisions_csv(planned.decisions.iter().map(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(visible(text), expected);
    }

    #[test]
    fn control_characters_are_made_visible() {
        check("plain ünïcödé 語\n\tline", "plain ünïcödé 語\n\tline");
        check("\x1b[2J\x07\r\x7f\u{9b}", "\\u001b[2J\\u0007\\u000d\\u007f\\u009b");
        check("\u{202e}txt.exe\u{2066}", "\\u202etxt.exe\\u2066");
        check("\x1b]0;title\x1b[8mhidden", "\\u001b]0;title\\u001b[8mhidden");
        check(&bold("name"), &bold("name"));
    }

    #[test]
    fn json_stays_json() {
        let name = "a\u{9b}\u{202e}\x1b[1m\"b";
        let text = serde_json::json!({ "name": name }).to_string();
        let read: serde_json::Value = serde_json::from_str(&visible(&text)).expect("JSON");
        assert_eq!(read["name"], name);
    }
}
