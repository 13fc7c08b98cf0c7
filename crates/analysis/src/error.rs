//! What can go wrong with the tables of a profile, in words for the reader.

use std::path::PathBuf;

use rekindle_graph::FileError;

/// Why a table cannot be written or read, or its numbers cannot be true.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum TableError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{}: {message}", path.display())]
    Csv { path: PathBuf, message: String },
    #[error(
        "{}: there is no column `{column}`; a file of this kind has {}",
        path.display(),
        expected.join(",")
    )]
    MissingColumn { path: PathBuf, column: &'static str, expected: &'static [&'static str] },
    #[error("{}, line {line}: `{column}` is \"{text}\", expected {expected}", path.display())]
    Cell { path: PathBuf, line: u64, column: &'static str, text: String, expected: &'static str },
    #[error("{}: row {row} ({name}): {why}", path.display())]
    Contradiction { path: PathBuf, row: usize, name: String, why: String },
}
