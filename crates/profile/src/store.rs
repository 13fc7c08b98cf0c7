//! What a store takes: how fast it is in both directions, what each transfer costs besides its
//! bytes, and whether the directions disturb each other.
//!
//! In: a folder, and the step whose storages would be moved to it. Out: the planner's view of a
//! store there. Bytes are moved as a training step moves them, through the very file that it would
//! use, in transfers of two sizes that the step's own storages have: a transfer of b bytes is taken
//! to last latency + b / rate, and two sizes say both.
//!
//! A device is faster for its first bytes than for the next, and not always equally fast. So
//! transfers out, transfers in and both at once take turns until [`ENOUGH`] time is over or so many
//! bytes are moved, and what counts is all of their time, pauses included.

use std::path::Path;
use std::time::{Duration, Instant};

use rekindle_engine::{Backing as _, EngineError, FileStore, PageBuffer, Threads};
use rekindle_graph::{Bytes, Graph, Micros, Rate, Store};

use crate::ProfileError;
use crate::measure::median;

/// Transfers are not measured at smaller sizes than this: they are all latency.
const SMALLEST: usize = 64 << 10;
/// Nor at larger ones: those move at the same speed, and a file for them takes long to write.
const LARGEST: usize = 16 << 20;
/// Bytes of the file for each direction: more than a device's own cache answers for.
const FILE: usize = 256 << 20;
/// Bytes in one turn of a direction, at least one transfer.
const TURN: usize = 64 << 20;
/// Transfers of the smaller size in one turn.
const SMALL_TRANSFERS: u64 = 8;
/// How long turns go on. On a virtual disk the rate of a gigabyte and a half differed by a quarter
/// from one time to the next, so less than that says little.
const ENOUGH: Duration = Duration::from_millis(1500);
/// The most turns, where a store is as fast as memory.
const MOST_TURNS: usize = 16;
/// Both directions at once, taking less than this share of one after the other, are two channels.
const DUPLEX: f64 = 0.75;

/// What was measured of a store.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredStore {
    /// The planner's view of it.
    pub store: Store,
    /// Microseconds that a byte takes of a processor, on its way out and in. The planner's clock
    /// does not know them: where every core computes, they slow the computation down.
    pub processor: [f64; 2],
}

/// Measures a store in `folder` that may hold `limit`, for storages such as those of `graph`.
///
/// # Errors
/// If no file can be made there, or it cannot be written or read.
pub fn measure_store(
    folder: &Path,
    limit: Option<Bytes>,
    graph: &Graph,
) -> Result<MeasuredStore, ProfileError> {
    let file = FileStore::new(folder, Bytes(2 * FILE as u64))?;
    let probe = Probe::new(&file, sizes(graph));
    let measured = probe.run().map_err(|error| EngineError::Store {
        what: "measure",
        name: file.name(),
        reason: error.to_string(),
        advice: "check the disk, or choose a folder on another one",
    })?;
    Ok(MeasuredStore { store: Store { limit, ..measured.store }, ..measured })
}

/// A smaller and a larger size of transfers: less than a quarter of the bytes are in smaller
/// storages than the first, and less than a quarter in larger ones than the second.
fn sizes(graph: &Graph) -> [usize; 2] {
    let mut sizes: Vec<u64> = graph.storages().iter().map(|s| s.bytes.get()).collect();
    sizes.sort_unstable();
    let all: u64 = sizes.iter().sum();
    let at = |part: u64| {
        let mut below = 0;
        let size = sizes.iter().find(|&&size| {
            below += size;
            below >= all / 4 * part
        });
        size.map_or(0, |&size| size as usize)
    };
    let within = |size: usize, least: usize| size.clamp(least, LARGEST).next_multiple_of(SMALLEST);
    let large = within(at(3), 4 * SMALLEST);
    [within(at(1), SMALLEST).min(large / 4).next_multiple_of(SMALLEST), large]
}

/// Transfers to and from a file, timed.
struct Probe<'f> {
    file: &'f FileStore,
    small: usize,
    large: usize,
}

/// What one direction took, in microseconds.
#[derive(Default)]
struct Times {
    small: Vec<Micros>,
    /// Large transfers and all of their time, alone.
    alone: (u64, f64),
    /// Likewise while the other direction went on.
    together: (u64, f64),
    /// What the processor did for those alone.
    processor: f64,
}

#[derive(Clone, Copy)]
enum Way {
    Out,
    In,
}

