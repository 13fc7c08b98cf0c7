//! What a store takes: how fast it is in both directions, what each transfer costs besides its
//! bytes, and whether the directions disturb each other.
//!
//! In: a folder. Out: the planner's view of a store in it. Bytes are moved as a training step moves
//! them, through the very file that it would use. A transfer of b bytes is taken to last latency +
//! b / rate, so two sizes say both: a small one, as biases have, and a large one, as weights and
//! activations have.

use std::path::Path;
use std::time::Instant;

use rekindle_engine::{Backing as _, EngineError, FileStore, PageBuffer, Threads};
use rekindle_graph::{Bytes, Micros, Rate, Store};

use crate::ProfileError;
use crate::measure::median;

/// Seldom smaller, and mostly latency.
const SMALL: usize = 64 << 10;
/// Few weights or activations are larger, and those move at the same speed.
const LARGE: usize = 16 << 20;
/// Places of the file that take turns, so that no device answers from its own cache alone.
const PLACES: u64 = 16;
/// Transfers of each size in each direction; the median counts.
const TRANSFERS: usize = 16;
/// Both directions at once, taking less than this share of one after the other, are two channels.
const DUPLEX: f64 = 0.75;

/// Measures a store in `folder` that may hold `limit`.
///
/// # Errors
/// If no file can be made there, or it cannot be written or read.
pub fn measure_store(folder: &Path, limit: Option<Bytes>) -> Result<Store, ProfileError> {
    let file = FileStore::new(folder, Bytes(2 * PLACES * LARGE as u64))?;
    let mut buffer = PageBuffer::new(LARGE);
    buffer.first(LARGE).iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
    // Every place once, so that the first write of one is not measured.
    for place in 0..2 * PLACES {
        let written = file.write(place * LARGE as u64, buffer.first(LARGE));
        written.map_err(|error| failed(&file, &error))?;
    }
    let [out_small, out_large] =
        [SMALL, LARGE].map(|bytes| times(|at| file.write(at, buffer.first(bytes))));
    let [in_small, in_large] =
        [SMALL, LARGE].map(|bytes| times(|at| file.read(at, buffer.first(bytes))));
    let fail = |error: std::io::Error| failed(&file, &error);
    let out = Line::through(out_small.map_err(fail)?, out_large.map_err(fail)?);
    let back = Line::through(in_small.map_err(fail)?, in_large.map_err(fail)?);
    let apart = (out.large + back.large) * TRANSFERS as f64;
    let together = both_at_once(&file).map_err(fail)?;
    Ok(Store {
        out_rate: Rate(out.rate),
        in_rate: Rate(back.rate),
        latency: Micros((out.latency + back.latency) / 2.0),
        duplex: together < DUPLEX * apart,
        limit,
        activations_only: false,
    })
}

fn failed(file: &FileStore, error: &std::io::Error) -> ProfileError {
    EngineError::Store {
        what: "measure",
        name: file.name(),
        reason: error.to_string(),
        advice: "check the disk, or choose a folder on another one",
    }
    .into()
}

/// The median time of a transfer.
fn times(mut transfer: impl FnMut(u64) -> std::io::Result<()>) -> std::io::Result<Micros> {
    let mut times = Vec::new();
    for number in 0..TRANSFERS as u64 {
        let started = Instant::now();
        transfer(number % PLACES * LARGE as u64)?;
        times.push(Micros(started.elapsed().as_secs_f64() * 1e6));
    }
    Ok(median(times))
}

/// What transfers of both sizes say about all of them.
struct Line {
    /// Bytes per microsecond.
    rate: f64,
    latency: f64,
    /// The time of a large one.
    large: f64,
}

impl Line {
    fn through(small: Micros, large: Micros) -> Line {
        let (small, large) = (small.get(), large.get());
        // A clock may tick once for both.
        let rate = (LARGE - SMALL) as f64 / (large - small).max(large / 2.0).max(1e-3);
        Line { rate, latency: (small - SMALL as f64 / rate).max(0.0), large }
    }
}

/// How long the same number of large transfers in both directions takes, at the same time.
fn both_at_once(file: &FileStore) -> std::io::Result<f64> {
    let threads = Threads::new(2);
    let buffers = [(); 2].map(|()| std::sync::Mutex::new(PageBuffer::new(LARGE)));
    let results = [(); 2].map(|()| std::sync::Mutex::new(Ok(())));
    let started = Instant::now();
    threads.run(2, &|_, task| {
        let mut buffer = buffers[task].lock().expect("nobody panics");
        let bytes = buffer.first(LARGE);
        let done = (0..TRANSFERS as u64).try_for_each(|number| {
            let place = task as u64 * PLACES + number % PLACES;
            match task {
                0 => file.write(place * LARGE as u64, bytes),
                _ => file.read(place * LARGE as u64, bytes),
            }
        });
        *results[task].lock().expect("nobody panics") = done;
    });
    let took = started.elapsed().as_secs_f64() * 1e6;
    for result in results {
        result.into_inner().expect("nobody panics")?;
    }
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sizes_say_rate_and_latency() {
        let time = |bytes: usize| Micros(50.0 + bytes as f64 / 1000.0);
        let line = Line::through(time(SMALL), time(LARGE));
        assert!((line.rate - 1000.0).abs() < 1e-6, "{}", line.rate);
        assert!((line.latency - 50.0).abs() < 1e-6, "{}", line.latency);
    }

    #[test]
    fn a_store_in_a_folder_has_numbers_that_can_be() {
        let store = measure_store(&std::env::temp_dir(), Some(Bytes(7))).expect("room");
        assert!(store.out_rate.get() > 0.0 && store.out_rate.get().is_finite());
        assert!(store.in_rate.get() > 0.0 && store.in_rate.get().is_finite());
        assert!(store.latency.get() >= 0.0);
        assert_eq!(store.limit, Some(Bytes(7)));
        let missing = measure_store(Path::new("/there/is/no/such/folder"), None);
        let text = missing.expect_err("no folder").to_string();
        assert!(text.contains("/there/is/no/such/folder"), "{text}");
    }
}
