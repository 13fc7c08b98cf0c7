//! `rekindle run`: train a model in a budget, stage by stage.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rekindle::{Checked, Error, FitOptions, IterationReport, Trainer};
use rekindle_engine::{Engine, Layout, Peak, resident_peak};
use rekindle_graph::{Budget, Bytes, open_file, parse_budget};
use rekindle_models::Model;
use rekindle_plan::{NoWatch, Strategy};
use serde_json::{Value, json};

use super::Planning;
use super::models::millions;
use super::offload::Offloading;
use super::report::Reported;
use super::stages::{self, Lines, Staged, Times};
use super::step::{StepArguments, parse_count};
use crate::exit::{Promised, UsageError, is_out_of_memory};
use crate::output;
use crate::summary::{add_transfers, store_text};
use crate::trace::Trace;

/// Train a model on generated data in a byte budget
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rekindle run resnet50 --batch-size 8 --budget 50% --steps 5
  rekindle run bert-base --batch-size 4 --budget 2GiB --checkpoint c.safetensors
  rekindle run resnet50 --batch-size 8 --budget 50% --steps 2 --trace step.json
  rekindle run bert-base --batch-size 8 --budget 30% --offload /var/tmp")]
pub(crate) struct Arguments {
    /// Number of samples in a batch
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = parse_count)]
    batch_size: usize,
    /// Memory that the whole step may use: 3GiB, 800MiB, a number of bytes, or a share such as 60%
    /// of the plain step's peak; without a budget, the plain step runs
    #[arg(long, value_parser = parse_budget, allow_hyphen_values = true)]
    budget: Option<Budget>,
    /// Recompute nothing: run the plain step, and fail if it does not fit in the budget
    #[arg(long)]
    plain: bool,
    /// Number of the last step to train; a resumed run starts after the step of its checkpoint
    #[arg(
        long,
        value_name = "K",
        default_value_t = 3,
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    steps: u64,
    /// Use the times that `rekindle profile` wrote to this folder, instead of measuring them
    #[arg(long, value_name = "DIR", requires = "budget", conflicts_with = "plain")]
    profile: Option<PathBuf>,
    /// Start with the weights in this safetensors file
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Write the trained weights to this safetensors file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// After each step, replace this file by a checkpoint from which --resume can go on
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Go on with the run that wrote this checkpoint
    #[arg(long, value_name = "FILE", conflicts_with = "weights")]
    resume: Option<PathBuf>,
    /// Write a trace of the last step to this file; chrome://tracing and ui.perfetto.dev show it
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    /// Before training, run the planned and the plain step and compare all numbers bit by bit
    #[arg(long, requires = "budget", conflicts_with = "plain")]
    check: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reported: Reported,
    #[command(flatten)]
    step: StepArguments,
    #[command(flatten)]
    planning: Planning,
    #[command(flatten)]
    offloading: Offloading,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    check_files(arguments)?;
    arguments.offloading.check()?;
    let is_planned = arguments.budget.is_some() && !arguments.plain;
    if arguments.reported.is_wanted() && !is_planned {
        let why = "a report shows a plan, and the plain step has none; give a --budget, or leave \
                   out --report";
        return Err(UsageError(why.into()).into());
    }
    if arguments.offloading.is_wanted() && !is_planned {
        let why = "the plain step moves nothing; give a --budget, or leave out --offload";
        return Err(UsageError(why.into()).into());
    }
    arguments.reported.folder()?;
    let model = arguments.step.build(arguments.batch_size)?;
    if let Some(path) = &arguments.resume {
        rekindle::check_checkpoint(path, &model.program, arguments.step.training.seed)?;
    }
    let options = arguments.step.training.fit_options(arguments.planning.options());
    let lines = Lines { shown: !arguments.json, indent: "" };
    lines.line(
        "model",
        format!(
            "{}, {} parameters, {}, {} threads",
            model.program.name,
            millions(model.parameter_count()),
            arguments.step.training.optimizer,
            options.threads
        ),
    );
    let plain = rekindle::plain(&model, options.threads);
    let options = arguments.offloading.add(options, &plain, &lines)?;
    let staged = stages(arguments, &model, &plain, &options, &lines)?;
    let checked = match (&staged, arguments.check) {
        (Some(staged), true) => Some(check(arguments, &model, &plain, staged, &lines)?),
        _ => None,
    };
    if let Some(Staged { fitted, .. }) = &staged {
        let stem = format!("{}_bs{}", arguments.step.model, arguments.batch_size);
        let reported = &arguments.reported;
        reported.add_plan(&stem, &fitted.graph, &stages::plan_of(fitted))?;
        reported.finish()?;
    }
    let engine = match &staged {
        Some(staged) => stages::planned_engine(&staged.fitted)?,
        None => plain_engine(&plain, &options)?,
    };
    let steps = train(arguments, &model, engine, &lines)?;
    // Of the whole process, whatever it did: profiling, checking, training.
    let resident = resident_peak();
    if let (Some(resident), true) = (resident, lines.shown) {
        println!("\nThe process never had more than {resident} in memory, says the system.");
    }
    if arguments.json {
        println!(
            "{:#}",
            report(&model, plain.predicted(), staged.as_ref(), checked.as_ref(), resident, &steps)
        );
    }
    Ok(())
}

