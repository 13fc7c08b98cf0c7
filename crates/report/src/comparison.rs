//! The two charts of a comparison: peak memory and time of a step for each batch size, plain and
//! planned.

use crate::{Axis, Bars, Chart, Line, Series, Unit};

/// One batch size. What was not measured is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Samples in a batch.
    pub batch: usize,
    /// Of the plain step, in bytes.
    pub plain_peak: f64,
    /// Of the planned step, in bytes; `None` if no plan fits.
    pub planned_peak: Option<f64>,
    /// Of the plain step; `None` if it does not fit in memory.
    pub plain_seconds: Option<f64>,
    /// Of the planned step.
    pub planned_seconds: Option<f64>,
    /// The planned step's time above the plain one's, as a share of it. Where both took turns this
    /// is the median of the rounds, and not quite what the two times give.
    pub overhead: Option<f64>,
}

/// Peak memory as bars with the reduction in percent, and latency as lines with the overhead in
/// percent.
pub fn comparison(model: &str, rows: &[Compared]) -> [Chart; 2] {
    let batches = || rows.iter().map(|row| row.batch.to_string());
    let x = || Axis::new("batch size", Unit::Count);
    let memory = Chart::over_categories(
        format!("Peak memory of {model}"),
        x(),
        Axis::new("peak memory", Unit::Bytes),
        batches(),
        Series::Bars(vec![
            Bars::new("plain", rows.iter().map(|row| row.plain_peak))
                .notes(rows.iter().map(plain_note)),
            Bars::new("planned", rows.iter().map(|row| row.planned_peak.unwrap_or(f64::NAN)))
                .notes(rows.iter().map(reduction_note)),
        ]),
    );
    let points = |seconds: fn(&Compared) -> Option<f64>| {
        let each = rows.iter().enumerate();
        each.filter_map(|(i, row)| Some([i as f64, seconds(row)?])).collect::<Vec<_>>()
    };
    let latency = Chart::over_categories(
        format!("Time of a step of {model}"),
        x(),
        Axis::new("time of a step", Unit::Seconds),
        batches(),
        Series::Lines(vec![
            Line::new("plain", points(|row| row.plain_seconds)),
            Line::new("planned", points(|row| row.planned_seconds))
                .notes(rows.iter().filter(|row| row.planned_seconds.is_some()).map(overhead_note)),
        ]),
    );
    [memory, latency]
}

fn plain_note(row: &Compared) -> String {
    match (row.plain_seconds, row.planned_seconds) {
        (None, Some(_)) => "does not fit".into(),
        _ => String::new(),
    }
}

fn reduction_note(row: &Compared) -> String {
    match row.planned_peak {
        Some(peak) => format!("-{:.1} %", 100.0 * (1.0 - peak / row.plain_peak)),
        None => "no plan fits".into(),
    }
}

fn overhead_note(row: &Compared) -> String {
    row.overhead.map_or(String::new(), |o| format!("{:+.1} %", 100.0 * o))
}
