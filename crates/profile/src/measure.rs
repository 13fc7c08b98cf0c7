//! Running a step with a clock: time and bytes of every node, and what swapping each activation
//! costs.
//!
//! In: an engine with a batch in place, set up for the plain step or, where that does not fit, for
//! one that recomputes or moves: what a node takes does not depend on what ran before it. Out: a
//! [`Measurement`] of the plain step.
//!
//! The first steps are warm-up: their times are discarded, and in them every activation, as soon as
//! it is made, is copied to memory and back under the clock, unless a store says what that takes.
//! Then come the measured steps; the time of a run is the median over them, and that of a node the
//! mean of its runs. The clock is read just before and just after each kernel.

use std::time::Instant;

use rekindle_analysis::{Analysis, Measurements, Profile, Seconds, node_peaks};
use rekindle_engine::{Engine, Iteration, Layout, Observer, lower};
use rekindle_graph::{Bytes, Graph, Micros, NodeId, Rate, StorageId, Store};

use crate::ProfileError;

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasureOptions {
    /// Steps whose times are discarded. With none, one more step is run to time the swaps.
    pub warmup: usize,
    /// Steps whose times count.
    pub measured: usize,
    /// Of the randomness in the step.
    pub seed: u64,
}

impl Default for MeasureOptions {
    fn default() -> Self {
        MeasureOptions { warmup: 1, measured: 3, seed: 0 }
    }
}

impl MeasureOptions {
    /// How many steps are run in all.
    pub fn steps(&self) -> usize {
        self.warmup.max(1) + self.measured
    }
}

/// How far the measuring has come, in runs of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasureProgress {
    /// Runs that are over.
    pub done: usize,
    /// Runs in all.
    pub total: usize,
}

/// How it is found what swapping an activation out and back takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Swaps {
    /// It is not.
    Unknown,
    /// Each is copied to memory beside the arena, and back.
    Memory,
    /// By what this store takes.
    Store(Store),
}

/// What was measured of the plain step.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The step, with the time of each node.
    pub graph: Graph,
    /// The highest bytes in use while each node ran; indexed by node, the start's for inputs. Where
    /// another step ran, what they would have been.
    pub peak_mem: Vec<Bytes>,
    /// To copy each activation out and back, in the order of [`Analysis::activations`].
    pub swap_times: Vec<Option<Seconds>>,
}

impl Measurement {
    /// The profile that follows from it.
    pub fn profile(&self, model: &str, batch_size: usize, device: &str) -> Profile {
        let measured =
            Measurements { device, peak_mem: &self.peak_mem, swap_times: &self.swap_times };
        Profile::new(model, batch_size, &self.graph, &measured)
    }
}

/// Measures the plain step by runs of what `engine` is set up for.
///
/// # Errors
/// If no step is to be measured, the batch is bad, the store fails, or there is no memory for a
/// copy of an activation.
pub fn measure(
    engine: &mut Engine,
    options: &MeasureOptions,
    swaps: Swaps,
    watch: &mut dyn FnMut(MeasureProgress),
) -> Result<Measurement, ProfileError> {
    if options.measured == 0 {
        return Err(ProfileError::NothingMeasured);
    }
    let layout = engine.layout().clone();
    let plain = lower(layout.program(), layout.threads());
    let activations = Analysis::new(&plain).activations;
    let activations: Vec<StorageId> = activations.iter().map(|a| a.storage).collect();
    let runs = layout.graph().natural_order().into_iter();
    let per_step = runs.filter(|&id| layout.run_of(id).is_some()).count();
    let mut progress = MeasureProgress { done: 0, total: per_step * options.steps() };
    let mut number = 0;
    let mut next = || {
        number += 1;
        Iteration { seed: options.seed, number }
    };
    let copied: &[StorageId] = if swaps == Swaps::Memory { &activations } else { &[] };
    let mut copies = CopyTimer::new(&layout, copied, watch, progress);
    for _ in 0..options.warmup.max(1) {
        engine.run_observed(next(), &mut copies)?;
    }
    let copies_took = copies.averages()?;
    progress = copies.progress;
    let mut nodes = NodeTimer::new(&layout, watch, progress);
    for _ in 0..options.measured {
        engine.run_observed(next(), &mut nodes)?;
    }
    let is_plain = layout.graph() == &plain;
    let (times, peaks) = nodes.of_plain(&layout, &plain);
    let swap_time = |storage: &StorageId| match swaps {
        Swaps::Unknown => None,
        Swaps::Memory => copies_took[storage.index()],
        Swaps::Store(store) => swap_time(store, plain.storage(*storage).bytes),
    };
    Ok(Measurement {
        swap_times: activations.iter().map(swap_time).collect(),
        peak_mem: if is_plain { peaks } else { node_peaks(&plain) },
        graph: plain.with_times(&times)?,
    })
}

/// What a store takes out and back; `None` if it goes one way only.
fn swap_time(store: Store, bytes: Bytes) -> Option<Seconds> {
    let one_way = |rate: Rate| store.latency.get() + bytes.get() as f64 / rate.get();
    let time = Micros(one_way(store.out_rate) + one_way(store.in_rate));
    time.get().is_finite().then(|| Seconds::from(time))
}

/// Copies each activation to memory and back as soon as it is made.
struct CopyTimer<'a> {
    layout: &'a Layout,
    /// One buffer serves all activations, since each comes back before the next one goes.
    copy: Vec<u8>,
    /// Indexed by tensor of the program, like the rest.
    is_copied: Vec<bool>,
    /// Sum and count of the times.
    times: Vec<(f64, u32)>,
    failed: Option<ProfileError>,
    watch: &'a mut dyn FnMut(MeasureProgress),
    progress: MeasureProgress,
}

