//! A store that delays, reorders and fails, for tests of whatever runs on one.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rekindle_engine::Backing;
use rekindle_graph::Bytes;
use rekindle_program::random::Stream;

/// A store in memory that takes its time: before it copies anything, and now and then in between.
/// What is written too early or read too late is then seen to be wrong.
pub(crate) struct Shaken {
    bytes: Mutex<Vec<u8>>,
    stream: Stream,
    calls: AtomicU64,
    /// After how many calls it fails.
    fails_after: u64,
}

impl Shaken {
    /// `size` bytes of nothing in particular; it fails after so many calls.
    pub(crate) fn new(size: Bytes, seed: u64, fails_after: u64) -> Shaken {
        Shaken {
            bytes: Mutex::new(vec![0xAB; size.get() as usize]),
            stream: Stream::new(seed),
            calls: AtomicU64::new(0),
            fails_after,
        }
    }

    /// Copies `count` pieces one by one.
    fn shake(&self, count: usize, mut copy: impl FnMut(&mut [u8], usize)) -> io::Result<()> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if call >= self.fails_after {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        for piece in 0..count {
            let drawn = self.stream.branch(call).unit(piece as u64);
            if drawn < 0.2 {
                std::thread::sleep(Duration::from_micros((drawn * 2000.0) as u64));
            }
            copy(&mut self.bytes.lock().expect("nobody panics"), piece);
        }
        Ok(())
    }
}

/// Small enough that most tensors have several.
const PIECE: usize = 16 << 10;

impl Backing for Shaken {
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let pieces: Vec<&[u8]> = bytes.chunks(PIECE).collect();
        self.shake(pieces.len(), |all, piece| {
            let at = offset as usize + piece * PIECE;
            all[at..at + pieces[piece].len()].copy_from_slice(pieces[piece]);
        })
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut pieces: Vec<&mut [u8]> = bytes.chunks_mut(PIECE).collect();
        self.shake(pieces.len(), |all, piece| {
            let at = offset as usize + piece * PIECE;
            let into = &mut *pieces[piece];
            into.copy_from_slice(&all[at..at + into.len()]);
        })
    }

    fn name(&self) -> String {
        "the shaken store".into()
    }
}
