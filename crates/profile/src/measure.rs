//! Running a step with a clock: time and bytes of every node, and what swapping each activation
//! costs.
//!
//! In: an engine that is set up for the plain step, with a batch in place. Out: a [`Measurement`].
//!
//! The first steps are warm-up: their times are discarded, and in them every activation, as soon as
//! it is made, is copied to the spill tier and back under the clock. Then come the measured steps;
//! a node's time is the median of its runs. The clock is read just before and just after each
//! kernel.

use std::time::Instant;

use rekindle_analysis::{ActivationUses, Analysis, Measurements, Profile, Seconds};
use rekindle_engine::{Engine, Iteration, Observer, Spill, SpillError};
use rekindle_graph::{Bytes, Graph, Micros, NodeId, StorageId};

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

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The step, with the median time of each node.
    pub graph: Graph,
    /// The highest bytes in use while each node ran; indexed by node, the start's for inputs.
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

/// Measures the step that `engine` is set up for.
///
/// # Errors
/// If no step is to be measured, the batch is bad, or the spill tier fails.
pub fn measure(
    engine: &mut Engine,
    options: &MeasureOptions,
    spill: &mut dyn Spill,
    watch: &mut dyn FnMut(MeasureProgress),
) -> Result<Measurement, ProfileError> {
    if options.measured == 0 {
        return Err(ProfileError::NothingMeasured);
    }
    let graph = engine.graph().clone();
    let activations = Analysis::new(&graph).activations;
    let runs = graph.natural_order().into_iter();
    let per_step = runs.filter(|&id| graph.node(id).transfer().is_none()).count();
    let mut progress = MeasureProgress { done: 0, total: per_step * options.steps() };
    let mut number = 0;
    let mut next = || {
        number += 1;
        Iteration { seed: options.seed, number }
    };
    let mut swaps = SwapTimer::new(&graph, &activations, spill, watch, progress);
    for _ in 0..options.warmup.max(1) {
        engine.run_observed(next(), &mut swaps)?;
    }
    let swap_times = swaps.averages(&activations)?;
    progress = swaps.progress;
    let mut nodes = NodeTimer::new(&graph, watch, progress);
    for _ in 0..options.measured {
        engine.run_observed(next(), &mut nodes)?;
    }
    let (times, peak_mem) = nodes.medians();
    Ok(Measurement { graph: graph.with_times(&times)?, peak_mem, swap_times })
}

/// Copies each activation to the spill tier and back as soon as it is made.
struct SwapTimer<'a> {
    spill: &'a mut dyn Spill,
    /// The bytes that the slot has room for.
    slot: usize,
    is_activation: Vec<bool>,
    /// Sum and count of the times; indexed by storage.
    times: Vec<(f64, u32)>,
    failed: Option<SpillError>,
    watch: &'a mut dyn FnMut(MeasureProgress),
    progress: MeasureProgress,
}

/// One slot serves all activations, since each comes back before the next one goes.
const SLOT: usize = 0;

impl<'a> SwapTimer<'a> {
    fn new(
        graph: &Graph,
        activations: &[ActivationUses],
        spill: &'a mut dyn Spill,
        watch: &'a mut dyn FnMut(MeasureProgress),
        progress: MeasureProgress,
    ) -> SwapTimer<'a> {
        let mut is_activation = vec![false; graph.storages().len()];
        for a in activations {
            is_activation[a.storage.index()] = true;
        }
        SwapTimer {
            spill,
            slot: 0,
            times: vec![(0.0, 0); is_activation.len()],
            is_activation,
            failed: None,
            watch,
            progress,
        }
    }

    /// Copies `contents` out and back. Growing the slot would be slower than every later use of
    /// it, so that is done before the clock starts.
    fn time(&mut self, contents: &mut [u8]) -> Result<f64, SpillError> {
        if contents.len() > self.slot {
            self.spill.store(SLOT, contents)?;
            self.slot = contents.len();
        }
        let started = Instant::now();
        self.spill.store(SLOT, contents)?;
        self.spill.load(SLOT, contents)?;
        Ok(started.elapsed().as_secs_f64())
    }

    fn averages(
        &mut self,
        activations: &[ActivationUses],
    ) -> Result<Vec<Option<Seconds>>, ProfileError> {
        if let Some(error) = self.failed.take() {
            return Err(ProfileError::Spill(error));
        }
        let average = |a: &ActivationUses| {
            let (sum, count) = self.times[a.storage.index()];
            (count > 0).then(|| Seconds(sum / f64::from(count)))
        };
        Ok(activations.iter().map(average).collect())
    }
}

impl Observer for SwapTimer<'_> {
    fn before(&mut self, _: NodeId) {}

    fn after(&mut self, _: NodeId, _: Bytes) {
        self.progress.done += 1;
        (self.watch)(self.progress);
    }

    fn made(&mut self, storage: StorageId, contents: &mut [u8]) {
        if !self.is_activation[storage.index()] || self.failed.is_some() {
            return;
        }
        match self.time(contents) {
            Ok(seconds) => {
                let (sum, count) = &mut self.times[storage.index()];
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
        graph: &Graph,
        watch: &'a mut dyn FnMut(MeasureProgress),
        progress: MeasureProgress,
    ) -> NodeTimer<'a> {
        let start = graph.sources().map(|s| graph.storage(s).bytes).sum();
        NodeTimer {
            started: Instant::now(),
            times: vec![Vec::new(); graph.nodes().len()],
            peak_mem: vec![start; graph.nodes().len()],
            watch,
            progress,
        }
    }

    fn medians(self) -> (Vec<Micros>, Vec<Bytes>) {
        let medians = self.times.into_iter().map(median).collect();
        (medians, self.peak_mem)
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