/// Refuses files that cannot be read or written, before any work is done.
fn check_files(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { save, checkpoint, trace, weights, resume, .. } = arguments;
    let outputs = [save.as_ref(), trace.as_ref(), checkpoint.as_ref()];
    output::check_outputs(&outputs, &[weights.as_ref()])?;
    // A run may go on from its own checkpoint.
    output::check_outputs(&outputs[..2], &[resume.as_ref()])?;
    for path in weights.iter().chain(resume) {
        open_file(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(())
}

/// The stages that lead to a planned step, or `None` for the plain one, which is refused before
/// anything runs if it does not fit in the budget.
fn stages(
    arguments: &Arguments,
    model: &Model,
    plain: &Layout,
    options: &FitOptions,
    lines: &Lines,
) -> anyhow::Result<Option<Staged>> {
    let arena = plain.predicted().arena;
    let budget = arguments.budget.map(|budget| budget.resolve(arena));
    let Some(budget) = budget.filter(|_| !arguments.plain) else {
        let text = format!("nothing is recomputed, an arena of {arena}");
        lines.line("plain", text);
        return match budget.filter(|&budget| arena > budget) {
            Some(budget) => Err(Error::PlainDoesNotFit {
                budget,
                needed: arena,
                smallest: smallest(plain, options)?,
            })?,
            None => Ok(None),
        };
    };
    let times = match &arguments.profile {
        Some(folder) => {
            let (name, batch) = (&arguments.step.model, arguments.batch_size);
            let times = stages::read_times(folder, name, batch, plain.graph())?;
            Times::Given(Box::new(times), Duration::ZERO)
        }
        None => Times::InBudget,
    };
    let limit = arguments.planning.limit()?;
    let staged = stages::fit(model, plain, budget, times, options, limit, lines)?;
    Ok(Some(staged))
}

/// Sets up the plain step. Where it does not get its memory, the error says whether a plan would.
fn plain_engine(plain: &Layout, options: &FitOptions) -> Result<Engine, Error> {
    match stages::engine(plain, options.seed) {
        Err(error) if is_out_of_memory(&error) => {
            Err(Error::PlainOutOfMemory { smallest: smallest(plain, options)?, error })
        }
        engine => Ok(engine?),
    }
}

/// The smallest arena known. Peaks do not depend on times, so a guess of them will do.
pub(crate) fn smallest(plain: &Layout, options: &FitOptions) -> Result<Bytes, Error> {
    let graph = rekindle::estimate(plain.graph());
    let mut options = options.clone();
    options.plan.strategy = Strategy::SEARCH;
    Ok(rekindle::smallest(plain.program(), &graph, &options, &mut NoWatch)?.budget)
}

fn check(
    arguments: &Arguments,
    model: &Model,
    plain: &Layout,
    staged: &Staged,
    lines: &Lines,
) -> anyhow::Result<Checked> {
    let start = |trainer: &mut Trainer<'_>| start(arguments, trainer);
    let checked = stages::check_numbers(model, plain, &staged.fitted, arguments.steps, &start)?;
    lines.line("check", check_text(&checked)?);
    Ok(checked)
}

/// Gives a trainer the weights or the checkpoint that training begins with.
fn start(arguments: &Arguments, trainer: &mut Trainer<'_>) -> Result<(), Error> {
    if let Some(path) = &arguments.weights {
        trainer.load_weights(path)?;
    }
    match &arguments.resume {
        Some(path) => trainer.resume(path),
        None => Ok(()),
    }
}

/// What a comparison found, or an error that names the first difference.
pub(crate) fn check_text(checked: &Checked) -> Result<String, Promised> {
    let Checked { steps, tensors, numbers, .. } = checked;
    match checked.differences.first() {
        None => Ok(format!(
            "{tensors} tensors, {} numbers, {steps} step{}: every bit is the plain step's",
            millions(*numbers),
            if *steps == 1 { "" } else { "s" }
        )),
        Some(difference) => Err(Promised(format!(
            "{} of {tensors} tensors differ from the plain step's after {steps} steps; the first \
             is {}, whose number {} is {} and not {}",
            checked.differences.len(),
            difference.name,
            difference.first.0,
            difference.first.2,
            difference.first.1,
        ))),
    }
}

/// A step and how long it took.
struct Timed {
    report: IterationReport,
    predicted: Peak,
    seconds: f64,
}

fn train(
    arguments: &Arguments,
    model: &Model,
    engine: Engine,
    lines: &Lines,
) -> anyhow::Result<Vec<Timed>> {
    let predicted = engine.predicted();
    let mut trainer = Trainer::new(model, engine, arguments.step.training.seed)?;
    start(arguments, &mut trainer)?;
    if let Some(path) = &arguments.resume {
        let done = trainer.steps_done();
        lines.line("resume", format!("after step {done} of {}", path.display()));
        if done >= arguments.steps {
            let last = arguments.steps;
            output::note(&format!(
                "the checkpoint is of step {done}, so nothing is left to train up to step {last}; \
                 give more --steps"
            ));
        }
    }
    if lines.shown {
        println!(
            "\n{:>6}  {:>12}  {:>9}  {:>14}  {:>14}",
            "step", "loss", "time", "predicted peak", "measured peak"
        );
    }
    let mut steps = Vec::new();
    while trainer.steps_done() < arguments.steps {
        trainer.feed()?;
        let started = Instant::now();
        let report = match &arguments.trace {
            Some(path) if trainer.steps_done() + 1 == arguments.steps => {
                traced(&mut trainer, path)?
            }
            _ => trainer.run()?,
        };
        let seconds = started.elapsed().as_secs_f64();
        if let Some(path) = &arguments.checkpoint {
            trainer.save_checkpoint(path)?;
        }
        if lines.shown {
            println!(
                "{:>6}  {:>12.6}  {:>7.3} s  {:>14}  {:>14}",
                report.number,
                report.loss,
                seconds,
                predicted.arena.to_string(),
                report.measured.arena.to_string()
            );
        }
        steps.push(Timed { report, predicted, seconds });
    }
    if let Some(path) = &arguments.save {
        trainer.save_weights(path)?;
        output::wrote(path);
    }
    Ok(steps)
}

/// Runs a step and writes its trace.
fn traced(trainer: &mut Trainer<'_>, path: &Path) -> anyhow::Result<IterationReport> {
    let mut trace = Trace::new();
    let report = trainer.run_observed(&mut trace)?;
    let layout = trainer.engine().layout();
    output::write(path, &trace.to_json(layout, report.number))?;
    Ok(report)
}

fn report(
    model: &Model,
    plain: Peak,
    staged: Option<&Staged>,
    checked: Option<&Checked>,
    resident: Option<Bytes>,
    steps: &[Timed],
) -> Value {
    let step = |timed: &Timed| {
        json!({
            "step": timed.report.number,
            "loss": timed.report.loss,
            "loss_bits": timed.report.loss.to_bits(),
            "seconds": timed.seconds,
            "predicted_peak_bytes": timed.predicted.arena.get(),
            "measured_peak_bytes": timed.report.measured.arena.get(),
        })
    };
    let fitted = staged.map(|staged| {
        let fitted = &staged.fitted;
        let mut told = json!({
            "budget_bytes": fitted.budget.get(),
            "strategy": fitted.planned.plan.strategy,
            "live_peak_bytes": fitted.predicted().live.get(),
            "arena_bytes": fitted.predicted().arena.get(),
            "recomputed_runs": fitted.audit.recomputed,
            "predicted_overhead": fitted.overhead(),
            "predicted_time_us": fitted.time().get(),
            "rounds": fitted.rounds,
            "profile_seconds": staged.profile_time.as_secs_f64(),
            "plan_seconds": staged.plan_time.as_secs_f64(),
        });
        if let Some(moves) = stages::moves_of(fitted) {
            add_transfers(&mut told, &store_text(&fitted.planned.plan.schedule), &moves);
        }
        told
    });
    json!({
        "model": model.program.name,
        "plain_peak_bytes": plain.arena.get(),
        "planned": fitted,
        "numbers_compared": checked.map(|checked| checked.numbers),
        "highest_resident_bytes": resident.map(Bytes::get),
        "steps": steps.iter().map(step).collect::<Vec<_>>(),
    })
}
