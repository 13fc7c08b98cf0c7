//! What moving costs: a step that may move tensors to a disk against the plain step and against
//! one that only recomputes, step by step in turns.
//!
//! `offload MODEL BATCH OPTIMIZER ROUNDS BUDGET FOLDER`. The budget is `50%` of the plain step's
//! arena; the folder is on the disk. The disk is measured once, the plain step profiled once, and
//! both plans are made from that. In each round every step runs once, as a whole: a transfer that
//! goes on in another's turn would be hidden for nothing. A first round is not counted. Prints CSV,
//! a line for each step. Where recomputation alone does not reach the budget, it gets the smallest
//! that it does. Fails if a peak is not the predicted one, or if a number of a planned step
//! differs from the plain one's in a bit.
//!
//! `cargo xtask bench offload` runs it for the reference models.

use std::error::Error as StdError;
use std::path::Path;
use std::time::Instant;

use rekindle::{
    Error, FitOptions, Fitted, Offload, Trainer, check_numbers, fit_profiled, plain,
    profile_layout, set_up, with_store,
};
use rekindle_analysis::transfers;
use rekindle_engine::Observer;
use rekindle_graph::{Bytes, NodeId};
use rekindle_models::{ModelOptions, build};
use rekindle_plan::{NoWatch, Options};
use rekindle_profile::MeasureOptions;
use rekindle_program::Optimizer;

const HEADER: &str = "model,batch_size,share,budget_bytes,plain_peak_bytes,step,store,\
                      predicted_peak_bytes,measured_peak_bytes,predicted_percent,recomputed,\
                      moved_out_bytes,moved_in_bytes,hidden_seconds,waited_seconds,plan_seconds,\
                      numbers_compared,stood_still,computed,seconds";

/// The seed of weights, data and dropout.
const SEED: u64 = 0;
/// Profiled steps: the predictions are compared to the percent.
const PROFILED: usize = 5;
/// Steps after which every number is compared; the losses are compared in every round.
const CHECKED: u64 = 1;

/// A step on its way.
struct Run<'m> {
    name: &'static str,
    fitted: Option<Fitted>,
    plan_seconds: f64,
    trainer: Trainer<'m>,
    seconds: Vec<f64>,
    /// How long compute stood still in each step, and how long kernels ran.
    lanes: Vec<[f64; 2]>,
    peak: Bytes,
}

/// Watches where the time of compute goes.
struct Lanes {
    since: Instant,
    still: f64,
    busy: f64,
}

impl Observer for Lanes {
    fn before(&mut self, _: NodeId) {
        self.since = Instant::now();
    }

    fn after(&mut self, _: NodeId, _: Bytes) {
        self.busy += self.since.elapsed().as_secs_f64();
    }

    fn waits(&mut self, _: NodeId) {
        self.since = Instant::now();
    }

    fn goes_on(&mut self, _: NodeId) {
        self.still += self.since.elapsed().as_secs_f64();
    }
}

