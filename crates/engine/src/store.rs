//! The store of an engine: a file that takes what leaves the arena and gives it back.
//!
//! In: ranges of bytes that begin at a multiple of [`PAGE`], in memory and in the store. Out: the
//! same bytes later.
//!
//! The bytes of a store are not memory in disguise. Where the file system has direct input and
//! output, whole pages go between the arena and the device without a copy, and the rest of the last
//! page through a page of its own. Where it has not, what was written is on the device, and out of
//! the system's cache, when the call returns.
//!
//! The file has no name once it is open, so that nothing is left behind however the process ends.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use memmap2::MmapMut;
use rekindle_graph::Bytes;

use crate::EngineError;
use crate::arena::mapped;
use crate::moves::PAGE;

/// What a store is made of. Ranges that are used at the same time do not meet, unless they are only
/// read.
pub trait Backing: Send + Sync {
    /// Keeps a copy of `bytes` at `offset`.
    ///
    /// # Errors
    /// If it cannot.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Gives back what was kept at `offset`.
    ///
    /// # Errors
    /// If it cannot.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// What a person calls it, for messages.
    fn name(&self) -> String;
}

/// Whether a file's bytes pass through the system's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// They do not, where the file system allows it.
    Direct,
    /// They do, and are dropped from it.
    Dropped,
}

/// A store in a file without a name.
pub struct FileStore {
    file: File,
    folder: PathBuf,
    caching: Caching,
}

const PAGE_BYTES: usize = PAGE as usize;

/// A page of memory where direct input and output wants it.
#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; PAGE_BYTES]);

/// Memory that begins where direct input and output wants it, in pages as large as an arena's:
/// those of 4 KiB were written from at less than half the speed, and read into at a third.
pub struct PageBuffer(MmapMut);

impl PageBuffer {
    /// At least so many zeroed bytes.
    ///
    /// # Errors
    /// If the system does not give them.
    pub fn new(bytes: usize) -> io::Result<PageBuffer> {
        Ok(PageBuffer(mapped(bytes)?))
    }

    /// Its first `bytes` bytes.
    pub fn first(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.0[..bytes]
    }
}

impl FileStore {
    /// A store of `bytes` in `folder`.
    ///
    /// # Errors
    /// If no file can be made there, or there is no room for it.
    pub fn new(folder: &Path, bytes: Bytes) -> Result<FileStore, EngineError> {
        FileStore::with_caching(folder, bytes, Caching::Direct)
    }

    /// As [`FileStore::new`], with or without the system's cache.
    ///
    /// # Errors
    /// If no file can be made there, or there is no room for it.
    pub fn with_caching(
        folder: &Path,
        bytes: Bytes,
        caching: Caching,
    ) -> Result<FileStore, EngineError> {
        let name = name(folder);
        let fail = |what, error: &io::Error| EngineError::Store {
            what,
            name: name.clone(),
            reason: error.to_string(),
            advice: advice(error),
        };
        let file = system::open(folder).map_err(|e| fail("make", &e))?;
        let caching = match caching {
            Caching::Direct if system::make_direct(&file) => Caching::Direct,
            Caching::Direct | Caching::Dropped => Caching::Dropped,
        };
        let size = bytes.get().next_multiple_of(PAGE);
        system::reserve(&file, size).map_err(|e| fail("find room for", &e))?;
        Ok(FileStore { file, folder: folder.to_owned(), caching })
    }

    /// Whether its bytes pass through the system's cache.
    pub fn caching(&self) -> Caching {
        self.caching
    }
}

impl Backing for FileStore {
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if self.caching == Caching::Dropped {
            system::write_all(&self.file, offset, bytes)?;
            return system::drop_cached(&self.file, offset, bytes.len(), true);
        }
        let (pages, rest) = bytes.split_at(bytes.len() / PAGE_BYTES * PAGE_BYTES);
        system::write_all(&self.file, offset, pages)?;
        if !rest.is_empty() {
            let mut page = Page([0; PAGE_BYTES]);
            page.0[..rest.len()].copy_from_slice(rest);
            system::write_all(&self.file, offset + pages.len() as u64, &page.0)?;
        }
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        if self.caching == Caching::Dropped {
            system::read_all(&self.file, offset, bytes)?;
            return system::drop_cached(&self.file, offset, bytes.len(), false);
        }
        let (pages, rest) = bytes.split_at_mut(bytes.len() / PAGE_BYTES * PAGE_BYTES);
        system::read_all(&self.file, offset, pages)?;
        if !rest.is_empty() {
            let mut page = Page([0; PAGE_BYTES]);
            system::read_all(&self.file, offset + pages.len() as u64, &mut page.0)?;
            rest.copy_from_slice(&page.0[..rest.len()]);
        }
        Ok(())
    }

    fn name(&self) -> String {
        name(&self.folder)
    }
}

fn name(folder: &Path) -> String {
    format!("the store's file in {}", folder.display())
}

