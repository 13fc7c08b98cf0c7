//! `rekindle train`: train a model on one's own data in a byte budget.
//!
//! The budget bounds the whole process. Data gets what `--data-memory` says of it, code, threads
//! and the planner get [`budget::BESIDE`], and the step gets the rest as its arena.

pub(crate) mod budget;
mod metrics;
mod model;
mod options;
mod watch;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use rekindle::train::{Evaluation, Files, Recipe, Session, Start};
use rekindle::{Error, FitOptions};
use rekindle_data::{Batches, Dataset, split};
use rekindle_engine::{Layout, resident_peak};
use rekindle_graph::{Bytes, open_file};
use rekindle_models::{InputKind, Model};
use serde_json::json;

use self::budget::Memory;
use self::metrics::MetricsFiles;
pub(crate) use self::model::Source;
pub(crate) use self::options::{DataArguments, ModelArguments};
use self::options::{Learning, Validation};
use self::watch::Shown;
use super::Planning;
use super::models::millions;
use super::offload::Offloading;
use super::report::Reported;
use super::stages::{self, Lines, Staged, Times};
use crate::exit::UsageError;
use crate::output;

/// Train a model on your own data in a byte budget
#[derive(clap::Args)]
#[command(after_help = "\
Data is a folder of images by class (PNG, JPEG), arrays (a folder with inputs.npy and labels.npy, \
or a safetensors file with these), text (.txt, .md; with --tokenizer) or a token file (.bin, \
.npy). A run that was interrupted goes on with the same command and --resume, and gives the \
same bits.

Examples:
  rekindle train model.onnx --data images --budget 1GiB --validate 10% --export trained.onnx
  rekindle train resnet18 --data images --budget 1GiB --epochs 3 --validate 10% --out t.safetensors
  rekindle train gpt2 --weights gpt2.safetensors --tokenizer tokenizer.json --data text \\
    --budget 3GiB --accumulate 8 --lora 8 --out t.safetensors
  rekindle train resnet18 --data images --epochs 9 --checkpoints run --resume")]
pub(crate) struct Arguments {
    #[command(flatten)]
    model: ModelArguments,
    #[command(flatten)]
    data: DataArguments,
    /// Hold back this share of the samples, such as 10%, or use this folder or file to validate
    #[arg(long, value_name = "SHARE|PATH")]
    validate: Option<Validation>,
    /// Memory that the whole process may use: 3GiB, 800MiB, a number of bytes; or a share such as
    /// 60%, of the plain step's peak, beside which data and the process have their own. Without a
    /// budget, the plain step runs
    #[arg(long, value_parser = rekindle_graph::parse_budget, allow_hyphen_values = true)]
    budget: Option<rekindle_graph::Budget>,
    /// Recompute nothing: run the plain step, and fail if it does not fit in the budget
    #[arg(long)]
    plain: bool,
    /// Write the trained weights to this safetensors file: those of the best evaluation, or the
    /// last ones if there is none
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write the ONNX file of the model with the trained weights to this file
    #[arg(long, value_name = "FILE.onnx")]
    export: Option<PathBuf>,
    /// Start with the weights in this safetensors file
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Weights that start as new even so, by name: 'fc.*'
    #[arg(long, value_name = "PATTERNS", requires = "weights")]
    fresh: Option<String>,
    /// Keep the last and the best checkpoint in this folder
    #[arg(long, value_name = "DIR")]
    checkpoints: Option<PathBuf>,
    /// Number of updates between two checkpoints; there is one after each evaluation anyway
    #[arg(long, value_name = "N", requires = "checkpoints")]
    checkpoint_every: Option<u64>,
    /// Go on with the run whose last checkpoint is in the folder, if there is one
    #[arg(long, requires = "checkpoints")]
    resume: bool,
    /// Write the metrics of every update and evaluation to this CSV file
    #[arg(long, value_name = "FILE.csv")]
    csv: Option<PathBuf>,
    /// Write the same as JSON lines
    #[arg(long, value_name = "FILE.jsonl")]
    json_lines: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reported: Reported,
    #[command(flatten)]
    learning: Learning,
    #[command(flatten)]
    planning: Planning,
    #[command(flatten)]
    offloading: Offloading,
}

impl Arguments {
    fn last(&self) -> Option<PathBuf> {
        self.checkpoints.as_ref().map(|folder| folder.join("last.safetensors"))
    }

