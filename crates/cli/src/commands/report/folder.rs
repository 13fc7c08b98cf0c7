//! The files of a folder, known by what is in them and not by their names.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rekindle_analysis::{ActivationStats, NodeStats, read_activation_stats, read_node_stats};
use rekindle_graph::{Graph, Plan, read_graph, read_plan, read_text};
use rekindle_report::page::{Comparison, TrainingRun};

use super::tables::{self, FrontierTable};

/// A file and what is in it.
pub(super) struct Found<T> {
    pub(super) path: PathBuf,
    pub(super) content: T,
}

/// Everything in a folder that a report can show, by kind; each kind by file name.
#[derive(Default)]
pub(super) struct Folder {
    pub(super) graphs: Vec<Found<Graph>>,
    pub(super) plans: Vec<Found<Plan>>,
    pub(super) nodes: Vec<Found<Vec<NodeStats>>>,
    pub(super) activations: Vec<Found<Vec<ActivationStats>>>,
    pub(super) frontiers: Vec<Found<FrontierTable>>,
    pub(super) comparisons: Vec<Found<Vec<Comparison>>>,
    pub(super) training: Vec<Found<TrainingRun>>,
}

impl Folder {
    /// Reads every file of a kind that is known; others are left alone.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Folder> {
        let unreadable = || format!("cannot read the folder {}", folder.display());
        let entries = std::fs::read_dir(folder).with_context(unreadable)?;
        let mut paths: Vec<PathBuf> = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<_>>()
            .with_context(unreadable)?;
        paths.sort();
        let mut found = Folder::default();
        for path in paths.into_iter().filter(|path| path.is_file()) {
            match path.extension().and_then(|e| e.to_str()) {
                Some("json") => found.json(path)?,
                Some("csv") => found.csv(path)?,
                _ => {}
            }
        }
        Ok(found)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.graphs.is_empty()
            && self.nodes.is_empty()
            && self.activations.is_empty()
            && self.comparisons.is_empty()
            && self.training.is_empty()
    }

    /// Where everything was found.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        fn of<T>(found: &[Found<T>]) -> impl Iterator<Item = PathBuf> {
            found.iter().map(|f| f.path.clone())
        }
        of(&self.graphs)
            .chain(of(&self.plans))
            .chain(of(&self.nodes))
            .chain(of(&self.activations))
            .chain(of(&self.frontiers))
            .chain(of(&self.comparisons))
            .chain(of(&self.training))
            .collect()
    }

    fn json(&mut self, path: PathBuf) -> anyhow::Result<()> {
        let text = read_text(&path).unwrap_or_default();
        if text.contains("\"remat.graph/1\"") {
            self.graphs.push(Found { content: read_graph(&path)?, path });
        } else if text.contains("\"remat.plan/") {
            self.plans.push(Found { content: read_plan(&path)?, path });
        }
        Ok(())
    }

    fn csv(&mut self, path: PathBuf) -> anyhow::Result<()> {
        let text = read_text(&path).unwrap_or_default();
        let header: Vec<&str> = text.lines().next().unwrap_or("").split(',').collect();
        let has = |columns: &[&str]| columns.iter().all(|c| header.contains(c));
        if has(&["node_name", "gtype"]) {
            self.nodes.push(Found { content: read_node_stats(&path)?.rows, path });
        } else if has(&["activation_name", "last_fw_use_rank"]) {
            self.activations.push(Found { content: read_activation_stats(&path)?.rows, path });
        } else if has(&["budget_bytes", "peak_bytes", "lower_bound_us"]) {
            self.frontiers.push(Found { content: tables::frontier(&path, &text)?, path });
        } else if has(&["batch_size", "plain_peak_bytes"]) {
            self.comparisons.push(Found { content: tables::comparisons(&path, &text)?, path });
        } else if has(&["update", "learning_rate", "validation_loss"]) {
            self.training.push(Found { content: tables::training(&path, &text)?, path });
        }
        Ok(())
    }
}
