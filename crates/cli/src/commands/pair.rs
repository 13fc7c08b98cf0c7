//! The plain step and the planned one, measured side by side.
//!
//! Their steps run in short turns, so that whatever else happens on the machine happens to both. The
//! first step of each is warm-up; of the others the median counts. If both do not fit in memory at
//! the same time they run one after the other.

use std::time::Duration;

use remat::{Error, FitOptions, Fitted, StepReport, Trainer, side_by_side};
use remat_engine::{Engine, EngineError, Peak};
use remat_models::Model;

use crate::exit::is_out_of_memory;
use crate::progress::{Bar, Preparation};

/// What a number of steps gave.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    /// The median, warm-up excluded.
    pub(crate) time: Duration,
    /// Of each step, warm-up included.
    pub(crate) losses: Vec<f32>,
    /// The same in every step, and equal to the prediction.
    pub(crate) measured: Peak,
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
    times: Vec<Duration>,
    losses: Vec<f32>,
    measured: Peak,
}

impl<'m> Run<'m> {
    fn new(model: &'m Model, engine: Engine, seed: u64) -> Run<'m> {
        let measured = engine.predicted();
        Run {
            trainer: Trainer::new(model, engine, seed),
            times: Vec::new(),
            losses: Vec::new(),
            measured,
        }
    }

    fn keep(&mut self, (report, time): (StepReport, Duration)) {
        self.times.push(time);
        self.losses.push(report.loss);
        self.measured = report.measured;
    }

    fn side(self) -> Side {
        Side {
            time: median(self.times[1..].to_vec()),
            losses: self.losses,
            measured: self.measured,
        }
    }
}

/// Runs a step of each.
fn step(runs: &mut [&mut Run<'_>]) -> Result<(), Error> {
    for run in &mut *runs {
        run.trainer.feed()?;
    }
    let mut trainers: Vec<_> = runs.iter_mut().map(|run| &mut run.trainer).collect();
    let steps = side_by_side(&mut trainers)?;
    for (run, step) in runs.iter_mut().zip(steps) {
        run.keep(step);
    }
    Ok(())
}

/// Runs one warm-up step and `steps` more of each.
pub(crate) fn measure(
    model: &Model,
    fitted: &Fitted,
    steps: usize,
    seed: u64,
) -> Result<Pair, Error> {
    let mut memory = Preparation::new();
    let engine = fitted.engine_watched(model, &mut |p| memory.show(p))?;
    drop(memory);
    let mut planned = Run::new(model, engine, seed);
    match plain_engine(model, fitted, seed) {
        Ok(engine) => {
            let mut plain = Run::new(model, engine, seed);
            let mut bar = Bar::new("measuring steps");
            for done in 0..=steps {
                bar.show(done as u64, steps as u64 + 1, "");
                step(&mut [&mut plain, &mut planned])?;
            }
            Ok(Pair {
                plain: Ok(plain.side()),
                planned: planned.side(),
                interleaved: true,
            })
        }
        Err(error) if is_out_of_memory(&error) => {
            let mut bar = Bar::new("measuring the planned step");
            for done in 0..=steps {
                bar.show(done as u64, steps as u64 + 1, "");
                step(&mut [&mut planned])?;
            }
            let planned = planned.side();
            Ok(Pair {
                plain: plain_alone(model, fitted, steps, seed)?,
                planned,
                interleaved: false,
            })
        }
        Err(error) => Err(error.into()),
    }
}

fn plain_engine(model: &Model, fitted: &Fitted, seed: u64) -> Result<Engine, EngineError> {
    let options = FitOptions {
        threads: fitted.threads,
        seed,
        ..FitOptions::default()
    };
    let mut memory = Preparation::new();
    remat::plain_engine(model, &options, &mut |p| memory.show(p))
}

/// The plain step with the memory to itself; inside, why it does not fit even then.
fn plain_alone(
    model: &Model,
    fitted: &Fitted,
    steps: usize,
    seed: u64,
) -> Result<Result<Side, EngineError>, Error> {
    let engine = match plain_engine(model, fitted, seed) {
        Ok(engine) => engine,
        Err(error) => return Ok(Err(error)),
    };
    let mut plain = Run::new(model, engine, seed);
    let mut bar = Bar::new("measuring the plain step");
    for done in 0..=steps {
        bar.show(done as u64, steps as u64 + 1, "");
        step(&mut [&mut plain])?;
    }
    Ok(Ok(plain.side()))
}

/// The middle one, the later of two; zero of none.
pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

impl Pair {
    /// The measured time above the plain step's, as a share of it.
    pub(crate) fn overhead(&self) -> Option<f64> {
        let plain = self.plain.as_ref().ok()?.time.as_secs_f64();
        Some(self.planned.time.as_secs_f64() / plain - 1.0)
    }

    /// Whether every loss has the same bits; nothing can be said without a plain run.
    pub(crate) fn same_losses(&self) -> Option<bool> {
        let bits = |side: &Side| side.losses.iter().map(|l| l.to_bits()).collect::<Vec<_>>();
        Some(bits(self.plain.as_ref().ok()?) == bits(&self.planned))
    }
}
