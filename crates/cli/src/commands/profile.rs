//! `remat profile`: where the time and the bytes of a training step go.

pub(super) mod pictures;
mod summary;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use remat_engine::{Engine, Spill, lower};
use remat_graph::{Budget, Bytes, Graph, Timeline, parse_budget, write_atomically};
use remat_models::data::batch;
use remat_models::{Model, Values};
use remat_profile::{
    Analysis, Breakdown, FileSpill, HostSpill, Limited, MeasureOptions, Origin, Profile, Progress,
    breakdowns, measure, write_profile,
};

use self::pictures::Picture;
use super::report::Reported;
use super::step::{Step, parse_count};
use crate::progress::Bar;

/// Measure where the time and the bytes of a training step go
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  remat profile resnet152 --batch-size 4
  remat profile bert-base --batch-sizes 4,8,16,32 --out bert
  remat profile resnet152 --batch-size 32 --memory-limit 2GiB --spill-dir /mnt/scratch")]
pub(crate) struct Arguments {
    #[command(flatten)]
    step: Step,
    /// Samples in a batch
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = parse_count,
        conflicts_with = "batch_sizes"
    )]
    batch_size: usize,
    /// Profile one after the other and draw them side by side
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = parse_count)]
    batch_sizes: Vec<usize>,
    /// Steps whose times are discarded
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
    /// Steps whose times count
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = parse_count)]
    measured: usize,
    /// Run the step in this much memory by swapping idle tensors out: 3GiB, or 60% of its peak
    #[arg(long, value_name = "BYTES", value_parser = parse_budget, allow_hyphen_values = true)]
    memory_limit: Option<Budget>,
    /// Swap to a file in this folder, and not to host memory
    #[arg(long, value_name = "DIR")]
    spill_dir: Option<PathBuf>,
    /// Where the files go; made if it is not there
    #[arg(long, value_name = "DIR", default_value = "remat-profile")]
    out: PathBuf,
    /// Draw no pictures
    #[arg(long)]
    no_pictures: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reported: Reported,
}

/// One profile with everything that is told about it.
pub(crate) struct Profiled {
    profile: Profile,
    /// With the measured times.
    graph: Graph,
    analysis: Analysis,
    /// Indexed by rank.
    breakdowns: Vec<Breakdown>,
    /// How it ran under the memory limit, if it did not fit.
    swapped: Option<SwapRun>,
}

impl Profiled {
    /// What is live at the peak of the plain step.
    fn peak(&self) -> &Breakdown {
        let by_total = self.breakdowns.iter().max_by_key(|b| b.total());
        by_total.expect("a step has nodes")
    }
}

/// A run under the memory limit.
pub(crate) struct SwapRun {
    limit: Bytes,
    /// The arena that it ran in.
    peak: Bytes,
    offloads: usize,
    fetches: usize,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let sizes = match arguments.batch_sizes.is_empty() {
        true => vec![arguments.batch_size],
        false => arguments.batch_sizes.clone(),
    };
    // Every model is built before the first one runs, so that a mistake costs no time.
    let models = sizes.iter().map(|&size| arguments.step.build(size));
    let models = models.collect::<anyhow::Result<Vec<Model>>>()?;
    std::fs::create_dir_all(&arguments.out)
        .with_context(|| format!("cannot make the folder {}", arguments.out.display()))?;
    let reported = arguments.reported.folder()?;
    let mut all = Vec::new();
    for (&size, model) in sizes.iter().zip(&models) {
        all.push(profile_one(arguments, size, model)?);
    }
    if let Some(folder) = reported {
        for one in &all {
            write_profile(folder, &one.profile, &one.graph)?;
        }
    }
    arguments.reported.finish()?;
    if all.len() > 1 && !arguments.no_pictures {
        draw(
            &arguments.out,
            pictures::of_batch_sizes(&all, limit_line(arguments, &all[0])),
        )?;
    }
    if arguments.json {
        let summaries: Vec<_> = all.iter().map(summary::json).collect();
        println!("{:#}", serde_json::Value::from(summaries));
    }
    Ok(())
}

