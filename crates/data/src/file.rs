//! A file that is read by position: no more of it is in memory than what was asked for.
//!
//! Files are not mapped: pages of a map count as the process's memory for as long as the system
//! likes, which a budget cannot promise anything about; and a file that shrinks while it is mapped
//! ends the process.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rekindle_graph::open_file;

use crate::DataError;

/// An open file with its name and length.
pub(crate) struct DataFile {
    file: File,
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
}

impl DataFile {
    pub(crate) fn open(path: &Path) -> Result<DataFile, DataError> {
        let fail = |source| DataError::Read { path: path.to_owned(), source };
        let file = open_file(path).map_err(fail)?;
        DataFile::new(file, path)
    }

    /// A file that is open; `path` is what messages call it.
    pub(crate) fn new(file: File, path: &Path) -> Result<DataFile, DataError> {
        let fail = |source| DataError::Read { path: path.to_owned(), source };
        let len = file.metadata().map_err(fail)?.len();
        Ok(DataFile { file, path: path.to_owned(), len })
    }

    /// Fills `into` with what is in the file from `at` on.
    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), DataError> {
        let read = read_exact_at(&self.file, at, into);
        read.map_err(|source| DataError::Read { path: self.path.clone(), source })
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, at: u64, into: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, at)
}

#[cfg(not(unix))]
fn read_exact_at(file: &File, at: u64, into: &mut [u8]) -> io::Result<()> {
    use std::io::{Read as _, Seek as _};
    let mut file = file.try_clone()?;
    file.seek(io::SeekFrom::Start(at))?;
    file.read_exact(into)
}
