//! A run on the terminal and in the metrics' files, while it goes on.

use std::path::{Path, PathBuf};
use std::time::Instant;

use rekindle::train::{Metrics, Session, UpdateReport, Watch};
use rekindle_data::Skipped;
use rekindle_graph::StorageId;
use rekindle_models::InputKind;
use serde_json::{Value, json};

use super::Source;
use super::metrics::{MetricsFiles, Row};
use crate::commands::stages::Lines;
use crate::output::note;
use crate::progress::Bar;
use crate::summary::percent;

/// Bad files are named one by one up to here, and counted after that.
const NAMED: usize = 20;

/// Who shows a run.
pub(crate) struct Shown<'a> {
    files: MetricsFiles<'a>,
    lines: &'a Lines,
    bar: Bar,
    started: Instant,
    /// Whether the model tells tokens apart, so that a perplexity says something.
    of_tokens: bool,
    /// Bad files so far; each is named once.
    bad: Vec<PathBuf>,
    epoch: Epoch,
    evaluations: Vec<Value>,
    /// Where the model's file is written again, if it is.
    pub(crate) export: Option<(&'a Source, &'a Path)>,
    /// What went wrong where it could not be told.
    failed: Option<anyhow::Error>,
}

/// The losses of the updates since a line was written.
#[derive(Default)]
struct Epoch {
    sum: f64,
    count: u64,
}

impl<'a> Shown<'a> {
    pub(crate) fn new(
        files: MetricsFiles<'a>,
        lines: &'a Lines,
        session: &Session<'_>,
        skipped: &[(PathBuf, String)],
    ) -> Shown<'a> {
        let kind = session.model().inputs[0].kind;
        let mut shown = Shown {
            files,
            lines,
            bar: Bar::new("training"),
            started: Instant::now(),
            of_tokens: !matches!(kind, InputKind::Features { .. }),
            bad: Vec::new(),
            epoch: Epoch::default(),
            evaluations: Vec::new(),
            export: None,
            failed: None,
        };
        for (path, why) in skipped {
            shown.skip(&Skipped { path: path.clone(), why: why.clone() });
        }
        if lines.shown {
            println!(
                "\n{:>7}  {:>8}  {:>10}  {:>10}  {:>9}  {:>9}",
                "epoch",
                "update",
                "loss",
                "validation",
                "accuracy",
                if shown.of_tokens { "perplex." } else { "top 5" }
            );
        }
        shown
    }

    fn skip(&mut self, skipped: &Skipped) {
        if self.bad.contains(&skipped.path) {
            return;
        }
        self.bar.clear();
        match self.bad.len() {
            count if count < NAMED => {
                note(&format!("skipped {}: {}", skipped.path.display(), skipped.why));
            }
            NAMED => note("more files are bad; they are counted at the end"),
            _ => {}
        }
        self.bad.push(skipped.path.clone());
    }

    fn add(&mut self, row: &Row) {
        let added = self.files.add(row);
        self.failed = self.failed.take().or(added.err());
    }

    /// A line of the table.
    fn line(&mut self, session: &Session<'_>, evaluated: Option<(&Metrics, bool)>) {
        let updates = session.updates_done();
        let epoch = updates as f64 / session.per_epoch() as f64;
        let loss = self.epoch.sum / self.epoch.count.max(1) as f64;
        self.epoch = Epoch::default();
        self.bar.clear();
        if !self.lines.shown {
            return;
        }
        let rest = evaluated.map_or(String::new(), |(metrics, is_best)| {
            let (accuracy, last) = match (metrics.accuracy.is_finite(), self.of_tokens) {
                (false, _) => ("—".into(), "—".into()),
                (_, true) => (percent(metrics.accuracy), format!("{:.3}", metrics.perplexity())),
                (_, false) => (percent(metrics.accuracy), percent(metrics.top5)),
            };
            let best = if is_best { "  best so far" } else { "" };
            format!("  {:>10.6}  {accuracy:>9}  {last:>9}{best}", metrics.loss)
        });
        println!("{epoch:>7.2}  {updates:>8}  {loss:>10.6}{rest}");
    }

    /// What the result says; an error if something could not be written.
    pub(crate) fn finish(
        mut self,
        session: &Session<'_>,
    ) -> anyhow::Result<Vec<(&'static str, Value)>> {
        self.bar.clear();
        if let Some(error) = self.failed {
            return Err(error);
        }
        if session.is_stopped() && self.lines.shown {
            println!("\nStopped early: no evaluation was better for as long as --patience waits.");
        }
        if !self.bad.is_empty() {
            note(&format!("{} bad files were skipped", self.bad.len()));
        }
        self.files.show()?;
        let best = session.best();
        Ok(vec![
            ("updates", json!(session.updates_done())),
            ("best_loss", json!(best.map(|best| best.0))),
            ("best_update", json!(best.map(|best| best.1))),
            ("stopped_early", json!(session.is_stopped())),
            ("skipped_files", json!(self.bad)),
            ("evaluations", json!(self.evaluations)),
            ("bits", json!(bits(session)?)),
        ])
    }
}

/// A number that two runs share if their parameters and optimizer state have the same bits: the
/// CRC-32 of them all, in their order.
fn bits(session: &Session<'_>) -> anyhow::Result<u32> {
    let program = session.engine().program();
    let mut sum = crc32fast::Hasher::new();
    for (index, tensor) in program.tensors.iter().enumerate() {
        use rekindle_graph::Role::{OptimizerState, Parameter};
        let is_sum = tensor.name.ends_with(".gradient_sum");
        if matches!(tensor.role, Parameter | OptimizerState) && !is_sum {
            session.engine().read_pieces(StorageId::new(index), |piece| {
                sum.update(piece);
                Ok::<(), rekindle_engine::EngineError>(())
            })?;
        }
    }
    Ok(sum.finalize())
}

impl Watch for Shown<'_> {
    fn updated(&mut self, session: &Session<'_>, report: &UpdateReport) {
        report.skipped.iter().for_each(|skipped| self.skip(skipped));
        self.epoch.sum += report.loss;
        self.epoch.count += 1;
        let seconds = self.started.elapsed().as_secs_f64();
        self.add(&Row::of_update(report, seconds));
        let remark = format!("loss {:.4}, rate {:.2e}", report.loss, report.learning_rate);
        self.bar.show(report.number, session.total_updates(), &remark);
        if !session.evaluates_now() && report.number.is_multiple_of(session.per_epoch()) {
            self.line(session, None);
        }
    }

    fn evaluating(&mut self, done: u64, total: u64, skipped: &[Skipped]) {
        skipped.iter().for_each(|skipped| self.skip(skipped));
        self.bar.show(done, total, "evaluating");
    }

    fn weights(&mut self, session: &Session<'_>) -> Result<(), rekindle::Error> {
        match self.export {
            Some((source, path)) => source.export(path, session),
            None => Ok(()),
        }
    }

    fn evaluated(&mut self, session: &Session<'_>, metrics: &Metrics, is_best: bool) {
        let update = session.updates_done();
        let epoch = update as f64 / session.per_epoch() as f64;
        let seconds = self.started.elapsed().as_secs_f64();
        self.add(&Row::of_evaluation(update, epoch, metrics, seconds));
        self.evaluations.push(json!({
            "update": update,
            "loss": metrics.loss,
            "accuracy": metrics.accuracy,
            "top5": metrics.top5,
            "perplexity": metrics.perplexity(),
            "rows": metrics.rows,
        }));
        self.line(session, Some((metrics, is_best)));
        let shown = self.files.show();
        self.failed = self.failed.take().or(shown.err());
    }
}