/// Profiles, writes the files and prints the summary of one batch size.
fn profile_one(arguments: &Arguments, size: usize, model: &Model) -> anyhow::Result<Profiled> {
    let profiled = measure_one(arguments, size, model)?;
    let paths = write_profile(&arguments.out, &profiled.profile, &profiled.graph)?;
    if !arguments.no_pictures {
        let limit = limit_line(arguments, &profiled);
        draw(&arguments.out, pictures::of_one(&profiled, limit))?;
    }
    if !arguments.json {
        print!("{}", summary::text(&profiled));
        for path in [&paths.nodes, &paths.activations, &paths.graph] {
            println!("{:<12} {}", "wrote", path.display());
        }
        println!();
    }
    Ok(profiled)
}

fn measure_one(arguments: &Arguments, size: usize, model: &Model) -> anyhow::Result<Profiled> {
    let threads = match arguments.step.training.threads {
        Some(threads) => threads,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let options = MeasureOptions {
        warmup: arguments.warmup,
        measured: arguments.measured,
        seed: arguments.step.training.seed,
    };
    let graph = lower(&model.program, threads);
    let plain_peak = Timeline::natural(&graph).peak;
    let limit = arguments
        .memory_limit
        .map(|limit| limit.resolve(plain_peak));
    let mut bar = Bar::new(format!("profiling {}, batch {size}", arguments.step.model));
    let mut watch = |p: Progress| bar.show(p.done as u64, p.total as u64, "");
    let mut swapped = None;
    let measurement = match limit {
        Some(limit) if limit < plain_peak => {
            let mut limited = Limited::new(&model.program, threads, limit)?;
            write_batch(&mut limited.engine, model, options.seed)?;
            limited
                .engine
                .set_spill(spill(arguments.spill_dir.as_deref())?);
            swapped = Some(swap_run(&limited, limit));
            limited.measure(&options, &mut watch)
        }
        _ => {
            let mut engine = Engine::new(&model.program, threads)?;
            write_batch(&mut engine, model, options.seed)?;
            let mut spill = spill(arguments.spill_dir.as_deref())?;
            measure(&mut engine, &options, spill.as_mut(), &mut watch)
        }
    };
    bar.clear();
    let measurement = measurement?;
    let analysis = Analysis::new(&measurement.graph);
    Ok(Profiled {
        profile: measurement.profile(&arguments.step.model, size, "cpu"),
        breakdowns: breakdowns(&measurement.graph, &analysis),
        graph: measurement.graph,
        analysis,
        swapped,
    })
}

fn swap_run(limited: &Limited, limit: Bytes) -> SwapRun {
    let count = |is: fn(&Origin) -> bool| limited.swapped.origins.iter().filter(|o| is(o)).count();
    SwapRun {
        limit,
        peak: limited.engine.predicted().arena,
        offloads: count(|o| matches!(o, Origin::Offload(_))),
        fetches: count(|o| matches!(o, Origin::Fetch(_))),
    }
}

fn spill(folder: Option<&Path>) -> anyhow::Result<Box<dyn Spill + Send>> {
    match folder {
        None => Ok(Box::new(HostSpill::new())),
        Some(folder) => {
            let spill = FileSpill::new(folder);
            let spill = spill.with_context(|| format!("cannot spill to {}", folder.display()))?;
            Ok(Box::new(spill))
        }
    }
}

pub(super) fn write_batch(engine: &mut Engine, model: &Model, seed: u64) -> anyhow::Result<()> {
    for (tensor, values) in batch(model, seed, 1) {
        match values {
            Values::F32(values) => engine.write_f32(tensor, &values)?,
            Values::I64(values) => engine.write_i64(tensor, &values)?,
        }
    }
    Ok(())
}

/// The memory limit as drawn; a share is one of the given profile's peak.
fn limit_line(arguments: &Arguments, of: &Profiled) -> Option<Bytes> {
    arguments
        .memory_limit
        .map(|limit| limit.resolve(of.peak().total()))
}

/// Pixels of a PNG for each unit of the SVG: sharp on most screens and in print.
const PNG_SCALE: f64 = 2.0;

fn draw(folder: &Path, pictures: Vec<Picture>) -> anyhow::Result<()> {
    for (name, chart) in pictures {
        write_atomically(
            &folder.join(format!("{name}.svg")),
            chart.to_svg().as_bytes(),
        )?;
        write_atomically(
            &folder.join(format!("{name}.png")),
            &chart.to_png(PNG_SCALE)?,
        )?;
    }
    Ok(())
}
