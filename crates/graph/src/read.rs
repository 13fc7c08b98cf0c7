//! Files that are read: regular ones, of a size that can be meant.
//!
//! A pipe that nobody writes to never begins, and a device such as `/dev/zero` never ends. Neither
//! is opened. Where a whole file is taken into memory, its size has a limit.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::FileError;

/// The bytes that a file may have: forty times the largest graph that was ever planned (a million
/// nodes, about 100 MB), and what a machine can still hold.
const LARGEST: u64 = 4 << 30;

/// Opens a file to be read.
///
/// # Errors
/// If it cannot be opened, or is a folder, a pipe or a device.
pub fn open_file(path: &Path) -> io::Result<File> {
    let there = std::fs::metadata(path)?;
    if there.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !there.is_file() {
        let why = "it is no regular file, and may never begin or end; copy what it gives to a file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    File::open(path)
}

/// Reads a whole file.
///
/// # Errors
/// Names the file, and says why it cannot be read.
pub fn read_file(path: &Path) -> Result<Vec<u8>, FileError> {
    read_up_to(path, LARGEST).map_err(|source| unreadable(path, source))
}

/// Reads a whole file of text.
///
/// # Errors
/// Names the file, and says why it cannot be read.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    String::from_utf8(read_file(path)?).map_err(|error| {
        let why = format!("it is no text: {}", error.utf8_error());
        unreadable(path, io::Error::new(io::ErrorKind::InvalidData, why))
    })
}

fn unreadable(path: &Path, source: io::Error) -> FileError {
    FileError::Read { path: path.to_owned(), source }
}

fn read_up_to(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open_file(path)?;
    let too_large = |size: u64| {
        let why = format!("it has {size} bytes or more; the limit is {most}");
        io::Error::new(io::ErrorKind::FileTooLarge, why)
    };
    let size = file.metadata()?.len();
    if size > most {
        return Err(too_large(size));
    }
    let mut bytes = Vec::new();
    // The size of some files, such as those in `/proc`, is known only when they are read.
    file.take(most + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(too_large(most + 1)),
        false => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_limit() {
        let name = format!("rekindle-read-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, "four").expect("writable");
        let found = [5, 4, 3].map(|most| read_up_to(&path, most).map_err(|e| e.kind()));
        // Not one byte of it is on the disk.
        let sparse = File::create(&path).and_then(|file| file.set_len(LARGEST + 1));
        let large = read_file(&path);
        std::fs::remove_file(&path).expect("it can go");
        let four = || Ok(b"four".to_vec());
        assert_eq!(found, [four(), four(), Err(io::ErrorKind::FileTooLarge)]);
        sparse.expect("files may have holes");
        let message = large.expect_err("it is too large").to_string();
        assert!(message.contains("4294967297 bytes"), "{message}");
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let folder = open_file(&std::env::temp_dir()).map_err(|e| e.kind());
        assert_eq!(folder.err(), Some(io::ErrorKind::IsADirectory));
        if cfg!(unix) {
            let message = read_text(Path::new("/dev/zero")).expect_err("it never ends");
            assert!(message.to_string().contains("no regular file"), "{message}");
        }
    }
}
