//! `--report`: a verb adds what it did to a folder, and writes the folder's page.

use std::path::{Path, PathBuf};

use rekindle_graph::{Graph, Plan, Timeline, read_graph, write_atomically};

use super::gather::model_and_batch;
use crate::commands::stages::is_same_step;

/// Whether and where a verb reports.
#[derive(clap::Args)]
pub(crate) struct Reported {
    /// Add the results to a report folder, and write its HTML page again; the folder is
    /// rekindle-report unless another is given
    #[arg(
        long,
        value_name = "DIR",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "rekindle-report"
    )]
    report: Option<PathBuf>,
}

/// What the files of a graph are called: as those of the model's profile if it is one of a model
/// (`resnet50-b4`), so that what several verbs find about one step comes together.
pub(crate) fn stem_of(graph: &Graph) -> String {
    match model_and_batch(Path::new(""), graph.name()) {
        (model, Some(batch)) => format!("{model}_bs{batch}"),
        (name, None) if name.is_empty() => "step".into(),
        (name, None) => name,
    }
    .chars()
    .map(|c| if is_plain(c) { c } else { '_' })
    .take(LONGEST_STEM)
    .collect()
}

/// Letters that a file's stem may have: file systems allow 255 bytes, and endings follow.
const LONGEST_STEM: usize = 50;

/// Whether a letter of a graph's name may stand in a file's name.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_' | '+' | '=' | ' ')
}

impl Reported {
    pub(crate) fn is_wanted(&self) -> bool {
        self.report.is_some()
    }

    /// The folder, made if it is not there; `None` if no report is wanted. For the start of a verb:
    /// a folder that cannot be made costs no work.
    pub(crate) fn folder(&self) -> anyhow::Result<Option<&Path>> {
        if let Some(folder) = &self.report {
            crate::output::make_folder(folder)?;
        }
        Ok(self.report.as_deref())
    }

    /// Adds a step and its plan. If the folder has that step already, its times stay, and the
    /// plan's time is restated in them: so what was found with the same times stays together.
    pub(crate) fn add_plan(&self, stem: &str, graph: &Graph, plan: &Plan) -> anyhow::Result<()> {
        let Some(folder) = &self.report else {
            return Ok(());
        };
        let name = format!("{stem}.graph.json");
        let mut plan = plan.clone();
        match read_graph(&folder.join(&name)) {
            Ok(known) if is_same_step(&known, graph) => {
                plan.time = Timeline::new(&known, &plan.schedule)?.time;
            }
            _ => self.add(&name, &graph.to_json())?,
        }
        // A plan that moves storages stands beside the one that recomputes alone.
        let kind = if plan.schedule.has_transfers() { "moving.plan" } else { "plan" };
        self.add(&format!("{stem}.{kind}.json"), &plan.to_json())
    }

    /// Adds a file.
    pub(crate) fn add(&self, name: &str, text: &str) -> anyhow::Result<()> {
        if let Some(folder) = &self.report {
            write_atomically(&folder.join(name), text.as_bytes())?;
        }
        Ok(())
    }

    /// Writes the page again, without a word.
    pub(crate) fn refresh(&self) -> anyhow::Result<()> {
        if let Some(folder) = &self.report {
            super::make(folder, &folder.join("index.html"))?;
        }
        Ok(())
    }

    /// Writes the page, when everything has been added.
    pub(crate) fn finish(&self) -> anyhow::Result<()> {
        if let Some(folder) = &self.report {
            let page = folder.join("index.html");
            super::make(folder, &page)?;
            crate::output::wrote(&page);
        }
        Ok(())
    }
}
