//! The largest batch that trains in a budget, plain and planned.
//!
//! In: how to build the model at a batch size, a budget, and how much more time a plan may take.
//! Out: [`MaxBatch`]: the largest plain batch, the largest planned one with everything that
//! [`fit_profiled`] gives for it, and why the next one was refused.
//!
//! Method. Peaks need no run: the plain step is placed at one batch size after the other. Times do,
//! and a step at every size would take too long; so each node is measured at one small batch size,
//! and its time at another is scaled by the ratio of its [`estimate`]s, which follow its operations
//! and bytes. A batch size is accepted if its plan, made with those times, passed the checker, its
//! arena is within the budget and its overhead within the limit. The size doubles until one is
//! refused, then the interval is halved: first with little effort, to come near, then with the
//! effort asked for, until the refused size is the next one (from 32 samples on, within a 32nd:
//! nobody needs it closer).
//!
//! Invariant: the accepted sizes were planned, verified and placed; the refused one was tried.
//!
//! Limits: memory and overhead are taken to grow with the batch, as they do for batches of samples;
//! a larger size beyond a refused one is not looked for. Overheads are predictions.

use rekindle_engine::{Layout, Peak, lower};
use rekindle_graph::{Bytes, Graph, Micros};
use rekindle_models::{Model, ModelError};
use rekindle_plan::{Effort, Watch};

use crate::{
    Error, FitOptions, Fitted, Preparing, estimate, fit_profiled, plain, profile, with_store,
};

/// What may be asked of a batch size.
#[derive(Clone, Debug)]
pub struct MaxBatchOptions {
    /// The bytes that the arena may use.
    pub budget: Bytes,
    /// How much more time than the plain step of the same size a plan may take, as a share of it.
    pub max_overhead: Option<f64>,
    /// How each size is fitted.
    pub fit: FitOptions,
}

/// The answer.
#[derive(Clone, Debug)]
pub struct MaxBatch {
    /// The batch size at which nodes were measured.
    pub measured_at: usize,
    /// The largest batch without recomputation; `None` if not even one sample fits.
    pub plain: Option<PlainBatch>,
    /// The planned batch size.
    pub batch: usize,
    /// The verified step of that batch size, with scaled times.
    pub fitted: Fitted,
    /// The smallest size that was refused, and why; `None` at [`LARGEST`].
    pub refused: Option<(usize, Refusal)>,
}

/// A batch size of the plain step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlainBatch {
    /// How many samples a batch has.
    pub batch: usize,
    /// The predicted peak; a run has exactly this.
    pub peak: Peak,
    /// The time of a training step, scaled from the measured batch size.
    pub time: Micros,
}

/// Why a batch size is too large.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Refusal {
    /// No plan's arena fits; this is the smallest that is known.
    Memory(Bytes),
    /// Nothing can fit: this much must coexist in any plan.
    Floor(Bytes),
    /// The best plan found takes this much more time, as a share of the plain step's.
    Overhead(f64),
}

/// Sees each batch size before it is planned, and the planner's progress.
pub trait BatchWatch: Watch {
    /// Nodes are being measured at this batch size.
    fn preparing(&mut self, batch: usize, preparing: Preparing);
    /// A plan for this batch size is next.
    fn trying(&mut self, batch: usize);
}

/// The largest batch size that is tried: beyond it nobody trains.
pub const LARGEST: usize = 1 << 20;
/// By the estimate, a step at the measured size should take about this long: enough to measure,
/// short to wait for.
const MEASURED_STEP: Micros = Micros(8e6);
/// The search comes near with little effort: within this part of the batch size.
const NEAR: usize = 16;
/// The search with the effort asked for ends within this part.
const CLOSE: usize = 32;
/// Peaks alone are found exactly.
const EXACT: usize = usize::MAX;