    fn best(&self) -> Option<PathBuf> {
        self.checkpoints.as_ref().map(|folder| folder.join("best.safetensors"))
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    check(arguments)?;
    let lines = Lines { shown: !arguments.json, indent: "" };
    let source = Source::new(&arguments.model)?;
    if arguments.export.is_some() && !source.is_file() {
        let why = "a model that is built in has no ONNX file to write again; use --out";
        return Err(UsageError(why.into()).into());
    }
    let data = Data::open(arguments, &source)?;
    let updates = arguments.learning.updates()?;
    let model = source.training(&arguments.model, data.classes(arguments), &updates)?;
    check_classes(&model, &data.dataset)?;
    let inferring = match &data.validation {
        Some(_) => Some(source.inferring(&arguments.model, data.classes(arguments))?),
        None => None,
    };
    let options = fit_options(arguments);
    lines.line("model", model_text(&model, arguments, &options));
    lines.line("data", data.text());
    let memory = Memory { data: arguments.data.memory() };
    let plain = rekindle::plain(&model, options.threads);
    let options = arguments.offloading.add(options, &plain, &lines)?;
    let staged = stages(arguments, &model, &plain, memory, &options, &lines)?;
    if let Some(Staged { fitted, .. }) = &staged {
        let stem = format!("{}_bs{}", source.name(), arguments.model.batch_size);
        arguments.reported.add_plan(&stem, &fitted.graph, &stages::plan_of(fitted))?;
    }
    let layout = staged.as_ref().map_or(&plain, |staged| &staged.fitted.layout);
    let evaluation = match (&inferring, data.evaluation(arguments)) {
        (Some(model), Some(batches)) => Some(Evaluation::beside(layout, model, batches)?),
        _ => None,
    };
    let room = memory.arena(arguments.budget, plain.predicted().arena)?;
    let layout = with_room(layout, evaluation.as_ref(), room)?;
    let folder = staged.as_ref().and_then(|staged| staged.fitted.folder.as_deref());
    let engine = stages::set_up(&layout, options.seed, folder)?;
    let predicted = engine.predicted();
    let arena = layout.room();
    let start = Start {
        model: &model,
        engine,
        batches: data.training(arguments)?,
        evaluation,
        recipe: recipe(arguments, &data),
        data_memory: Bytes(memory.data.get() / 2),
    };
    let mut session = Session::new(start)?;
    begin(arguments, &source, &mut session, &lines)?;
    let files = Files {
        weights: arguments.out.clone(),
        note: Some(("rekindle.trained", note(arguments, &data).to_string())),
        last: arguments.last(),
        best: arguments.best(),
        checkpoint_every: arguments.checkpoint_every,
    };
    let outputs = [arguments.csv.as_deref(), arguments.json_lines.as_deref()];
    let metrics = MetricsFiles::open(outputs, &arguments.reported, session.updates_done())?;
    let mut shown = Shown::new(metrics, &lines, &session, data.dataset.skipped());
    shown.export = arguments.export.as_deref().map(|path| (&source, path));
    rekindle::train::run(&mut session, &files, &mut shown)?;
    let told = shown.finish(&session)?;
    arguments.out.iter().chain(&arguments.export).for_each(|path| output::wrote(path));
    let resident = resident_peak();
    if let (Some(resident), true) = (resident, lines.shown) {
        println!("\nThe process never had more than {resident} in memory, says the system.");
    }
    if arguments.json {
        let planned = staged.as_ref().map(|staged| {
            json!({
                "strategy": staged.fitted.planned.plan.strategy,
                "recomputed_runs": staged.fitted.audit.recomputed,
                "predicted_overhead": staged.fitted.overhead(),
            })
        });
        let mut result = json!({
            "model": model.program.name,
            "budget_bytes": memory.whole(arguments.budget, plain.predicted().arena).map(Bytes::get),
            "plain_peak_bytes": plain.predicted().arena.get(),
            "arena_bytes": arena.get(),
            "predicted_peak_bytes": predicted.arena.get(),
            "data_bytes": memory.data.get(),
            "highest_resident_bytes": resident.map(Bytes::get),
            "planned": planned,
        });
        for (key, value) in told {
            result[key] = value;
        }
        println!("{result:#}");
    }
    Ok(())
}

/// Refuses data with more classes than the model's output has, which a file has fixed.
pub(crate) fn check_classes(model: &Model, dataset: &Dataset) -> Result<(), UsageError> {
    let told = model.inputs.iter().find_map(|input| match input.kind {
        InputKind::Classes { classes } => Some(classes),
        _ => None,
    });
    match (told, dataset.class_count()) {
        (Some(told), Some(there)) if there > told => Err(UsageError(format!(
            "the data has {there} classes, and the model tells {told} apart; export the model with \
             {there} outputs, or leave out some of the data"
        ))),
        _ => Ok(()),
    }
}

/// Refuses files that cannot be read or written, before any work is done.
fn check(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { out, csv, json_lines, weights, checkpoints, .. } = arguments;
    let tokenizer = arguments.data.tokenizer.as_ref();
    let outputs = [out.as_ref(), csv.as_ref(), json_lines.as_ref(), arguments.export.as_ref()];
    output::check_outputs(&outputs, &[weights.as_ref(), tokenizer])?;
    for path in weights.iter().chain(tokenizer) {
        open_file(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    if let Some(folder) = checkpoints {
        output::make_folder(folder)?;
    }
    arguments.reported.folder()?;
    arguments.offloading.check()?;
    arguments.data.check()?;
    arguments.learning.check()?;
    let refuse = |why: &str| Err(UsageError(why.into()).into());
    let is_planned = arguments.budget.is_some() && !arguments.plain;
    if arguments.offloading.is_wanted() && !is_planned {
        return refuse("the plain step moves nothing; give a --budget, or leave out --offload");
    }
    if arguments.offloading.is_wanted() && arguments.validate.is_some() {
        return refuse(
            "what is in a file on the disk cannot be evaluated while it trains; leave out \
             --validate and use `rekindle evaluate` afterwards, or leave out --offload",
        );
    }
    Ok(())
}

fn fit_options(arguments: &Arguments) -> FitOptions {
    let defaults = FitOptions::default();
    FitOptions {
        threads: arguments.model.threads.unwrap_or(defaults.threads),
        plan: arguments.planning.options(),
        seed: arguments.learning.seed,
        ..defaults
    }
}

fn model_text(model: &Model, arguments: &Arguments, options: &FitOptions) -> String {
    let all: usize = rekindle_models::weights::stored(model)
        .iter()
        .map(|stored| stored.shape.iter().product::<usize>())
        .sum();
    let trained = model.parameter_count();
    let is_whole = arguments.model.trains_all();
    let part = match is_whole {
        true => String::new(),
        false => format!(" ({} of them trained)", millions(trained)),
    };
    format!(
        "{}, {} numbers{part}, {}, {} threads",
        model.program.name,
        millions(all),
        arguments.learning.optimizer,
        options.threads
    )
}

/// What is trained on, and what is held back.
struct Data {
    dataset: Arc<Dataset>,
    part: Vec<u32>,
    /// The data that the model is evaluated on, and which of its samples.
    validation: Option<(Arc<Dataset>, Vec<u32>)>,
}

impl Data {
    fn open(arguments: &Arguments, source: &Source) -> anyhow::Result<Data> {
        let (wanted, answers) = source.wanted(&arguments.model)?;
        let options = arguments.data.options(arguments.model.classes, answers);
        let path = &arguments.data.data;
        let dataset = Arc::new(Dataset::open(path, wanted, &options).map_err(Error::from)?);
        let all: Vec<u32> = (0..dataset.len() as u32).collect();
        let (part, validation) = match &arguments.validate {
            None => (all, None),
            Some(Validation::Share(share)) => {
                let (part, held) = split(&dataset, *share, arguments.learning.seed);
                if held.is_empty() {
                    let why = "a share of the samples that is none of them validates nothing";
                    return Err(UsageError(why.into()).into());
                }
                (part, Some((Arc::clone(&dataset), held)))
            }
            Some(Validation::Path(path)) => {
                let other = Dataset::open(path, wanted, &options).map_err(Error::from)?;
                if let (Some(ours), Some(its)) = (dataset.classes(), other.classes())
                    && ours != its
                {
                    let why = format!("{} has other classes than the data", path.display());
                    return Err(UsageError(why).into());
                }
                let held = (0..other.len() as u32).collect();
                (all, Some((Arc::new(other), held)))
            }
        };
        Ok(Data { dataset, part, validation })
    }

    /// How many classes the model is to tell apart, if it can be told.
    fn classes(&self, arguments: &Arguments) -> Option<usize> {
        arguments.model.classes.or(self.dataset.class_count())
    }

    fn text(&self) -> String {
        let held = self.validation.as_ref().map_or(0, |(_, held)| held.len());
        let held = match held {
            0 => String::new(),
            held => format!("; {} train, {held} validate", self.part.len()),
        };
        format!("{}{held}", self.dataset.about())
    }

    fn training(&self, arguments: &Arguments) -> Result<Batches, Error> {
        let (dataset, part) = (Arc::clone(&self.dataset), self.part.clone());
        let (batch, seed) = (arguments.model.batch_size, arguments.learning.seed);
        Ok(Batches::training(dataset, part, batch, seed, arguments.data.bad_files())?)
    }

    fn evaluation(&self, arguments: &Arguments) -> Option<Batches> {
        let (dataset, part) = self.validation.as_ref()?;
        let (dataset, batch) = (Arc::clone(dataset), arguments.model.batch_size);
        let bad_files = arguments.data.bad_files();
        Some(Batches::evaluation(dataset, part.clone(), batch, bad_files))
    }
}

/// The stages that lead to a planned step, or `None` for the plain one.
fn stages(
    arguments: &Arguments,
    model: &Model,
    plain: &Layout,
    memory: Memory,
    options: &FitOptions,
    lines: &Lines,
) -> anyhow::Result<Option<Staged>> {
    let arena = plain.predicted().arena;
    let room = memory.arena(arguments.budget, arena)?;
    let Some(room) = room.filter(|_| !arguments.plain) else {
        lines.line("plain", format!("nothing is recomputed, an arena of {arena}"));
        return match room.filter(|&room| arena > room) {
            Some(budget) => Err(Error::PlainDoesNotFit {
                budget,
                needed: arena,
                smallest: super::run::smallest(plain, options)?,
            })?,
            None => Ok(None),
        };
    };
    lines.line("memory", memory.text(arguments.budget, arena, room));
    let limit = arguments.planning.limit()?;
    Ok(Some(stages::fit(model, plain, room, Times::InBudget, options, limit, lines)?))
}

/// The layout with room for the evaluation, if the budget has it.
fn with_room(
    layout: &Layout,
    evaluation: Option<&Evaluation<'_>>,
    room: Option<Bytes>,
) -> Result<Layout, Error> {
    let needed = evaluation.map_or(Bytes::ZERO, Evaluation::room);
    match room.filter(|&room| needed > room) {
        Some(budget) => Err(Error::EvaluationDoesNotFit { budget, needed }),
        None => Ok(layout.clone().with_room(needed)),
    }
}

/// Gives a session the weights or the checkpoint that training begins with.
fn begin(
    arguments: &Arguments,
    source: &Source,
    session: &mut Session<'_>,
    lines: &Lines,
) -> anyhow::Result<()> {
    let last = arguments.last().filter(|path| arguments.resume && path.exists());
    match (&arguments.weights, last) {
        (_, Some(path)) => {
            session.resume(&path)?;
            let done = session.updates_done();
            lines.line("resume", format!("after update {done}, from {}", path.display()));
        }
        (Some(path), None) => {
            let fresh = rekindle_program::Patterns::new(arguments.fresh.as_deref().unwrap_or(""));
            session.load_weights(path, &fresh)?;
        }
        (None, None) => source.load(session)?,
    }
    Ok(())
}

fn recipe(arguments: &Arguments, data: &Data) -> Recipe {
    let mut recipe = arguments.learning.recipe();
    recipe.about = json!({
        "model": arguments.model.recipe(),
        "data": arguments.data.recipe(),
        "samples": data.part.len(),
        "held back": data.validation.as_ref().map_or(0, |(_, held)| held.len()),
        "learning": arguments.learning.about(),
    });
    recipe
}

/// What the file of the weights says of them, for whoever uses them.
fn note(arguments: &Arguments, data: &Data) -> serde_json::Value {
    json!({
        "model": arguments.model.model,
        "classes": data.dataset.classes(),
        "data": arguments.data.recipe(),
    })
}
