//! Files that are written whole or not at all: beside their place first, then moved over it.
//!
//! The file on its way is called `NAME.PID.partial`, with less of a long name. A process that ends
//! on a signal calls [`discard_partial_files`] first, and leaves none behind.
//!
//! A device, a pipe or a terminal (`/dev/stdout`) cannot be replaced: it is written to. Where the
//! path is a link, the file that it leads to is replaced or made, and the link stays. A file that
//! is replaced keeps its permissions; its owner is whoever wrote it last.
//!
//! Invariant: a partial file is on the list from before it is made until it is moved or removed.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::FileError;

/// The partial files that there may be now.
static PARTIAL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn partial_files() -> MutexGuard<'static, Vec<PathBuf>> {
    // A panic elsewhere cannot leave a list of paths in a bad state.
    PARTIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a file whole or not at all.
///
/// # Errors
/// Names the file. What was there before is still there.
pub fn write_atomically(path: &Path, contents: &[u8]) -> Result<(), FileError> {
    let write = |partial: &Path| std::fs::File::create(partial)?.write_all(contents);
    replace_file(path, write).map_err(|source| FileError::Write {
        path: path.to_owned(),
        source,
    })
}

/// Lets `write` make a file at the path that it is given, and moves that over `path` when it is
/// safe on the disk.
///
/// # Errors
/// What `write` says, or why the file cannot be moved. What was there before is still there.
pub fn replace_file<E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let path = destination(path);
    let there = match std::fs::metadata(&path) {
        Ok(there) if there.is_dir() => Err(io::Error::from(io::ErrorKind::IsADirectory))?,
        Ok(there) if !there.is_file() => return write(&path),
        Ok(there) => Some(there),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Err(error)?,
    };
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
    let partial = path.with_file_name(partial_name(name));
    partial_files().push(partial.clone());
    let written = write(&partial).and_then(|()| Ok(settle(&partial, there.as_ref())?));
    // While the list is locked, nobody discards the file under our hands.
    let mut list = partial_files();
    let moved = written.and_then(|()| Ok(std::fs::rename(&partial, &path)?));
    if moved.is_err() {
        // Whatever is left of it is worthless; the first error is the one to report.
        let _ = std::fs::remove_file(&partial);
    }
    list.retain(|other| *other != partial);
    moved
}

/// Makes a new file safe on the disk, with the permissions of the one whose place it takes.
fn settle(partial: &Path, there: Option<&Metadata>) -> io::Result<()> {
    std::fs::File::open(partial)?.sync_all()?;
    match there {
        Some(there) => std::fs::set_permissions(partial, there.permissions()),
        None => Ok(()),
    }
}

/// The bytes that a file's name may have, on every system that we know.
const LONGEST_NAME: usize = 255;

/// What a file is called on its way.
fn partial_name(name: &OsStr) -> OsString {
    let ending = format!(".{}.partial", std::process::id());
    if name.len() + ending.len() <= LONGEST_NAME {
        let mut whole = name.to_owned();
        whole.push(ending);
        return whole;
    }
    let text = name.to_string_lossy();
    let mut length = LONGEST_NAME - ending.len();
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    OsString::from(text[..length].to_owned() + &ending)
}

/// As many links as Linux follows.
const MOST_LINKS: usize = 40;