fn main() -> Result<(), Box<dyn StdError>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, batch, optimizer, rounds, share, folder] = &words[..] else {
        return Err("say MODEL BATCH OPTIMIZER ROUNDS BUDGET FOLDER".into());
    };
    let optimizer = match optimizer.as_str() {
        "sgd" => Optimizer::sgd(1e-3),
        "adam" => Optimizer::adam(1e-4),
        _ => return Err("the optimizer is sgd or adam".into()),
    };
    let percent: f64 = share.strip_suffix('%').ok_or("a budget is 50%")?.parse()?;
    let sizes = ModelOptions {
        batch: batch.parse()?,
        optimizer: Some(optimizer),
        ..ModelOptions::default()
    };
    let model = build(name, &sizes)?;
    let measure = MeasureOptions { measured: PROFILED, ..MeasureOptions::default() };
    let alone = FitOptions { seed: SEED, measure, ..FitOptions::default() };
    let plain = plain(&model, alone.threads);
    let arena = plain.predicted().arena;
    let budget = Bytes((arena.get() as f64 * percent / 100.0) as u64);
    let offload = Some(Offload { folder: Path::new(folder).to_owned(), limit: None });
    let moving = with_store(&FitOptions { offload, ..alone.clone() }, plain.graph())?;
    let graph = profile_layout(&model, &plain, &alone, &mut |_| {})?;

    let engine = set_up(&plain, SEED, None, &mut |_| {})?;
    let run = |name, fitted, plan_seconds, engine| -> Result<Run<'_>, Error> {
        let trainer = Trainer::new(&model, engine, SEED)?;
        let (seconds, lanes, peak) = (Vec::new(), Vec::new(), Bytes::ZERO);
        Ok(Run { name, fitted, plan_seconds, trainer, seconds, lanes, peak })
    };
    let mut runs = vec![run("plain", None, 0.0, engine)?];
    for (name, options) in [("recompute", &alone), ("move", &moving)] {
        let fit = |budget| {
            let started = Instant::now();
            let fitted = fit_profiled(&model.program, &graph, budget, options, &mut NoWatch);
            fitted.map(|fitted| (fitted, started.elapsed().as_secs_f64()))
        };
        let (fitted, seconds) = match fit(budget) {
            // Recomputation alone does not reach every budget: then it gets the smallest it knows.
            Err(Error::DoesNotFit { smallest, .. }) if options.offload.is_none() => fit(smallest)?,
            other => other?,
        };
        let engine = fitted.engine()?;
        runs.push(run(name, Some(fitted), seconds, engine)?);
    }
    for _ in 0..=rounds.parse()? {
        round(&mut runs)?;
    }
    println!("{HEADER}");
    for run in &runs {
        let compared = match &run.fitted {
            Some(fitted) => {
                let checked = check_numbers(&model, &plain, fitted, CHECKED, SEED)?;
                if let Some(difference) = checked.differences.first() {
                    return Err(format!("{} of the planned step differs", difference.name).into());
                }
                checked.numbers
            }
            None => 0,
        };
        let options = if run.name == "move" { &moving.plan } else { &alone.plan };
        println!(
            "{name},{batch},{share},{},{},{}",
            run.fitted.as_ref().map_or(arena, |fitted| fitted.budget).get(),
            arena.get(),
            results(run, options, compared)?
        );
    }
    Ok(())
}

/// Runs a step of each, the first of which is the plain one.
fn round(runs: &mut [Run<'_>]) -> Result<(), Box<dyn StdError>> {
    let mut expected = None;
    for run in runs {
        run.trainer.feed()?;
        let started = Instant::now();
        let mut lanes = Lanes { since: started, still: 0.0, busy: 0.0 };
        let report = run.trainer.run_observed(&mut lanes)?;
        run.seconds.push(started.elapsed().as_secs_f64());
        run.lanes.push([lanes.still, lanes.busy]);
        run.peak = report.measured.arena;
        if *expected.get_or_insert(report.loss.to_bits()) != report.loss.to_bits() {
            return Err(format!("the loss of {} differs from the plain step's", run.name).into());
        }
    }
    Ok(())
}

/// The part of a line that belongs to a step.
fn results(run: &Run<'_>, options: &Options, compared: usize) -> Result<String, Box<dyn StdError>> {
    let planned = run.fitted.as_ref().map(|fitted| &fitted.planned);
    let moves = match &run.fitted {
        Some(fitted) => transfers(&fitted.graph, &fitted.planned.plan.schedule)?,
        None => None,
    };
    let bytes = |bytes: Option<Bytes>| bytes.map_or(0, Bytes::get).to_string();
    let seconds = |time: Option<rekindle_graph::Micros>| {
        format!("{:.4}", time.map_or(0.0, |time| time.seconds()))
    };
    let counted = |of: &dyn Fn(usize) -> f64| {
        let texts = (1..run.seconds.len()).map(|round| format!("{:.4}", of(round)));
        texts.collect::<Vec<_>>().join(" ")
    };
    let cells = [
        run.name.into(),
        options.store.map_or(String::new(), |store| store.to_string().replace(',', " ")),
        run.trainer.engine().predicted().arena.get().to_string(),
        run.peak.get().to_string(),
        format!("{:.3}", 100.0 * run.fitted.as_ref().map_or(0.0, Fitted::overhead)),
        planned.map_or(0, |planned| planned.stats.recomputed).to_string(),
        bytes(moves.as_ref().map(|moves| moves.moved_out)),
        bytes(moves.as_ref().map(|moves| moves.moved_in)),
        seconds(moves.as_ref().map(|moves| moves.hidden)),
        seconds(moves.as_ref().map(|moves| moves.waited)),
        format!("{:.2}", run.plan_seconds),
        compared.to_string(),
        counted(&|round| run.lanes[round][0]),
        counted(&|round| run.lanes[round][1]),
        counted(&|round| run.seconds[round]),
    ];
    Ok(cells.join(","))
}
