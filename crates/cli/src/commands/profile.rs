//! `rekindle profile`: where the time and the bytes of a training step go.

pub(super) mod measured;
mod summary;

use std::path::{Path, PathBuf};

use rekindle_analysis::write_profile;
use rekindle_graph::{Budget, Bytes, parse_budget};
use rekindle_models::Model;
use rekindle_report::{Picture, batch_size_charts, profile_charts};

pub(crate) use self::measured::Profiled;
use super::offload::Offloading;
use super::report::Reported;
use super::step::{StepArguments, parse_count};
use crate::output;

/// Measure where the time and the bytes of a training step go
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  rekindle profile resnet152 --batch-size 4
  rekindle profile bert-base --batch-sizes 4,8,16,32 --out bert
  rekindle profile resnet152 --batch-size 32 --memory-limit 2GiB
  rekindle profile gpt2-large --batch-size 1 --memory-limit 3GiB --offload /var/tmp
  rekindle profile resnet50 --batch-size 4 --trace step.json")]
pub(crate) struct Arguments {
    /// Number of samples in a batch
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = parse_count,
        conflicts_with = "batch_sizes"
    )]
    batch_size: usize,
    /// Several batch sizes, profiled one after the other and drawn side by side
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = parse_count)]
    batch_sizes: Vec<usize>,
    /// Number of warm-up steps, whose times do not count
    #[arg(long, value_name = "N", default_value_t = 1)]
    warmup: usize,
    /// Number of measured steps; the median of their times counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = parse_count)]
    measured: usize,
    /// Memory that the measured step may use, for a step that does not fit: it recomputes, and
    /// with --offload moves tensors, to stay within 3GiB, or 60% of the step's peak
    #[arg(long, value_name = "BYTES", value_parser = parse_budget, allow_hyphen_values = true)]
    memory_limit: Option<Budget>,
    /// Folder for the tables and pictures; it is made if it does not exist
    #[arg(long, value_name = "DIR", default_value = "rekindle-profile")]
    out: PathBuf,
    /// Write a trace of one more step to this file; chrome://tracing and ui.perfetto.dev show it
    #[arg(long, value_name = "FILE.json", conflicts_with = "batch_sizes")]
    trace: Option<PathBuf>,
    /// Draw no pictures
    #[arg(long)]
    no_pictures: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reported: Reported,
    #[command(flatten)]
    step: StepArguments,
    #[command(flatten)]
    offloading: Offloading,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    output::check_outputs(&[arguments.trace.as_ref()], &[])?;
    arguments.offloading.check()?;
    let sizes = match arguments.batch_sizes.is_empty() {
        true => vec![arguments.batch_size],
        false => arguments.batch_sizes.clone(),
    };
    // Every model is built before the first one runs, so that a mistake costs no time.
    let models = sizes.iter().map(|&size| arguments.step.build(size));
    let models = models.collect::<anyhow::Result<Vec<Model>>>()?;
    output::make_folder(&arguments.out)?;
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
        let pairs: Vec<_> = all.iter().map(|one| (&one.profile, &one.graph)).collect();
        let limit = limit_line(arguments, &all[0]);
        draw(&arguments.out, &batch_size_charts(&pairs, limit))?;
    }
    if arguments.json {
        let summaries: Vec<_> = all.iter().map(summary::json).collect();
        println!("{:#}", serde_json::Value::from(summaries));
    }
    Ok(())
}

/// Profiles, writes the files and prints the summary of one batch size.
fn profile_one(arguments: &Arguments, size: usize, model: &Model) -> anyhow::Result<Profiled> {
    let profiled = measured::profile(arguments, size, model)?;
    let paths = write_profile(&arguments.out, &profiled.profile, &profiled.graph)?;
    if !arguments.no_pictures {
        let limit = limit_line(arguments, &profiled);
        let charts = profile_charts(&profiled.profile, &profiled.graph, limit);
        draw(&arguments.out, &charts)?;
    }
    if !arguments.json {
        print!("{}", summary::text(&profiled));
        for path in [&paths.nodes, &paths.activations, &paths.graph] {
            println!("{:<12} {}", "wrote", path.display());
        }
        if !arguments.no_pictures {
            let stem = arguments.out.join(format!("{}_bs{size}", arguments.step.model));
            println!("{:<12} {}_*.svg and .png", "wrote", stem.display());
        }
        println!();
    }
    Ok(profiled)
}

/// The memory limit as drawn; a share is one of the given profile's peak.
fn limit_line(arguments: &Arguments, of: &Profiled) -> Option<Bytes> {
    arguments.memory_limit.map(|limit| limit.resolve(of.peak.total()))
}

fn draw(folder: &Path, pictures: &[Picture]) -> anyhow::Result<()> {
    for (name, chart) in pictures {
        chart.save(folder, name)?;
    }
    Ok(())
}
