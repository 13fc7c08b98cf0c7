//! The tables of `rekindle frontier --out` and `rekindle compare --csv`, read back.

use std::path::Path;

use rekindle_analysis::{TableError, knee, text_of_cell};
use rekindle_graph::{Bytes, Micros};
use rekindle_report::page::{
    Comparison, EvaluationPoint, FrontierPoint, StoredFrontier, TrainingPoint, TrainingRun,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A row of a frontier, as far as the page shows it.
#[derive(Deserialize)]
struct FrontierRow {
    budget_bytes: u64,
    peak_bytes: u64,
    time_us: f64,
    recomputed_runs: u64,
    lower_bound_us: f64,
    /// Empty, or not there at all, for what is planned without a store.
    #[serde(default)]
    store: String,
    #[serde(default)]
    moved_out_bytes: Option<u64>,
    #[serde(default)]
    moved_in_bytes: Option<u64>,
}

/// What is in a frontier's table.
#[derive(Clone, Debug, Default)]
pub(super) struct FrontierTable {
    /// Without a store, ascending by peak.
    pub(super) points: Vec<FrontierPoint>,
    /// With one.
    pub(super) stored: Option<StoredFrontier>,
}

/// A row of a comparison, as far as the page shows it.
#[derive(Deserialize)]
struct ComparisonRow {
    model: String,
    batch_size: usize,
    budget_bytes: u64,
    plain_peak_bytes: u64,
    predicted_peak_bytes: Option<u64>,
    measured_peak_bytes: Option<u64>,
    plain_seconds: Option<f64>,
    planned_seconds: Option<f64>,
    predicted_overhead_percent: Option<f64>,
    #[serde(default)]
    bit_equal: String,
    #[serde(default)]
    remark: String,
}

/// A row of a training run's metrics, as far as the page shows it.
#[derive(Deserialize)]
struct MetricsRow {
    update: f64,
    loss: Option<f64>,
    validation_loss: Option<f64>,
    accuracy: Option<f64>,
}

/// The curves of a training run.
pub(super) fn training(path: &Path, text: &str) -> Result<TrainingRun, TableError> {
    let mut run = TrainingRun::default();
    for MetricsRow { update, loss, validation_loss, accuracy } in rows(path, text)? {
        run.updates.extend(loss.map(|loss| TrainingPoint { update, loss }));
        let found = validation_loss.zip(accuracy);
        let found = found.map(|(loss, accuracy)| EvaluationPoint { update, loss, accuracy });
        run.evaluations.extend(found);
    }
    Ok(run.thinned())
}

/// The points without a store and those with one.
pub(super) fn frontier(path: &Path, text: &str) -> Result<FrontierTable, TableError> {
    let mut found = FrontierTable::default();
    for row in rows::<FrontierRow>(path, text)? {
        let point = point(&row);
        if row.store.is_empty() {
            found.points.push(point);
            continue;
        }
        let store = text_of_cell(&row.store).to_owned();
        let empty = StoredFrontier { store, points: Vec::new(), knee: None };
        found.stored.get_or_insert(empty).points.push(point);
    }
    let sort = |points: &mut Vec<FrontierPoint>| points.sort_by_key(|p| (p.peak, p.budget));
    sort(&mut found.points);
    if let Some(stored) = &mut found.stored {
        sort(&mut stored.points);
        stored.knee = knee_of(&stored.points);
    }
    Ok(found)
}

/// The knee of a frontier.
pub(super) fn knee_of(points: &[FrontierPoint]) -> Option<usize> {
    let trade = points.iter().map(|p| (Bytes(p.peak), Micros(p.seconds)));
    knee(&trade.collect::<Vec<_>>())
}

fn point(row: &FrontierRow) -> FrontierPoint {
    const MICROS: f64 = 1e-6;
    let moved = row.moved_out_bytes.zip(row.moved_in_bytes);
    FrontierPoint {
        budget: row.budget_bytes,
        peak: row.peak_bytes,
        seconds: row.time_us * MICROS,
        bound_seconds: row.lower_bound_us * MICROS,
        recomputed: row.recomputed_runs,
        moved: moved.map(|(out, back)| out.saturating_add(back)),
    }
}

/// The rows, in the order of the file.
pub(super) fn comparisons(path: &Path, text: &str) -> Result<Vec<Comparison>, TableError> {
    let comparison = |row: ComparisonRow| Comparison {
        model: text_of_cell(&row.model).into(),
        batch: row.batch_size,
        budget: row.budget_bytes,
        plain_peak: row.plain_peak_bytes,
        predicted_peak: row.predicted_peak_bytes,
        planned_peak: row.measured_peak_bytes,
        plain_seconds: row.plain_seconds,
        planned_seconds: row.planned_seconds,
        predicted_overhead: row.predicted_overhead_percent.map(|p| p / 100.0),
        bit_equal: row.bit_equal == "yes",
        remark: text_of_cell(&row.remark).into(),
    };
    Ok(rows(path, text)?.into_iter().map(comparison).collect())
}

fn rows<T: DeserializeOwned>(path: &Path, text: &str) -> Result<Vec<T>, TableError> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let rows = reader.deserialize().collect::<Result<Vec<T>, csv::Error>>();
    rows.map_err(|error| TableError::Csv { path: path.to_owned(), message: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "budget_bytes,peak_bytes,time_us,overhead_percent,recomputed_runs,\
                          lower_bound_us,gap_percent";

    #[test]
    fn a_frontier_comes_back_in_order_of_its_peaks() {
        let text = format!("{HEADER}\n20,18,1000000,0,0,1000000,0\n10,9,1500000,50,3,1250000,20\n");
        let found = frontier(Path::new("f.csv"), &text).expect("a frontier");
        let peaks: Vec<u64> = found.points.iter().map(|p| p.peak).collect();
        assert_eq!(peaks, [9, 18]);
        assert_eq!((found.points[0].seconds, found.points[0].bound_seconds), (1.5, 1.25));
        assert_eq!((found.points[0].moved, found.stored), (None, None));
    }

    #[test]
    fn a_frontier_with_a_store_comes_back_beside_the_one_without() {
        let text = format!(
            "{HEADER},store,moved_out_bytes,moved_in_bytes,waited_us\n\
             20,18,1000000,0,0,1000000,0,,,,\n\
             20,18,1000000,0,0,1000000,0,\"out=1GB/s,in=1GB/s\",0,0,0\n\
             10,6,1000000,0,0,1000000,0,\"out=1GB/s,in=1GB/s\",3,4,0\n"
        );
        let found = frontier(Path::new("f.csv"), &text).expect("a frontier");
        assert_eq!(found.points.len(), 1);
        let stored = found.stored.expect("it is there");
        assert_eq!(stored.store, "out=1GB/s,in=1GB/s");
        let moved: Vec<_> = stored.points.iter().map(|p| (p.peak, p.moved)).collect();
        assert_eq!(moved, [(6, Some(7)), (18, Some(0))]);
    }

    #[test]
    fn what_is_no_number_is_an_error_that_names_file_and_line() {
        let text = format!("{HEADER}\n20,many,1,0,0,1,0\n");
        let error = frontier(Path::new("f.csv"), &text).expect_err("a bad cell").to_string();
        assert!(error.contains("f.csv") && error.contains("line: 2"), "{error}");
    }

    #[test]
    fn an_empty_cell_of_a_comparison_is_no_value() {
        let text = "model,batch_size,strategy,budget_bytes,plain_peak_bytes,predicted_peak_bytes,\
                    measured_peak_bytes,reduction_percent,plain_seconds,planned_seconds,\
                    overhead_percent,predicted_overhead_percent,recomputed,bit_equal,remark\n\
                    m,4,search,5,10,,,,,,,,,,\"no plan, not one\"\n\
                    m,8,search,5,10,5,5,50,1.5,2,33,30,7,yes,\n";
        let rows = comparisons(Path::new("c.csv"), text).expect("a comparison");
        assert_eq!((rows[0].planned_peak, rows[0].bit_equal), (None, false));
        assert_eq!(rows[0].remark, "no plan, not one");
        assert_eq!((rows[1].planned_peak, rows[1].bit_equal), (Some(5), true));
        assert_eq!(rows[1].predicted_overhead, Some(0.3));
    }
}
