//! `rekindle report`: what the commands wrote to a folder, as one HTML file.
//!
//! In: a folder with graphs, plans, frontiers, profiles and comparisons, as the other verbs write
//! them. Out: one page, and a line for each thing that would have been shown had it been there.
//! Nothing is measured here.

mod flag;
mod folder;
mod gather;
mod missing;
mod schedule;
mod tables;

use std::path::{Path, PathBuf};

use rekindle_graph::{one_line, write_atomically};
use rekindle_report::page::Page;
use serde_json::{Value, json};

pub(crate) use self::flag::{Reported, stem_of};
use self::folder::Folder;
use crate::exit::UsageError;
use crate::output::check_outputs;

/// Make one HTML page of the results in a folder
#[derive(clap::Args)]
#[command(after_help = "\
Files are known by what is in them: graphs (remat.graph/1), plans (remat.plan/1 and /2), the \
tables of `rekindle profile`, of `rekindle frontier --out` and of `rekindle compare --csv`. What \
is missing is said on the page, with the command that makes it.

Examples:
  rekindle profile resnet50 --batch-size 4 --out r
  rekindle plan r/resnet50_bs4.graph.json --budget 50% --report=r
  rekindle frontier r/resnet50_bs4.graph.json --report=r
  rekindle report r")]
pub(crate) struct Arguments {
    /// Folder with the results of other commands
    folder: PathBuf,
    /// Write the page to this file [default: index.html in the folder]
    #[arg(long, value_name = "FILE.html")]
    out: Option<PathBuf>,
    /// Print what is on the page and what is missing as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    check_outputs(&[arguments.out.as_ref()], &[])?;
    let out = arguments.out.clone().unwrap_or_else(|| arguments.folder.join("index.html"));
    let page = make(&arguments.folder, &out)?;
    if arguments.json {
        println!("{:#}", json(&page, &out));
        return Ok(());
    }
    let mut told: Vec<String> = Vec::new();
    for missing in &page.missing {
        let what = one_line(&missing.what);
        let line = match &missing.command {
            Some(command) => format!("no {what}; to make it:\n  {command}"),
            None => format!("no {what}, and no command makes it"),
        };
        // One file may serve several sections.
        if !told.contains(&line) {
            println!("{line}");
            told.push(line);
        }
    }
    println!("wrote {}", out.display());
    Ok(())
}

fn json(page: &Page, out: &Path) -> Value {
    let missing = page.missing.iter().map(|missing| {
        json!({"section": missing.section, "what": missing.what, "command": missing.command})
    });
    json!({
        "report": out.display().to_string(),
        "steps": page.steps.iter().map(|step| &step.name).collect::<Vec<_>>(),
        "comparisons": page.comparisons.len(),
        "missing": missing.collect::<Vec<_>>(),
    })
}

/// Writes the page of what is in `folder` to `out`.
pub(crate) fn make(folder: &Path, out: &Path) -> anyhow::Result<Page> {
    let found = Folder::read(folder)?;
    if found.is_empty() {
        anyhow::bail!(UsageError(format!(
            "{} holds nothing that a report could show; make something first, for example\n  \
             rekindle profile resnet50 --batch-size 4 --out {0}",
            folder.display()
        )));
    }
    let inputs = found.paths();
    let inputs: Vec<Option<&PathBuf>> = inputs.iter().map(Some).collect();
    check_outputs(&[Some(&out.to_owned())], &inputs)?;
    let page = gather::page(found, folder)?;
    write_atomically(out, page.to_html().as_bytes())?;
    Ok(page)
}