impl Probe<'_> {
    fn new(file: &FileStore, [small, large]: [usize; 2]) -> Probe<'_> {
        Probe { file, small, large }
    }

    fn run(&self) -> std::io::Result<MeasuredStore> {
        // One for each direction, both touched before anything is timed.
        let mut buffers = [PageBuffer::new(self.large)?, PageBuffer::new(self.large)?];
        for buffer in &mut buffers {
            buffer.first(self.large).iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
        }
        // Every place once, so that the first write of one is not measured.
        for place in 0..2 * self.places() {
            self.transfer(Way::Out, place, self.large, &mut buffers[0])?;
        }
        let mut ways = [Times::default(), Times::default()];
        let mut both = 0.0;
        let started = Instant::now();
        for turn in 0..MOST_TURNS as u64 {
            let directions = [Way::Out, Way::In].into_iter().zip(&mut ways);
            for ((way, times), buffer) in directions.zip(&mut buffers) {
                for number in 0..SMALL_TRANSFERS {
                    let began = Instant::now();
                    let place = turn * SMALL_TRANSFERS + number;
                    self.transfer(way, place, self.small, buffer)?;
                    times.small.push(micros(began));
                }
                let before = processor_time();
                let (count, took) = self.turn(way, turn, buffer)?;
                times.processor += processor_time() - before;
                times.alone = (times.alone.0 + count, times.alone.1 + took);
            }
            both += self.both_at_once(turn, &mut ways, &mut buffers)?;
            if started.elapsed() >= ENOUGH {
                break;
            }
        }
        Ok(self.store(ways, both))
    }

    /// How many large transfers a direction has room for in the file.
    fn places(&self) -> u64 {
        (FILE / self.large) as u64
    }

    fn transfer(
        &self,
        way: Way,
        place: u64,
        bytes: usize,
        buffer: &mut PageBuffer,
    ) -> std::io::Result<()> {
        let at = place % (2 * self.places()) * self.large as u64;
        match way {
            Way::Out => self.file.write(at, buffer.first(bytes)),
            Way::In => self.file.read(at, buffer.first(bytes)),
        }
    }

    /// Large transfers, one after the other: how many, and how long they took.
    fn turn(&self, way: Way, turn: u64, buffer: &mut PageBuffer) -> std::io::Result<(u64, f64)> {
        let count = (TURN / self.large).max(1) as u64;
        // Each direction has a half of the file.
        let first = match way {
            Way::Out => 0,
            Way::In => self.places(),
        };
        let began = Instant::now();
        for number in turn * count..(turn + 1) * count {
            self.transfer(way, first + number % self.places(), self.large, buffer)?;
        }
        Ok((count, micros(began).get()))
    }

    /// A turn of both directions at the same time. Gives how long it took.
    fn both_at_once(
        &self,
        turn: u64,
        ways: &mut [Times; 2],
        buffers: &mut [PageBuffer; 2],
    ) -> std::io::Result<f64> {
        let threads = Threads::new(2);
        let buffers = buffers.each_mut().map(std::sync::Mutex::new);
        let results = [(); 2].map(|()| std::sync::Mutex::new(Ok((0, 0.0))));
        let began = Instant::now();
        threads.run(2, &|_, task| {
            let way = [Way::Out, Way::In][task];
            let done = self.turn(way, turn, &mut buffers[task].lock().expect("nobody panics"));
            *results[task].lock().expect("nobody panics") = done;
        });
        let took = micros(began).get();
        for (times, result) in ways.iter_mut().zip(results) {
            let (count, took) = result.into_inner().expect("nobody panics")?;
            times.together = (times.together.0 + count, times.together.1 + took);
        }
        Ok(took)
    }

    /// What the times say. Where both directions go at once, each is as fast as it is beside the
    /// other one.
    fn store(&self, ways: [Times; 2], both: f64) -> MeasuredStore {
        let processor = [0, 1].map(|way: usize| {
            let Times { processor, alone: (count, _), .. } = &ways[way];
            processor / (count * self.large as u64).max(1) as f64
        });
        let apart = ways[0].alone.1 + ways[1].alone.1;
        let duplex = both < DUPLEX * apart;
        let [out, back] = ways.map(|times| {
            let (count, took) = if duplex { times.together } else { times.alone };
            let small = (self.small, median(times.small).get());
            Line::through(small, (self.large, took / count.max(1) as f64))
        });
        let store = Store {
            out_rate: Rate(out.rate),
            in_rate: Rate(back.rate),
            latency: Micros((out.latency + back.latency) / 2.0),
            duplex,
            limit: None,
            activations_only: false,
        };
        MeasuredStore { store, processor }
    }
}

