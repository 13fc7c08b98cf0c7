//! The plain step and the planned one, measured side by side.
//!
//! Their steps run in short turns, so that whatever else happens on the machine happens to both.
//! The first step of each is warm-up; of the others the median counts, and of the overhead the
//! median of the steps' ratios. If both do not fit in memory at the same time they run one after
//! the other.

use std::cmp::Ordering;
use std::time::Duration;

use rekindle::{Error, Fitted, Trainer, side_by_side};
use rekindle_engine::{Engine, EngineError, Layout, Peak};
use rekindle_models::Model;

use super::stages::{engine, planned_engine};
use crate::exit::is_out_of_memory;
use crate::progress::Bar;

/// What a number of steps gave.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    /// Of each step, warm-up excluded.
    times: Vec<Duration>,
    /// Of each step, warm-up included.
    pub(crate) losses: Vec<f32>,
    /// The same in every step, and equal to the prediction.
    pub(crate) measured: Peak,
}

impl Side {
    /// The median.
    pub(crate) fn time(&self) -> Duration {
        median(self.times.clone())
    }
}

/// Both.
pub(crate) struct Pair {
    /// Why there is none, where the plain step does not fit in memory.
    pub(crate) plain: Result<Side, EngineError>,
    pub(crate) planned: Side,
    /// Whether their steps took turns.
    pub(crate) interleaved: bool,
}

/// One of the two on its way.
struct Run<'m> {
    trainer: Trainer<'m>,
    side: Side,
}

impl<'m> Run<'m> {
    fn new(model: &'m Model, engine: Engine, seed: u64) -> Result<Run<'m>, Error> {
        let side = Side { times: Vec::new(), losses: Vec::new(), measured: engine.predicted() };
        Ok(Run { trainer: Trainer::new(model, engine, seed)?, side })
    }
}

/// Runs one warm-up step and `steps` more of each, with a bar called `title`.
fn run(title: &'static str, runs: &mut [&mut Run<'_>], steps: usize) -> Result<(), Error> {
    let mut bar = Bar::new(title);
    for done in 0..=steps {
        bar.show(done as u64, steps as u64 + 1, "");
        for run in &mut *runs {
            run.trainer.feed()?;
        }
        let mut trainers: Vec<_> = runs.iter_mut().map(|run| &mut run.trainer).collect();
        let reports = side_by_side(&mut trainers)?;
        for (run, (report, time)) in runs.iter_mut().zip(reports) {
            run.side.times.extend((done > 0).then_some(time));
            run.side.losses.push(report.loss);
            run.side.measured = report.measured;
        }
    }
    Ok(())
}

/// Runs one warm-up step and `steps` more of each.
pub(crate) fn measure(
    model: &Model,
    plain: &Layout,
    fitted: &Fitted,
    steps: usize,
    seed: u64,
) -> Result<Pair, Error> {
    let mut planned = Run::new(model, planned_engine(fitted)?, seed)?;
    match engine(plain, seed) {
        Ok(engine) => {
            let mut plain = Run::new(model, engine, seed)?;
            run("measuring steps", &mut [&mut plain, &mut planned], steps)?;
            Ok(Pair { plain: Ok(plain.side), planned: planned.side, interleaved: true })
        }
        Err(error) if is_out_of_memory(&error) => {
            run("measuring the planned step", &mut [&mut planned], steps)?;
            let Run { trainer, side: planned } = planned;
            // Its memory goes to the plain step.
            drop(trainer);
            Ok(Pair { plain: plain_alone(model, plain, steps, seed)?, planned, interleaved: false })
        }
        Err(error) => Err(error.into()),
    }
}

/// The plain step with the memory to itself; inside, why it does not fit even then.
fn plain_alone(
    model: &Model,
    plain: &Layout,
    steps: usize,
    seed: u64,
) -> Result<Result<Side, EngineError>, Error> {
    let engine = match engine(plain, seed) {
        Ok(engine) => engine,
        Err(error) => return Ok(Err(error)),
    };
    let mut plain = Run::new(model, engine, seed)?;
    run("measuring the plain step", &mut [&mut plain], steps)?;
    Ok(Ok(plain.side))
}

/// The middle one, the larger of two; zero of none.
fn median<T: PartialOrd + Copy + Default>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl Pair {
    /// The measured time above the plain step's, as a share of it. Where both took turns a machine
    /// that is slower for a while is so for both, so the steps are compared in pairs.
    pub(crate) fn overhead(&self) -> Option<f64> {
        let plain = self.plain.as_ref().ok()?;
        let ratio =
            |planned: Duration, plain: Duration| planned.as_secs_f64() / plain.as_secs_f64();
        let ratio = match self.interleaved {
            true => {
                let pairs = self.planned.times.iter().zip(&plain.times);
                median(pairs.map(|(&a, &b)| ratio(a, b)).collect())
            }
            false => ratio(self.planned.time(), plain.time()),
        };
        Some(ratio - 1.0)
    }

    /// Whether every loss has the same bits; nothing can be said without a plain run.
    pub(crate) fn same_losses(&self) -> Option<bool> {
        let bits = |side: &Side| side.losses.iter().map(|l| l.to_bits()).collect::<Vec<_>>();
        Some(bits(self.plain.as_ref().ok()?) == bits(&self.planned))
    }
}