/// Finds the largest batch size of the model that `build` makes.
///
/// # Errors
/// [`Error::DoesNotFit`] if not even one sample trains in the budget, [`Error::TooSlow`] if it does
/// but takes more time than allowed, and whatever `build` says.
pub fn max_batch(
    build: &dyn Fn(usize) -> Result<Model, ModelError>,
    options: &MaxBatchOptions,
    watch: &mut dyn BatchWatch,
) -> Result<MaxBatch, Error> {
    let threads = options.fit.threads;
    let one = build(1)?;
    let fit = with_store(&options.fit, &lower(&one.program, threads))?;
    let options = &MaxBatchOptions { fit, ..options.clone() };
    let mut largest_plain = None;
    let plain_size = largest(0, 1, 1, EXACT, |batch| {
        let layout = plain(&build(batch)?, threads);
        let fits = layout.predicted().arena <= options.budget;
        if fits {
            largest_plain = Some((batch, layout));
        }
        Ok(fits)
    })?;
    let measured_at = measured_size(&one, plain_size, threads);
    let model = build(measured_at)?;
    let measured =
        profile(&model, &plain(&model, threads), options.budget, &options.fit, &mut |preparing| {
            watch.preparing(measured_at, preparing)
        })?;
    let mut search =
        Search { build, options, measured: &measured, watch, accepted: None, refused: None };
    let step = plain_size.max(1);
    let near = largest(plain_size, plain_size + step, step, NEAR, |batch| {
        search.accepts(batch, Effort::FIRST)
    })?;
    search.refused = None;
    let effort = options.fit.plan.effort;
    let step = near.div_ceil(NEAR).max(1);
    let batch = largest(0, near, step, CLOSE, |batch| search.accepts(batch, effort))?;
    let accepted = search.accepted.filter(|&(at, _)| at == batch);
    let (_, fitted) = accepted.expect("the first batch size is accepted, or there is an error");
    Ok(MaxBatch {
        measured_at,
        plain: largest_plain
            .map(|(batch, layout)| plain_batch(batch, &layout, &measured))
            .transpose()?,
        batch,
        fitted,
        refused: search.refused.filter(|&(at, _)| at > batch),
    })
}

/// The largest size that is accepted, given that `low` is (or is nothing), trying `first` and then
/// going up in steps that double. Ends when the refused size is within `low / part` above, or next
/// to it.
fn largest(
    mut low: usize,
    first: usize,
    mut step: usize,
    part: usize,
    mut accepts: impl FnMut(usize) -> Result<bool, Error>,
) -> Result<usize, Error> {
    let mut next = first.max(1);
    let mut high = loop {
        if next > LARGEST {
            break LARGEST + 1;
        }
        if !accepts(next)? {
            break next;
        }
        low = next;
        next += step;
        step *= 2;
    };
    while high - low > (low / part).max(1) {
        let middle = low + (high - low) / 2;
        match accepts(middle)? {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(low)
}

/// The power of two, no larger than the plain step allows, whose step takes about
/// [`MEASURED_STEP`].
fn measured_size(one: &Model, plain: usize, threads: usize) -> usize {
    let estimated = estimate(&lower(&one.program, threads));
    let time: Micros = estimated.nodes().iter().map(|n| n.time).sum();
    let mut size = 1;
    while 2 * size <= plain && 2.0 * size as f64 * time.get() <= MEASURED_STEP.get() {
        size *= 2;
    }
    size
}

fn plain_batch(batch: usize, layout: &Layout, measured: &Graph) -> Result<PlainBatch, Error> {
    let graph = scaled(measured, layout.graph())?;
    Ok(PlainBatch {
        batch,
        peak: layout.predicted(),
        time: graph.nodes().iter().map(|n| n.time).sum(),
    })
}

/// The planned side: what was accepted and refused last.
struct Search<'a> {
    build: &'a dyn Fn(usize) -> Result<Model, ModelError>,
    options: &'a MaxBatchOptions,
    measured: &'a Graph,
    watch: &'a mut dyn BatchWatch,
    accepted: Option<(usize, Fitted)>,
    refused: Option<(usize, Refusal)>,
}

impl Search<'_> {
    /// Whether a batch size fits. That one sample does not is an error.
    fn accepts(&mut self, batch: usize, effort: Effort) -> Result<bool, Error> {
        self.watch.trying(batch);
        let mut options = self.options.fit.clone();
        options.plan.effort = effort;
        let model = (self.build)(batch)?;
        let graph = scaled(self.measured, &lower(&model.program, options.threads))?;
        let floor = match options.plan.store {
            Some(_) => rekindle_plan::floor_with_store(&graph),
            None => rekindle_plan::floor(&graph),
        };
        let floor = floor.bytes;
        if batch > 1 && floor > self.options.budget {
            self.refused = Some((batch, Refusal::Floor(floor)));
            return Ok(false);
        }
        let fitted =
            fit_profiled(&model.program, &graph, self.options.budget, &options, self.watch);
        let allowed = self.options.max_overhead.unwrap_or(f64::INFINITY);
        let refusal = match fitted {
            Ok(fitted) if fitted.overhead() <= allowed => {
                self.accepted = Some((batch, fitted));
                return Ok(true);
            }
            Ok(fitted) => {
                let overhead = fitted.overhead();
                if batch == 1 {
                    return Err(Error::TooSlow { overhead, allowed });
                }
                Refusal::Overhead(overhead)
            }
            Err(Error::DoesNotFit { smallest, .. }) if batch > 1 => Refusal::Memory(smallest),
            Err(error) => return Err(error),
        };
        self.refused = Some((batch, refusal));
        Ok(false)
    }
}