/// The file that is written where `path` is named: links are followed, also one to a file that is
/// not there yet.
pub fn destination(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        if let Ok(there) = std::fs::canonicalize(&path) {
            return there;
        }
        let Ok(target) = std::fs::read_link(&path) else {
            break;
        };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

/// No file is moved into its place as long as this lives.
#[must_use = "a file that is being written now would be moved into its place"]
pub struct Discarded {
    _list: MutexGuard<'static, Vec<PathBuf>>,
}

/// Removes what is half written, for a process that is about to end. Writers wait while the result
/// lives.
pub fn discard_partial_files() -> Discarded {
    let list = partial_files();
    for path in list.iter() {
        // It may not have been made yet.
        let _ = std::fs::remove_file(path);
    }
    Discarded { _list: list }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Discarding concerns every file on its way, those of another test too.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    /// An empty folder for one test.
    fn folder(name: &str) -> PathBuf {
        let name = format!("rekindle-replace-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a fresh folder");
        path
    }

    fn names(folder: &Path) -> Vec<OsString> {
        let entries = std::fs::read_dir(folder).expect("it is there");
        entries.map(|e| e.expect("readable").file_name()).collect()
    }

    #[test]
    fn a_failed_write_leaves_what_was_there() {
        let _alone = ONE_AT_A_TIME.lock();
        let folder = folder("failed");
        let path = folder.join("it");
        write_atomically(&path, b"old").expect("room");
        let failed = replace_file(&path, |partial| {
            std::fs::write(partial, b"ne")?;
            Err(io::Error::other("the disk is full"))
        });
        let (text, names) = (std::fs::read(&path), names(&folder));
        std::fs::remove_dir_all(&folder).expect("it can go");
        assert_eq!(
            failed.expect_err("it failed").to_string(),
            "the disk is full"
        );
        assert_eq!(text.expect("it is there"), b"old");
        assert_eq!(names, ["it"]);
    }

    #[test]
    fn discarding_removes_a_file_on_its_way() {
        let _alone = ONE_AT_A_TIME.lock();
        let folder = folder("discarded");
        let path = folder.join("it");
        let moved: io::Result<()> = replace_file(&path, |partial| {
            std::fs::write(partial, b"half")?;
            drop(discard_partial_files());
            Ok(())
        });
        let names = names(&folder);
        std::fs::remove_dir_all(&folder).expect("it can go");
        assert!(moved.is_err(), "there is nothing to move");
        assert!(names.is_empty(), "{names:?}");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_and_a_device_is_written_to() {
        let _alone = ONE_AT_A_TIME.lock();
        let folder = folder("link");
        let (path, link) = (folder.join("it"), folder.join("link"));
        std::fs::write(&path, "old").expect("writable");
        std::os::unix::fs::symlink(&path, &link).expect("links work");
        write_atomically(&link, b"new").expect("room");
        let still = std::fs::symlink_metadata(&link).is_ok_and(|there| there.is_symlink());
        let text = std::fs::read(&path);
        std::fs::remove_dir_all(&folder).expect("it can go");
        assert!(still);
        assert_eq!(text.expect("it is there"), b"new");
        write_atomically(Path::new("/dev/null"), b"new").expect("it takes everything");
        assert!(write_atomically(&std::env::temp_dir(), b"new").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_nothing_stays_and_what_it_names_is_made() {
        use std::os::unix::fs::symlink;
        let _alone = ONE_AT_A_TIME.lock();
        let folder = folder("dangling");
        let (first, circle) = (folder.join("first"), folder.join("circle"));
        symlink("second", &first).expect("links work");
        symlink(folder.join("it"), folder.join("second")).expect("links work");
        symlink("circle", &circle).expect("links work");
        write_atomically(&first, b"new").expect("room");
        let in_circles = write_atomically(&circle, b"new");
        let text = std::fs::read(folder.join("it"));
        let is_link = |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|p| p.is_symlink());
        let links = is_link(&first) && is_link(&circle);
        std::fs::remove_dir_all(&folder).expect("it can go");
        assert_eq!(text.expect("it was made"), b"new");
        assert!(in_circles.is_err());
        assert!(links);
    }

    #[cfg(unix)]
    #[test]
    fn permissions_stay() {
        use std::os::unix::fs::PermissionsExt;
        let _alone = ONE_AT_A_TIME.lock();
        let folder = folder("permissions");
        let path = folder.join("it");
        let mode = |path: &Path| std::fs::metadata(path).map(|m| m.permissions().mode() & 0o777);
        std::fs::write(&path, "old").expect("writable");
        let mut found = Vec::new();
        for wanted in [0o600, 0o444, 0o751] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(wanted)).expect("it is ours");
            write_atomically(&path, b"new").expect("room");
            found.push((wanted, mode(&path).expect("it is there")));
        }
        std::fs::remove_dir_all(&folder).expect("it can go");
        assert!(found.iter().all(|(a, b)| a == b), "{found:?}");
    }

    #[test]
    fn the_longest_name_can_be_written() {
        let _alone = ONE_AT_A_TIME.lock();
        let folder = folder("long");
        let letters = [("x", 255), ("ü", 127), ("語", 85)];
        let names = letters.map(|(letter, count)| letter.repeat(count));
        let written = names
            .iter()
            .map(|name| write_atomically(&folder.join(name), b"new").is_ok());
        let written: Vec<bool> = written.collect();
        let left = self::names(&folder).len();
        let longer = write_atomically(&folder.join("x".repeat(256)), b"new");
        std::fs::remove_dir_all(&folder).expect("it can go");
        assert_eq!(written, [true; 3]);
        assert_eq!(left, 3);
        assert!(longer.is_err());
    }
}
