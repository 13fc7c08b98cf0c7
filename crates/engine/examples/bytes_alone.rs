//! How long bytes take to a disk and back while nothing computes:
//! `bytes_alone FOLDER FILE_BYTES OUT_BYTES IN_BYTES` prints the seconds of both directions at
//! once, each by a thread of its own, through a file of that size that was written before.

use std::path::Path;
use std::time::Instant;

use rekindle_engine::{Backing as _, FileStore, PageBuffer};
use rekindle_graph::Bytes;

/// Bytes of a transfer.
const TRANSFER: u64 = 32 << 20;
/// Transfers that each direction has memory for: more than a processor's cache holds.
const PIECES: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, file, out, back] = words.as_slice() else {
        return Err("usage: bytes_alone FOLDER FILE_BYTES OUT_BYTES IN_BYTES".into());
    };
    let (file, out, back) = (file.parse::<u64>()?, out.parse::<u64>()?, back.parse::<u64>()?);
    let places = (file / TRANSFER).max(1);
    let store = FileStore::new(Path::new(folder), Bytes(places * TRANSFER))?;
    let go = |is_out: bool, bytes: u64| -> std::io::Result<()> {
        let size = TRANSFER as usize;
        let mut memory = PageBuffer::new(PIECES * size)?;
        for number in 0..bytes.div_ceil(TRANSFER) {
            let at = number % places * TRANSFER;
            let piece = number as usize % PIECES * size;
            let piece = &mut memory.first(PIECES * size)[piece..][..size];
            match is_out {
                true => store.write(at, piece)?,
                false => store.read(at, piece)?,
            }
        }
        Ok(())
    };
    go(true, places * TRANSFER)?;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| go(false, back));
        go(true, out)?;
        other.join().expect("no panic")
    })?;
    println!("{:.3}", began.elapsed().as_secs_f64());
    Ok(())
}