/// The times of `measured` for the same nodes at another batch size.
fn scaled(measured: &Graph, other: &Graph) -> Result<Graph, Error> {
    let same = measured.nodes().iter().zip(other.nodes());
    if measured.nodes().len() != other.nodes().len()
        || !same.clone().all(|(a, b)| a.name == b.name && a.op == b.op)
    {
        return Err(Error::OtherNodes {
            measured: measured.name().into(),
            other: other.name().into(),
        });
    }
    let (from, to) = (estimate(measured), estimate(other));
    let times = measured.nodes().iter().zip(from.nodes()).zip(to.nodes());
    let times: Vec<Micros> = times
        .map(|((node, from), to)| match from.time > Micros::ZERO {
            true => Micros(node.time.get() * (to.time.get() / from.time.get())),
            false => node.time,
        })
        .collect();
    let graph = other.with_times(&times);
    Ok(graph.expect("one finite time for every node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every limit is found exactly, however the search starts.
    #[test]
    fn the_largest_is_next_to_a_refused_one() {
        for limit in 1..200 {
            for (low, first, step) in [(0, 1, 1), (0, 64, 4), (1, 2, 1), (limit / 2, limit, 3)] {
                let mut tried = Vec::new();
                let found = largest(low.min(limit), first, step, EXACT, |size| {
                    tried.push(size);
                    Ok(size <= limit)
                });
                assert_eq!(found.expect("no error"), limit, "{low} {first} {step}");
                assert!(tried.contains(&(limit + 1)));
            }
        }
    }

    #[test]
    fn near_is_near_enough_and_takes_fewer_tries() {
        let mut tries = [0, 0];
        for (part, tries) in [EXACT, NEAR].into_iter().zip(&mut tries) {
            let found = largest(100, 200, 100, part, |size| {
                *tries += 1;
                Ok(size <= 777)
            });
            let found = found.expect("no error");
            assert!(found <= 777 && found + found / NEAR >= 777, "{found}");
        }
        assert!(tries[1] < tries[0]);
    }

    #[test]
    fn nothing_beyond_the_largest_is_tried() {
        let found = largest(0, 1, 1, EXACT, |size| {
            assert!(size <= LARGEST);
            Ok(true)
        });
        assert_eq!(found.expect("no error"), LARGEST);
    }
}
