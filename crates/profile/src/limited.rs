//! Measuring a step that does not fit in a limit, by running it with swaps.
//!
//! In: a program and a limit in bytes. Out: an engine whose arena is within the limit, and the
//! [`Measurement`] of the *plain* step: the nodes' times are those of their runs between the swaps,
//! the swap times are those of the real copies, and the bytes are what the plain step would need.

use std::time::Instant;

use rekindle_analysis::{Analysis, Seconds, node_peaks};
use rekindle_engine::{Engine, Iteration, Layout, Observer, lower};
use rekindle_graph::{Bytes, Graph, Micros, NodeId, StorageId};
use rekindle_program::Program;

use crate::ProfileError;
use crate::measure::{MeasureOptions, MeasureProgress, Measurement, median};
use crate::swap::{SwapNode, Swapped, swap};

/// How often the walk is repeated with less room, when fragmentation takes what it had left. Each
/// time the room shrinks by what was too much, so a few times are enough or it does not fit.
const ATTEMPTS: usize = 8;

/// A step that swaps, set up to run within a limit.
pub struct Limited {
    /// Set up for the swapped program. Its spill tier must be set before it runs.
    pub engine: Engine,
    /// The swapped program.
    pub swapped: Swapped,
    /// The plain step.
    graph: Graph,
}

impl Limited {
    /// Sets up `program` to run in an arena of at most `limit`. `ready` is told now and then how
    /// many bytes of how large an arena are ready.
    ///
    /// # Errors
    /// If a node alone does not fit, or the step does not fit for all swapping.
    pub fn new(
        program: &Program,
        threads: usize,
        limit: Bytes,
        ready: &mut dyn FnMut(Bytes, Bytes),
    ) -> Result<Limited, ProfileError> {
        let graph = lower(program, threads);
        let mut room = limit;
        let mut smallest = Bytes(u64::MAX);
        for _ in 0..ATTEMPTS {
            let swapped = match swap(program, &graph, room) {
                Ok(swapped) => swapped,
                // With the whole limit the error names the node; with less only room is short.
                Err(error) if room == limit => return Err(error),
                Err(_) => break,
            };
            let layout = Layout::plain(&swapped.program, threads);
            let arena = layout.predicted().arena;
            if arena <= limit {
                let engine = Engine::with_layout(layout, 0, ready)?;
                return Ok(Limited { engine, swapped, graph });
            }
            smallest = smallest.min(arena);
            room = room.saturating_sub(arena - limit);
        }
        Err(ProfileError::LimitTooSmall { limit, needed: smallest })
    }

    /// Measures the step. The engine has its batch and its spill tier.
    ///
    /// # Errors
    /// If no step is to be measured, the batch is bad, or the spill tier fails.
    pub fn measure(
        &mut self,
        options: &MeasureOptions,
        watch: &mut dyn FnMut(MeasureProgress),
    ) -> Result<Measurement, ProfileError> {
        if options.measured == 0 {
            return Err(ProfileError::NothingMeasured);
        }
        let runs = self.swapped.program.nodes.len();
        let sources = self.graph.nodes().len() - self.graph.natural_order().len();
        let mut timer = Timer {
            started: Instant::now(),
            times: vec![Vec::new(); runs],
            watch,
            progress: MeasureProgress { done: 0, total: (runs - sources) * options.steps() },
        };
        for number in 1..=options.steps() as u64 {
            let seed = options.seed;
            self.engine.run_observed(Iteration { seed, number }, &mut timer)?;
            if number == options.steps() as u64 - options.measured as u64 {
                timer.times.iter_mut().for_each(Vec::clear);
            }
        }
        let medians: Vec<Micros> = timer.times.into_iter().map(median).collect();
        self.of_plain_step(&medians)
    }

    /// Assigns the times of the swapped program's nodes to what they do for the plain one.
    fn of_plain_step(&self, medians: &[Micros]) -> Result<Measurement, ProfileError> {
        let mut times = vec![Micros::ZERO; self.graph.nodes().len()];
        let mut swaps = vec![(Micros::ZERO, false, false); self.graph.storages().len()];
        for (&time, &origin) in medians.iter().zip(&self.swapped.origins) {
            match origin {
                SwapNode::Node(node) => times[node.index()] = time,
                SwapNode::Offload(s) => {
                    swaps[s.index()].0 += time;
                    swaps[s.index()].1 = true;
                }
                // A tensor that comes back several times went out once: one way back counts.
                SwapNode::Fetch(s) if !swaps[s.index()].2 => {
                    swaps[s.index()].0 += time;
                    swaps[s.index()].2 = true;
                }
                SwapNode::Fetch(_) => {}
            }
        }
        let swap_time = |storage: StorageId| match swaps[storage.index()] {
            (time, true, true) => Some(Seconds::from(time)),
            _ => None,
        };
        let activations = Analysis::new(&self.graph).activations;
        Ok(Measurement {
            graph: self.graph.with_times(&times)?,
            peak_mem: node_peaks(&self.graph),
            swap_times: activations.iter().map(|a| swap_time(a.storage)).collect(),
        })
    }
}

/// Times every node, copies included.
struct Timer<'a> {
    started: Instant,
    /// Indexed by node of the swapped program; one time for each run.
    times: Vec<Vec<Micros>>,
    watch: &'a mut dyn FnMut(MeasureProgress),
    progress: MeasureProgress,
}

impl Observer for Timer<'_> {
    fn before(&mut self, _: NodeId) {
        self.started = Instant::now();
    }

    fn after(&mut self, node: NodeId, _: Bytes) {
        let took = self.started.elapsed();
        self.times[node.index()].push(Micros(took.as_secs_f64() * 1e6));
        self.progress.done += 1;
        (self.watch)(self.progress);
    }
}