/// What this thread has taken of a processor so far, in microseconds.
#[cfg(unix)]
fn processor_time() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
}

/// Where the system does not tell, transfers are taken to need none.
#[cfg(not(unix))]
fn processor_time() -> f64 {
    0.0
}

fn micros(since: Instant) -> Micros {
    Micros(since.elapsed().as_secs_f64() * 1e6)
}

/// What transfers of both sizes say about all of them.
struct Line {
    /// Bytes per microsecond.
    rate: f64,
    latency: f64,
}

impl Line {
    /// Through the bytes and microseconds of a small and a large transfer.
    fn through(small: (usize, f64), large: (usize, f64)) -> Line {
        let bytes = (large.0 - small.0) as f64;
        // A clock may tick once for both.
        let rate = bytes / (large.1 - small.1).max(large.1 / 2.0).max(1e-3);
        Line { rate, latency: (small.1 - small.0 as f64 / rate).max(0.0) }
    }
}

#[cfg(test)]
mod tests {
    use rekindle_program::Optimizer;

    use super::*;

    fn graph() -> Graph {
        let options = rekindle_models::ModelOptions {
            batch: 2,
            optimizer: Some(Optimizer::sgd(0.1)),
            ..Default::default()
        };
        let model = rekindle_models::build("mlp", &options).expect("a model");
        rekindle_engine::lower(&model.program, 1)
    }

    #[test]
    fn two_sizes_say_rate_and_latency() {
        let at = |bytes: usize| (bytes, 50.0 + bytes as f64 / 1000.0);
        let line = Line::through(at(SMALLEST), at(LARGEST));
        assert!((line.rate - 1000.0).abs() < 1e-6, "{}", line.rate);
        assert!((line.latency - 50.0).abs() < 1e-6, "{}", line.latency);
    }

    #[test]
    fn sizes_are_those_of_most_bytes() {
        let graph = graph();
        let [small, large] = sizes(&graph);
        assert!(SMALLEST <= small && 4 * small <= large.next_multiple_of(4 * SMALLEST));
        assert!(large <= LARGEST && large.is_multiple_of(SMALLEST), "{large}");
        let most = graph.storages().iter().map(|s| s.bytes.get()).max().expect("some");
        assert!(large as u64 <= most.next_multiple_of(4 * SMALLEST as u64), "{large} of {most}");
    }

    /// A disk that does one thing at a time, one that does two at full speed, and one that does
    /// two at less.
    #[test]
    fn two_channels_are_two_if_that_takes_less_time() {
        let folder = std::env::temp_dir();
        let file = FileStore::new(&folder, Bytes(1)).expect("room");
        let probe = Probe::new(&file, [1 << 20, 4 << 20]);
        let times = |alone: f64, together: f64| Times {
            small: vec![Micros(alone / 4.0)],
            alone: (1, alone),
            together: (1, together),
            processor: alone / 8.0,
        };
        let measured = |both: f64| probe.store([times(2e3, both), times(4e3, both)], both);
        let rate = |micros: f64| Rate(f64::from(4 << 20) / micros);
        let close = |a: Rate, b: Rate| (a.get() / b.get() - 1.0).abs() < 1e-9;
        let MeasuredStore { store: one, processor } = measured(6e3);
        assert!(!one.duplex && close(one.out_rate, rate(2e3)) && close(one.in_rate, rate(4e3)));
        assert_eq!(processor, [2e3, 4e3].map(|alone| alone / 8.0 / f64::from(4 << 20)));
        let two = measured(4e3).store;
        assert!(two.duplex && close(two.in_rate, rate(4e3)), "{two:?}");
    }

    #[test]
    fn a_store_in_a_folder_has_numbers_that_can_be() {
        let measured =
            measure_store(&std::env::temp_dir(), Some(Bytes(7)), &graph()).expect("room");
        assert!(measured.processor.iter().all(|&takes| takes >= 0.0 && takes.is_finite()));
        let store = measured.store;
        assert!(store.out_rate.get() > 0.0 && store.out_rate.get().is_finite());
        assert!(store.in_rate.get() > 0.0 && store.in_rate.get().is_finite());
        assert!(store.latency.get() >= 0.0);
        assert_eq!(store.limit, Some(Bytes(7)));
        let missing = measure_store(Path::new("/there/is/no/such/folder"), None, &graph());
        let text = missing.expect_err("no folder").to_string();
        assert!(text.contains("/there/is/no/such/folder"), "{text}");
    }
}