/// What a person can do about a fault of a store.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room there, or choose a folder on another disk"
        }
        io::ErrorKind::FileTooLarge => "allow larger files, or choose a folder on another disk",
        io::ErrorKind::NotFound
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::ReadOnlyFilesystem => "choose a folder in which files can be made",
        _ => "check the disk, or choose a folder on another one; the last checkpoint is intact",
    }
}

#[cfg(unix)]
mod system {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;

    #[cfg(target_os = "linux")]
    use super::Page;

    /// A file in `folder` that has no name.
    pub(super) fn open(folder: &Path) -> io::Result<File> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{Mode, OFlags};
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            // Not every file system can; all of them can remove a file that is open.
            if let Ok(file) = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR) {
                return Ok(file.into());
            }
        }
        let path = folder.join(format!(".rekindle-store.{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    }

    /// Turns the system's cache off for a file without bytes; false where that cannot be.
    pub(super) fn make_direct(file: &File) -> bool {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
            let set = |on: bool| {
                let flags = fcntl_getfl(file)?;
                fcntl_setfl(file, if on { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT })
            };
            // Some take the flag and refuse the bytes.
            let mut page = Page([0; super::PAGE_BYTES]);
            if set(true).is_ok()
                && write_all(file, 0, &page.0).is_ok()
                && read_all(file, 0, &mut page.0).is_ok()
            {
                return true;
            }
            let _ = set(false);
        }
        let _ = file;
        false
    }

    /// Finds room for `bytes` before any are written, where the file system can.
    pub(super) fn reserve(file: &File, bytes: u64) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if bytes > 0 {
            use rustix::fs::{FallocateFlags, fallocate};
            use rustix::io::Errno;
            match fallocate(file, FallocateFlags::empty(), 0, bytes) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        file.set_len(bytes)
    }

    pub(super) fn write_all(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    pub(super) fn read_all(file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        file.read_exact_at(bytes, offset)
    }

    /// Drops a range from the system's cache, once it is on the device.
    pub(super) fn drop_cached(
        file: &File,
        offset: u64,
        bytes: usize,
        written: bool,
    ) -> io::Result<()> {
        if written {
            file.sync_data()?;
        }
        #[cfg(target_os = "linux")]
        rustix::fs::fadvise(
            file,
            offset,
            std::num::NonZeroU64::new(bytes as u64),
            rustix::fs::Advice::DontNeed,
        )?;
        #[cfg(not(target_os = "linux"))]
        let _ = (offset, bytes);
        Ok(())
    }
}

#[cfg(not(unix))]
mod system {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    fn unsupported<T>() -> io::Result<T> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no files without names"))
    }

    pub(super) fn open(_: &Path) -> io::Result<File> {
        unsupported()
    }

    pub(super) fn make_direct(_: &File) -> bool {
        false
    }

    pub(super) fn reserve(_: &File, _: u64) -> io::Result<()> {
        unsupported()
    }

    pub(super) fn write_all(_: &File, _: u64, _: &[u8]) -> io::Result<()> {
        unsupported()
    }

    pub(super) fn read_all(_: &File, _: u64, _: &mut [u8]) -> io::Result<()> {
        unsupported()
    }

    pub(super) fn drop_cached(_: &File, _: u64, _: usize, _: bool) -> io::Result<()> {
        unsupported()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes around a page, at neighbouring slots, both ways.
    #[test]
    fn a_file_gives_back_what_it_was_given_and_leaves_nothing_behind() {
        let folder = std::env::temp_dir().join(format!("rekindle-store.{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a fresh folder");
        for caching in [Caching::Direct, Caching::Dropped] {
            const LARGE: usize = 4 << 20;
            let sizes = [64, 4096, 4160, 3 * 4096 + 64, LARGE, LARGE + 4096, LARGE + 64];
            let room = 2 * LARGE as u64;
            let all = Bytes(sizes.len() as u64 * room);
            let store = FileStore::with_caching(&folder, all, caching).expect("room");
            let mut memory = PageBuffer::new(2 * LARGE).expect("memory");
            let value = |slot: usize, at: usize| (slot + at + at / PAGE_BYTES) as u8;
            for (slot, size) in sizes.into_iter().enumerate() {
                let bytes = memory.first(size);
                bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = value(slot, at));
                store.write(slot as u64 * room, bytes).expect("room");
            }
            for (slot, size) in sizes.into_iter().enumerate() {
                let bytes = memory.first(size);
                store.read(slot as u64 * room, bytes).expect("written");
                let mut bytes = bytes.iter().enumerate();
                assert!(bytes.all(|(at, &b)| b == value(slot, at)), "{caching:?} {size}");
            }
        }
        let left = std::fs::read_dir(&folder).expect("it is there").count();
        std::fs::remove_dir_all(&folder).expect("it can go");
        assert_eq!(left, 0);
        let missing = FileStore::new(&folder, Bytes(1)).err().expect("there is no folder");
        let text = missing.to_string();
        assert!(text.contains(&folder.display().to_string()), "{text}");
        assert!(text.contains("choose a folder"), "{text}");
    }
}
