//! The rows of a comparison as text, as CSV and as the notes of the charts.

use rekindle_analysis::{Transfers, csv_text, text_cell};
use rekindle_report::Compared;
use serde_json::{Value, json};

use super::{MeasuredPlan, Row};
use crate::commands::stages::moves_of;
use crate::summary::percent;

/// Cells under each other, no wider than a terminal of 80 columns.
fn columns(cells: [&str; 8]) -> String {
    let [batch, plain_peak, planned_peak, reduction, plain, planned, overhead, predicted] = cells;
    format!(
        "{batch:>5} {plain_peak:>11} {planned_peak:>12} {reduction:>9} {plain:>9} {planned:>9} \
         {overhead:>8} {predicted:>9}"
    )
}

/// What stands above the lines.
pub(crate) fn header() -> String {
    columns([
        "batch",
        "plain peak",
        "planned peak",
        "reduction",
        "plain",
        "planned",
        "overhead",
        "predicted",
    ])
}

impl Row {
    fn planned(&self) -> Option<&MeasuredPlan> {
        self.planned.as_ref().ok()
    }

    fn planned_bytes(&self) -> f64 {
        let arena = self.planned().map(|p| p.pair.planned.measured.arena);
        arena.map_or(f64::NAN, |arena| arena.get() as f64)
    }

    fn plain_seconds(&self) -> Option<f64> {
        let plain = self.planned()?.pair.plain.as_ref().ok()?;
        Some(plain.time().as_secs_f64())
    }

    fn planned_seconds(&self) -> Option<f64> {
        Some(self.planned()?.pair.planned.time().as_secs_f64())
    }

    fn reduction(&self) -> Option<f64> {
        self.planned()?;
        Some(1.0 - self.planned_bytes() / self.plain.arena.get() as f64)
    }

    /// What the charts show.
    pub(super) fn compared(&self) -> Compared {
        Compared {
            batch: self.batch,
            plain_peak: self.plain.arena.get() as f64,
            planned_peak: self.planned().map(|_| self.planned_bytes()),
            plain_seconds: self.plain_seconds(),
            planned_seconds: self.planned_seconds(),
            overhead: self.overhead(),
        }
    }

    /// What is moved to the store and back; `None` if nothing.
    fn moves(&self) -> Option<Transfers> {
        moves_of(&self.planned()?.fitted)
    }

    fn overhead(&self) -> Option<f64> {
        self.planned()?.pair.overhead()
    }

    /// What a reader must know beside the numbers.
    fn remark(&self) -> String {
        let planned = match &self.planned {
            Ok(planned) => planned,
            Err(why) => return why.clone(),
        };
        match (&planned.pair.plain, planned.pair.interleaved) {
            (Err(_), _) => "the plain step does not fit in memory".into(),
            (Ok(_), false) => "one after the other: both do not fit at once".into(),
            (Ok(_), true) => String::new(),
        }
    }
}

/// One row for a person; a remark stands on a line of its own.
pub(crate) fn line(row: &Row) -> String {
    let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let seconds = |value: Option<f64>| cell(value.map(|s| format!("{s:.3} s")));
    let signed = |share: Option<f64>| cell(share.map(|s| format!("{:+.1} %", 100.0 * s)));
    let arena = |p: &MeasuredPlan| p.pair.planned.measured.arena.to_string();
    let cells = columns([
        &row.batch.to_string(),
        &row.plain.arena.to_string(),
        &cell(row.planned().map(arena)),
        &cell(row.reduction().map(percent)),
        &seconds(row.plain_seconds()),
        &seconds(row.planned_seconds()),
        &signed(row.overhead()),
        &signed(row.planned().map(|p| p.fitted.overhead())),
    ]);
    let checked = row.planned().is_some_and(|p| p.checked);
    let same = checked.then(|| "every bit the same".to_owned());
    let moved = row.moves().map(|moves| {
        let Transfers { moved_out, moved_in, waited, .. } = moves;
        format!("moves {moved_out} out and {moved_in} in, and waits {waited} for them")
    });
    let remarks = [row.remark()].into_iter().chain(moved).chain(same);
    let remarks = remarks.filter(|remark| !remark.is_empty());
    let below = remarks.map(|remark| format!("\n{:>5} {remark}", ""));
    below.fold(cells, |line, below| line + &below)
}

/// The named values of each row for a program; `null` where there is none. Where a row moves
/// something, all say what is moved.
fn cells(model: &str, strategy: &str, rows: &[Row]) -> Vec<Vec<(&'static str, Value)>> {
    let any = rows.iter().any(|row| row.moves().is_some());
    let all = |row: &Row| {
        let mut cells = cells_of(model, strategy, row).to_vec();
        if any {
            let moves = row.moves();
            let moved = moves.as_ref().map(|m| (m.moved_out.get(), m.moved_in.get()));
            cells.push(("moved_out_bytes", json!(moved.map(|(out, _)| out))));
            cells.push(("moved_in_bytes", json!(moved.map(|(_, back)| back))));
            cells.push(("waited_us", json!(moves.map(|m| m.waited.get()))));
        }
        cells
    };
    rows.iter().map(all).collect()
}

fn cells_of(model: &str, strategy: &str, row: &Row) -> [(&'static str, Value); 15] {
    let planned = row.planned();
    [
        ("model", json!(model)),
        ("batch_size", json!(row.batch)),
        ("strategy", json!(strategy)),
        ("budget_bytes", json!(row.budget.get())),
        ("plain_peak_bytes", json!(row.plain.arena.get())),
        ("predicted_peak_bytes", json!(planned.map(|p| p.fitted.predicted().arena.get()))),
        ("measured_peak_bytes", json!(planned.map(|p| p.pair.planned.measured.arena.get()))),
        ("reduction_percent", json!(row.reduction().map(|r| 100.0 * r))),
        ("plain_seconds", json!(row.plain_seconds())),
        ("planned_seconds", json!(row.planned_seconds())),
        ("overhead_percent", json!(row.overhead().map(|o| 100.0 * o))),
        ("predicted_overhead_percent", json!(planned.map(|p| 100.0 * p.fitted.overhead()))),
        ("recomputed", json!(planned.map(|p| p.fitted.audit.recomputed))),
        ("bit_equal", json!(planned.filter(|p| p.checked).map(|_| true))),
        ("remark", json!(Some(row.remark()).filter(|remark| !remark.is_empty()))),
    ]
}

/// All rows as a table, if there are any; a cell without a value is empty.
pub(crate) fn csv(model: &str, strategy: &str, rows: &[Row]) -> String {
    let text = |value: Value| match value {
        Value::String(text) => text_cell(&text),
        Value::Bool(true) => "yes".into(),
        // JSON has 50.0 where the table has 50.
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map_or_else(String::new, |n| n.to_string())
        }
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let rows = cells(model, strategy, rows);
    let columns: Vec<&str> = rows.first().into_iter().flatten().map(|(name, _)| *name).collect();
    let cells = |row: Vec<(&str, Value)>| row.into_iter().map(|(_, value)| text(value)).collect();
    csv_text(&columns, rows.into_iter().map(cells))
}

/// The columns of [`csv`] as JSON.
pub(crate) fn json(model: &str, strategy: &str, rows: &[Row]) -> Vec<Value> {
    let named = |(name, value): (&str, Value)| (name.to_owned(), value);
    let rows = cells(model, strategy, rows).into_iter();
    rows.map(|row| Value::from_iter(row.into_iter().map(named))).collect()
}
