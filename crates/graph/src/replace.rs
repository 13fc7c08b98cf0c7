//! Files that are written whole or not at all: beside their place first, then moved over it.
//!
//! The file on its way is called `NAME.PID-COUNT.rekindle-partial`, with less of a long name, and
//! is locked by whoever writes it. A process that ends on a signal calls [`discard_partial_files`]
//! first, and leaves none behind. One that is killed cannot; the next file that is written to the
//! same folder removes what it left, which is locked by nobody.
//!
//! A device, a pipe or a terminal (`/dev/stdout`) cannot be replaced: it is written to. Where the
//! path is a link, the file that it leads to is replaced or made, and the link stays. A file that
//! is replaced keeps its permissions; its owner is whoever wrote it last.
//!
//! Invariant: a partial file is on the list from when it is made until it is moved or removed.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
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
    replace_file(path, |file| file.write_all(contents))
        .map_err(|source| FileError::Write { path: path.to_owned(), source })
}

/// Lets `write` fill a new file, and moves that over `path` when it is safe on the disk.
///
/// # Errors
/// What `write` says, or why the file cannot be made or moved. What was there before is still
/// there.
pub fn replace_file<E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    let mut new = Replacement::begin(path)?;
    write(&mut new.file)?;
    Ok(new.finish()?)
}

/// Finds out whether a file can be written at `path`, before there is anything to write: makes a
/// new one beside it, and removes that again. Devices and pipes are left alone.
///
/// # Errors
/// Why it cannot be written.
pub fn check_writable(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path) {
        Ok(there) if !there.is_file() && !there.is_dir() => Ok(()),
        _ => Replacement::begin(path).map(drop),
    }
}

/// A file on its way to its place; if it does not get there, it is removed.
struct Replacement {
    path: PathBuf,
    file: File,
    /// Where it is now; nowhere else for what cannot be replaced.
    partial: Option<PathBuf>,
    /// What is in its place.
    there: Option<Metadata>,
}

impl Replacement {
    fn begin(path: &Path) -> io::Result<Replacement> {
        let path = destination(path);
        let there = match std::fs::metadata(&path) {
            Ok(there) if there.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            Ok(there) => Some(there),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let (partial, file) = match there.as_ref().is_some_and(|there| !there.is_file()) {
            true => (None, File::options().write(true).open(&path)?),
            false => {
                remove_leftovers(&path);
                let (partial, file) = make_partial(&path)?;
                (Some(partial), file)
            }
        };
        Ok(Replacement { path, file, partial, there })
    }

    /// Makes the file safe on the disk, with the permissions of the one whose place it takes, and
    /// moves it there.
    fn finish(mut self) -> io::Result<()> {
        let Some(partial) = &self.partial else {
            return Ok(());
        };
        self.file.sync_all()?;
        if let Some(there) = &self.there {
            self.file.set_permissions(there.permissions())?;
        }
        // While the list is locked, nobody discards the file under our hands.
        let mut list = partial_files();
        std::fs::rename(partial, &self.path)?;
        list.retain(|other| other != partial);
        drop(list);
        self.partial = None;
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            let mut list = partial_files();
            // Whatever is left of it is worthless; the first error is the one to report.
            let _ = std::fs::remove_file(partial);
            list.retain(|other| other != partial);
        }
    }
}

/// Makes and locks a file beside `path`.
fn make_partial(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    loop {
        let partial = path.with_file_name(partial_name(name));
        let mut list = partial_files();
        let file = match File::create_new(&partial) {
            // Of a process with our number, on another machine or in another container.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        };
        list.push(partial.clone());
        drop(list);
        // Where files cannot be locked, nobody takes them for leftovers either.
        let _ = file.lock();
        // Somebody else may have seen it before it was locked, and removed it.
        if partial.exists() {
            return Ok((partial, file));
        }
        partial_files().retain(|other| *other != partial);
    }
}

/// How the names of all partial files end.
const ENDING: &str = ".rekindle-partial";

/// Removes what killed processes left in the folder of `path`. What cannot be listed, locked or
/// removed stays: it is in nobody's way.
fn remove_leftovers(path: &Path) {
    let folder = match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => return,
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().as_encoded_bytes().ends_with(ENDING.as_bytes());
        if !is_ours || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        if let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The bytes that a file's name may have, on every system that we know.
const LONGEST_NAME: usize = 255;

/// What a file is called on its way: something else every time.
fn partial_name(name: &OsStr) -> OsString {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let ending = format!(".{}-{count}{ENDING}", std::process::id());
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
        let failed = replace_file(&path, |file| {
            file.write_all(b"ne")?;
            Err(io::Error::other("the disk is full"))
        });
        let (text, names) = (std::fs::read(&path), names(&folder));
        std::fs::remove_dir_all(&folder).expect("it can go");
        assert_eq!(failed.expect_err("it failed").to_string(), "the disk is full");
        assert_eq!(text.expect("it is there"), b"old");
        assert_eq!(names, ["it"]);
    }

    #[test]
    fn discarding_removes_a_file_on_its_way() {
        let _alone = ONE_AT_A_TIME.lock();
        let folder = folder("discarded");
        let path = folder.join("it");
        let moved: io::Result<()> = replace_file(&path, |file| {
            file.write_all(b"half")?;
            drop(discard_partial_files());
            Ok(())
        });
        let names = names(&folder);
        std::fs::remove_dir_all(&folder).expect("it can go");
        assert!(moved.is_err(), "there is nothing to move");
        assert!(names.is_empty(), "{names:?}");
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_what_another_writes_stays() {
        let _alone = ONE_AT_A_TIME.lock();
        let folder = folder("leftovers");
        let (left, held) = (folder.join("it.1-0.rekindle-partial"), "other.2-7.rekindle-partial");
        std::fs::write(&left, b"half").expect("writable");
        std::fs::write(folder.join("it.partial"), b"not ours").expect("writable");
        let writer = File::create(folder.join(held)).expect("writable");
        writer.lock().expect("locks work");
        let checked = check_writable(&folder.join("it"));
        let during = replace_file(&folder.join("it"), |_| {
            check_writable(&folder.join("other"))?;
            assert_eq!(names(&folder).len(), 3, "its own stays, too");
            Ok::<_, io::Error>(())
        });
        let mut names = names(&folder);
        names.sort();
        std::fs::remove_dir_all(&folder).expect("it can go");
        checked.and(during).expect("room");
        assert_eq!(names, ["it", "it.partial", held]);
        assert!(check_writable(&folder.join("it")).is_err(), "there is no folder");
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
        let written = names.iter().map(|name| write_atomically(&folder.join(name), b"new").is_ok());
        let written: Vec<bool> = written.collect();
        let left = self::names(&folder).len();
        let longer = write_atomically(&folder.join("x".repeat(256)), b"new");
        std::fs::remove_dir_all(&folder).expect("it can go");
        assert_eq!(written, [true; 3]);
        assert_eq!(left, 3);
        assert!(longer.is_err());
    }
}
