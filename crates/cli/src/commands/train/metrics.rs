//! The metrics of a run as files: CSV, JSON lines, and the curves of the report, each whole after
//! every line.
//!
//! A run that goes on keeps the lines up to where it goes on, and drops those after it, and half of
//! a line: it writes them again.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rekindle::train::{Metrics, UpdateReport};
use rekindle_graph::{read_text, write_atomically};
use serde_json::{Map, Value, json};

use crate::commands::report::Reported;

/// The columns of the CSV file, and the names in the JSON lines.
pub(crate) const COLUMNS: [&str; 10] = [
    "update",
    "epoch",
    "seconds",
    "learning_rate",
    "loss",
    "gradient_norm",
    "validation_loss",
    "accuracy",
    "top5",
    "perplexity",
];

/// The file of the curves in the folder of a report.
const CURVES: &str = "training.metrics.csv";

/// The files that are being written.
pub(crate) struct MetricsFiles<'a> {
    csv: Vec<File>,
    json_lines: Option<File>,
    reported: &'a Reported,
}

/// One line: an update or an evaluation. What is not of it is empty.
#[derive(Default)]
pub(crate) struct Row([Option<f64>; COLUMNS.len()]);

impl Row {
    pub(crate) fn of_update(report: &UpdateReport, seconds: f64) -> Row {
        let mut row = Row::default();
        row.0[0] = Some(report.number as f64);
        row.0[1] = Some(report.epoch);
        row.0[2] = Some(seconds);
        row.0[3] = Some(report.learning_rate);
        row.0[4] = Some(report.loss);
        row.0[5] = report.gradient_norm;
        row
    }

    pub(crate) fn of_evaluation(update: u64, epoch: f64, metrics: &Metrics, seconds: f64) -> Row {
        let mut row = Row::default();
        row.0[0] = Some(update as f64);
        row.0[1] = Some(epoch);
        row.0[2] = Some(seconds);
        row.0[6] = Some(metrics.loss);
        if metrics.accuracy.is_finite() {
            row.0[7] = Some(metrics.accuracy);
            row.0[8] = Some(metrics.top5);
            row.0[9] = Some(metrics.perplexity());
        }
        row
    }

    fn csv(&self) -> String {
        let cell = |value: &Option<f64>| value.map_or(String::new(), |value| value.to_string());
        self.0.iter().map(cell).collect::<Vec<_>>().join(",")
    }

    fn json(&self) -> Value {
        let pairs = COLUMNS.iter().zip(self.0);
        let pairs = pairs.filter_map(|(name, value)| Some(((*name).to_owned(), json!(value?))));
        Value::Object(pairs.collect::<Map<_, _>>())
    }
}

impl<'a> MetricsFiles<'a> {
    /// Opens the files, with what they have up to update number `done`.
    pub(crate) fn open(
        [csv, json_lines]: [Option<&Path>; 2],
        reported: &'a Reported,
        done: u64,
    ) -> anyhow::Result<MetricsFiles<'a>> {
        let header = COLUMNS.join(",");
        let of_line = |line: &str| line.split(',').next()?.parse::<f64>().ok();
        let of_json = |line: &str| serde_json::from_str::<Value>(line).ok()?["update"].as_f64();
        let curves: Option<PathBuf> = reported.folder()?.map(|folder| folder.join(CURVES));
        let tables = csv.into_iter().chain(curves.as_deref());
        Ok(MetricsFiles {
            csv: tables
                .map(|path| go_on(path, &header, done, &of_line))
                .collect::<anyhow::Result<_>>()?,
            json_lines: json_lines.map(|path| go_on(path, "", done, &of_json)).transpose()?,
            reported,
        })
    }

    pub(crate) fn add(&mut self, row: &Row) -> anyhow::Result<()> {
        let line = row.csv() + "\n";
        for file in &mut self.csv {
            file.write_all(line.as_bytes()).context("cannot write the metrics")?;
        }
        if let Some(file) = &mut self.json_lines {
            let line = format!("{}\n", row.json());
            file.write_all(line.as_bytes()).context("cannot write the metrics")?;
        }
        Ok(())
    }

    /// Writes the report's page again, with the curves so far.
    pub(crate) fn show(&self) -> anyhow::Result<()> {
        self.reported.refresh()
    }
}

/// A file to which lines are added, with those of its lines that are not after `done`.
fn go_on(
    path: &Path,
    header: &str,
    done: u64,
    update: &dyn Fn(&str) -> Option<f64>,
) -> anyhow::Result<File> {
    let old = if done > 0 { read_text(path).unwrap_or_default() } else { String::new() };
    let whole = old.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let kept = whole.lines().filter(|line| update(line).is_some_and(|at| at <= done as f64));
    let mut text = String::new();
    for line in [header].into_iter().filter(|header| !header.is_empty()).chain(kept) {
        text += line;
        text.push('\n');
    }
    write_atomically(path, text.as_bytes())?;
    let file = File::options().append(true).open(path);
    file.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_run_keeps_the_lines_before_it() {
        let path = std::env::temp_dir().join(format!("rekindle-metrics.{}", std::process::id()));
        std::fs::write(&path, "update,loss\n1,0.5\n2,0.4\n3,0.3\n4,0.").expect("writable");
        let update = |line: &str| line.split(',').next()?.parse::<f64>().ok();
        let mut file = go_on(&path, "update,loss", 2, &update).expect("it can go on");
        file.write_all(b"3,0.25\n").expect("writable");
        let text = std::fs::read_to_string(&path).expect("readable");
        let fresh = go_on(&path, "update,loss", 0, &update).map(drop);
        let begun = std::fs::read_to_string(&path).expect("readable");
        std::fs::remove_file(&path).expect("it can go");
        assert_eq!(text, "update,loss\n1,0.5\n2,0.4\n3,0.25\n");
        assert!(fresh.is_ok());
        assert_eq!(begun, "update,loss\n");
    }
}