impl<'a> CopyTimer<'a> {
    fn new(
        layout: &'a Layout,
        copied: &[StorageId],
        watch: &'a mut dyn FnMut(MeasureProgress),
        progress: MeasureProgress,
    ) -> CopyTimer<'a> {
        let mut is_copied = vec![false; layout.program().tensors.len()];
        copied.iter().for_each(|s| is_copied[s.index()] = true);
        CopyTimer {
            layout,
            copy: Vec::new(),
            times: vec![(0.0, 0); is_copied.len()],
            is_copied,
            failed: None,
            watch,
            progress,
        }
    }

    /// Copies `contents` out and back. To grow the buffer would be slower than every later use of
    /// it, so that is done before the clock starts.
    fn time(&mut self, contents: &mut [u8]) -> Result<f64, ProfileError> {
        if let more @ 1.. = contents.len().saturating_sub(self.copy.len()) {
            let room = self.copy.try_reserve_exact(more);
            room.map_err(|_| ProfileError::NoMemoryForCopy(Bytes(contents.len() as u64)))?;
            self.copy.resize(contents.len(), 0);
        }
        let copy = &mut self.copy[..contents.len()];
        let started = Instant::now();
        copy.copy_from_slice(contents);
        contents.copy_from_slice(copy);
        Ok(started.elapsed().as_secs_f64())
    }

    fn averages(&mut self) -> Result<Vec<Option<Seconds>>, ProfileError> {
        let average = |&(sum, count): &(f64, u32)| Seconds(sum / f64::from(count));
        let averages = self.times.iter().map(|time| (time.1 > 0).then(|| average(time)));
        self.failed.take().map_or_else(|| Ok(averages.collect()), Err)
    }
}

impl Observer for CopyTimer<'_> {
    fn before(&mut self, _: NodeId) {}

    fn after(&mut self, _: NodeId, _: Bytes) {
        self.progress.done += 1;
        (self.watch)(self.progress);
    }

    fn made(&mut self, storage: StorageId, contents: &mut [u8]) {
        let tensor = self.layout.tensor_of(storage).index();
        if !self.is_copied[tensor] || self.failed.is_some() {
            return;
        }
        match self.time(contents) {
            Ok(seconds) => {
                let (sum, count) = &mut self.times[tensor];
                *sum += seconds;
                *count += 1;
            }
            Err(error) => self.failed = Some(error),
        }
    }
}

/// Times every node.
struct NodeTimer<'a> {
    started: Instant,
    /// Indexed by node; one time for each run.
    times: Vec<Vec<Micros>>,
    peak_mem: Vec<Bytes>,
    watch: &'a mut dyn FnMut(MeasureProgress),
    progress: MeasureProgress,
}

impl<'a> NodeTimer<'a> {
    fn new(
        layout: &Layout,
        watch: &'a mut dyn FnMut(MeasureProgress),
        progress: MeasureProgress,
    ) -> NodeTimer<'a> {
        let graph = layout.graph();
        let start = graph.sources().map(|s| graph.storage(s).bytes).sum();
        NodeTimer {
            started: Instant::now(),
            times: vec![Vec::new(); graph.nodes().len()],
            peak_mem: vec![start; graph.nodes().len()],
            watch,
            progress,
        }
    }

    /// The time of each node of the plain step: the mean over the runs that stand for it; and the
    /// bytes of each node of the graph that ran.
    fn of_plain(self, layout: &Layout, plain: &Graph) -> (Vec<Micros>, Vec<Bytes>) {
        let mut runs = vec![(0.0, 0); plain.nodes().len()];
        for (id, times) in layout.graph().node_ids().zip(self.times) {
            if let Some(origin) = layout.run_of(id) {
                let (sum, count) = &mut runs[origin.index()];
                *sum += median(times).get();
                *count += 1;
            }
        }
        let mean = |(sum, count): (f64, u32)| Micros(sum / f64::from(count.max(1)));
        (runs.into_iter().map(mean).collect(), self.peak_mem)
    }
}

impl Observer for NodeTimer<'_> {
    fn before(&mut self, _: NodeId) {
        self.started = Instant::now();
    }

    fn after(&mut self, node: NodeId, in_use: Bytes) {
        let took = self.started.elapsed();
        self.times[node.index()].push(Micros(took.as_secs_f64() * 1e6));
        // The same in every step, since addresses are fixed before the first.
        self.peak_mem[node.index()] = in_use;
        self.progress.done += 1;
        (self.watch)(self.progress);
    }
}

/// The middle one; the mean of the two in the middle of an even number; zero of none.
pub(crate) fn median(mut times: Vec<Micros>) -> Micros {
    times.sort_by(|a, b| a.get().total_cmp(&b.get()));
    let middle = times.len() / 2;
    match times.len() {
        0 => Micros::ZERO,
        n if n % 2 == 1 => times[middle],
        _ => Micros((times[middle - 1].get() + times[middle].get()) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let of = |times: &[f64]| median(times.iter().copied().map(Micros).collect()).get();
        assert_eq!(of(&[]), 0.0);
        assert_eq!(of(&[3.0]), 3.0);
        assert_eq!(of(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(of(&[4.0, 1.0, 9.0, 2.0]), 3.0);
    }
}
