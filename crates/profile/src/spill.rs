//! Spill tiers: where bytes go that leave the arena, host memory or a file.
//!
//! In: the bytes of a storage, with the number of a slot. Out: the same bytes later. A slot holds
//! what was stored in it last.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use rekindle_engine::{Spill, SpillError};
use rekindle_graph::Bytes;

/// Slots in host memory. A slot keeps its memory, so only its first use pays for page faults.
#[derive(Default)]
pub struct HostSpill {
    slots: Vec<Vec<u8>>,
}

impl HostSpill {
    /// An empty tier.
    pub fn new() -> HostSpill {
        HostSpill::default()
    }
}

impl Spill for HostSpill {
    fn store(&mut self, slot: usize, bytes: &[u8]) -> Result<(), SpillError> {
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, Vec::new);
        }
        let held = &mut self.slots[slot];
        if held.len() < bytes.len() {
            // What the slot held is gone either way, so its memory goes first.
            *held = Vec::new();
            let room = held.try_reserve_exact(bytes.len());
            room.map_err(|_| SpillError::Memory(Bytes(bytes.len() as u64)))?;
            held.extend_from_slice(bytes);
        } else {
            held[..bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn load(&mut self, slot: usize, bytes: &mut [u8]) -> Result<(), SpillError> {
        let held = self.slots.get(slot).and_then(|held| held.get(..bytes.len()));
        let held = held.ok_or_else(|| never_stored(slot))?;
        bytes.copy_from_slice(held);
        Ok(())
    }
}

/// Slots one after the other in a file.
///
/// What is stored is on the device when the call returns, so that the time of a store is the
/// device's and not that of the system's cache. The file has no name once it is open (where the
/// system allows that), so nothing is left behind however the process ends.
pub struct FileSpill {
    /// Where it is, for a person.
    folder: PathBuf,
    file: File,
    /// Where it is, if it still has a name.
    path: Option<PathBuf>,
    /// Where each slot begins, and how many bytes it may hold.
    slots: Vec<Option<(u64, usize)>>,
    end: u64,
}

impl FileSpill {
    /// A tier in a new file in `folder`.
    ///
    /// # Errors
    /// If no file can be made there.
    pub fn new(folder: &Path) -> Result<FileSpill, std::io::Error> {
        let path = folder.join(format!("rekindle-spill.{}", std::process::id()));
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(&path)?;
        let unnamed = std::fs::remove_file(&path).is_ok();
        Ok(FileSpill {
            folder: folder.to_owned(),
            file,
            path: (!unnamed).then_some(path),
            slots: Vec::new(),
            end: 0,
        })
    }

    fn failed(&self, what: &str, error: &std::io::Error) -> SpillError {
        let folder = self.folder.display();
        SpillError::Failed(format!("cannot {what} the spill file in {folder}: {error}"))
    }

    /// The beginning of a slot that can hold `bytes`.
    fn place(&mut self, slot: usize, bytes: usize) -> u64 {
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, None);
        }
        match self.slots[slot] {
            Some((offset, capacity)) if bytes <= capacity => offset,
            _ => {
                let offset = self.end;
                self.slots[slot] = Some((offset, bytes));
                self.end += bytes as u64;
                offset
            }
        }
    }
}

impl Spill for FileSpill {
    fn store(&mut self, slot: usize, bytes: &[u8]) -> Result<(), SpillError> {
        let offset = self.place(slot, bytes.len());
        self.file
            .seek(SeekFrom::Start(offset))
            .and_then(|_| self.file.write_all(bytes))
            .and_then(|()| self.file.sync_data())
            .map_err(|error| self.failed("write", &error))
    }

    fn load(&mut self, slot: usize, bytes: &mut [u8]) -> Result<(), SpillError> {
        let place = self.slots.get(slot).copied().flatten();
        let (offset, _) = place
            .filter(|&(_, capacity)| bytes.len() <= capacity)
            .ok_or_else(|| never_stored(slot))?;
        self.file
            .seek(SeekFrom::Start(offset))
            .and_then(|_| self.file.read_exact(bytes))
            .map_err(|error| self.failed("read", &error))
    }
}

impl Drop for FileSpill {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // Nobody is left to tell; the file is only in the way.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn never_stored(slot: usize) -> SpillError {
    SpillError::Failed(format!("slot {slot} of the spill tier does not hold that many bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tier: &mut dyn Spill) {
        let (large, small) = (vec![7u8; 3000], vec![9u8; 10]);
        tier.store(2, &large).expect("room");
        tier.store(0, &small).expect("room");
        let mut read = vec![0; 3000];
        tier.load(2, &mut read).expect("stored");
        assert_eq!(read, large);
        tier.load(0, &mut read[..10]).expect("stored");
        assert_eq!(read[..10], small);
        tier.store(0, &large).expect("a slot may grow");
        tier.load(2, &mut read).expect("its neighbour is intact");
        assert_eq!(read, large);
        assert!(tier.load(1, &mut read).is_err(), "never stored");
        assert!(tier.load(5, &mut read).is_err(), "never stored");
    }

    #[test]
    fn host_memory_gives_back_what_it_was_given() {
        check(&mut HostSpill::new());
    }

    #[test]
    fn a_file_gives_back_what_it_was_given_and_leaves_nothing_behind() {
        let folder =
            std::env::temp_dir().join(format!("rekindle-spill-test.{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a fresh folder");
        check(&mut FileSpill::new(&folder).expect("the folder is there"));
        let left = std::fs::read_dir(&folder).expect("it is there").count();
        std::fs::remove_dir_all(&folder).expect("it can go");
        assert_eq!(left, 0);
    }
}
