//! Draws the tables that `cargo xtask bench compare` archives: `comparison FOLDER OUT BUDGETS`
//! reads the CSV files of FOLDER and writes for each model `OUT/MODEL_peak_memory.svg` and
//! `OUT/MODEL_latency.svg`, of the search at those budgets, separated by commas: one for each batch
//! size.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use rekindle_report::{Compared, comparison};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [folder, out, budgets] = &words[..] else {
        return Err("say FOLDER OUT BUDGETS".into());
    };
    let mut models: BTreeMap<String, Vec<Compared>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "csv") {
            for (model, row) in read(&std::fs::read_to_string(path)?, budgets)? {
                models.entry(model).or_default().push(row);
            }
        }
    }
    for (model, rows) in &mut models {
        rows.sort_by_key(|row| row.batch);
        for (chart, name) in comparison(model, rows).iter().zip(["peak_memory", "latency"]) {
            let path = Path::new(out).join(format!("{model}_{name}.svg"));
            std::fs::write(&path, chart.to_svg())?;
            println!("{}", path.display());
        }
    }
    Ok(())
}

/// The rows of one file that belong in the charts, with their models.
fn read(csv: &str, budgets: &str) -> Result<Vec<(String, Compared)>, Box<dyn Error>> {
    let mut lines = csv.lines().filter(|line| !line.starts_with('#'));
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let mut rows = Vec::new();
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        let cell = |name: &str| {
            let at = header.iter().position(|column| *column == name);
            at.and_then(|at| cells.get(at).copied()).unwrap_or("")
        };
        let wanted = budgets.split(',').any(|budget| budget == cell("share"));
        if cell("strategy") != "search" || !wanted {
            continue;
        }
        let [plain, planned] = ["plain_seconds", "planned_seconds"].map(|name| times(cell(name)));
        let ratios = plain.iter().zip(&planned).map(|(a, b)| b / a).collect();
        rows.push((
            cell("model").to_owned(),
            Compared {
                batch: cell("batch_size").parse()?,
                plain_peak: cell("plain_peak_bytes").parse()?,
                planned_peak: cell("measured_peak_bytes").parse().ok(),
                overhead: median(ratios).map(|ratio| ratio - 1.0),
                plain_seconds: median(plain),
                planned_seconds: median(planned),
            },
        ));
    }
    Ok(rows)
}

/// The times of a cell, with blanks between them.
fn times(cell: &str) -> Vec<f64> {
    cell.split(' ').filter_map(|t| t.parse().ok()).collect()
}

/// The middle, or the mean of the two in the middle of an even number.
fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() % 2 {
        1 => Some(numbers[middle]),
        _ => Some((numbers.get(middle.checked_sub(1)?)? + numbers[middle]) / 2.0),
    }
}
