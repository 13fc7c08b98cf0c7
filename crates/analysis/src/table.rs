//! CSV tables with named columns: cells by name, errors with file, line and column.
//!
//! In: a file and the columns that a table of its kind has. Out: rows whose cells are read by
//! column name, and the names of the columns that the file lacks. Columns may stand in any order,
//! and columns of other names are ignored.

use std::path::Path;

use rekindle_graph::{Bytes, read_file};

use crate::TableError;
use crate::profile::Seconds;

/// What was read: the rows, and the columns that were not there.
#[derive(Clone, Debug, PartialEq)]
pub struct Table<T> {
    /// In the order of the file.
    pub rows: Vec<T>,
    /// Columns of the format that the file lacks, in the format's order.
    pub missing: Vec<&'static str>,
}

/// A row on its way in.
pub(crate) struct Row<'t> {
    path: &'t Path,
    columns: &'static [&'static str],
    /// Where each of `columns` stands in the file.
    positions: &'t [Option<usize>],
    record: &'t csv::StringRecord,
}

/// Reads a file whose format has `columns`, row by row.
pub(crate) fn read_table<T>(
    path: &Path,
    columns: &'static [&'static str],
    read_row: impl Fn(&Row) -> Result<T, TableError>,
) -> Result<Table<T>, TableError> {
    let bytes = read_file(path)?;
    let bad =
        |error: csv::Error| TableError::Csv { path: path.to_owned(), message: error.to_string() };
    let mut reader = csv::Reader::from_reader(bytes.as_slice());
    let header = reader.headers().map_err(bad)?.clone();
    let find = |column: &&str| header.iter().position(|name| name == *column);
    let positions: Vec<Option<usize>> = columns.iter().map(find).collect();
    if positions.iter().all(Option::is_none) {
        return Err(TableError::MissingColumn {
            path: path.to_owned(),
            column: columns[0],
            expected: columns,
        });
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(bad)?;
        rows.push(read_row(&Row { path, columns, positions: &positions, record: &record })?);
    }
    let absent = |(&column, at): (&&'static str, &Option<usize>)| at.is_none().then_some(column);
    let missing = columns.iter().zip(&positions).filter_map(absent).collect();
    Ok(Table { rows, missing })
}

impl Row<'_> {
    /// The text of a cell; empty where the file has no such column.
    fn text(&self, column: &'static str) -> &str {
        let index = self.columns.iter().position(|&name| name == column);
        let at = index.and_then(|i| self.positions[i]);
        at.and_then(|at| self.record.get(at)).unwrap_or("")
    }

    fn has(&self, column: &'static str) -> bool {
        let index = self.columns.iter().position(|&name| name == column);
        index.is_some_and(|i| self.positions[i].is_some())
    }

    fn bad_cell(&self, column: &'static str, expected: &'static str) -> TableError {
        if !self.has(column) {
            return TableError::MissingColumn {
                path: self.path.to_owned(),
                column,
                expected: self.columns,
            };
        }
        TableError::Cell {
            path: self.path.to_owned(),
            line: self.record.position().map_or(0, csv::Position::line),
            column,
            text: self.text(column).into(),
            expected,
        }
    }

    /// A cell that `parse` understands.
    pub(crate) fn parse<T>(
        &self,
        column: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, TableError> {
        parse(self.text(column)).ok_or_else(|| self.bad_cell(column, expected))
    }

    /// A cell that may be empty or absent.
    pub(crate) fn optional<T>(
        &self,
        column: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, TableError> {
        match self.text(column) {
            "" => Ok(None),
            _ => self.parse(column, expected, parse).map(Some),
        }
    }

    /// A name: any text but none.
    pub(crate) fn name(&self, column: &'static str) -> Result<String, TableError> {
        let name = |cell: &str| (!cell.is_empty()).then(|| text_of_cell(cell).to_owned());
        self.parse(column, "a name", name)
    }

    /// A rank that must be there.
    pub(crate) fn rank(&self, column: &'static str) -> Result<u32, TableError> {
        self.parse(column, "a rank, zero or more", |text| text.parse().ok())
    }

    /// A rank, or `-1` for none.
    pub(crate) fn rank_or_none(&self, column: &'static str) -> Result<Option<u32>, TableError> {
        self.parse(column, "a rank, or -1 for none", |text| match text {
            "-1" => Some(None),
            _ => text.parse().ok().map(Some),
        })
    }
}

/// The forms in which numbers are read.
pub(crate) mod number {
    use super::{Bytes, Seconds};

    pub(crate) const BYTES: &str = "a whole number of bytes";
    pub(crate) const SECONDS: &str = "a number of seconds, zero or more";
    pub(crate) const RATIO: &str = "bytes per second, zero or more (`inf` where time is zero)";

    pub(crate) fn bytes(text: &str) -> Option<Bytes> {
        text.parse().ok().map(Bytes)
    }

    pub(crate) fn seconds(text: &str) -> Option<Seconds> {
        text.parse().ok().filter(|s: &f64| s.is_finite() && *s >= 0.0).map(Seconds)
    }

    pub(crate) fn ratio(text: &str) -> Option<f64> {
        text.parse().ok().filter(|r: &f64| *r >= 0.0)
    }
}

/// A table as CSV text. Rows are as long as `columns`; texts in them are [`text_cell`]s.
pub fn csv_text(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let long = "every row has a cell for each column";
    writer.write_record(columns).expect(long);
    for row in rows {
        writer.write_record(row).expect(long);
    }
    let bytes = writer.into_inner().expect("memory takes every write");
    String::from_utf8(bytes).expect("cells are text")
}

/// What a program that shows tables takes for the beginning of a formula.
const FORMULA: [char; 6] = ['=', '+', '-', '@', '\t', '\r'];

/// Whether a text begins a formula, perhaps behind apostrophes.
fn begins_formula(text: &str) -> bool {
    text.trim_start_matches('\'').starts_with(FORMULA)
}

/// A text (such as a name, which may come from anywhere) as the cell of a CSV file: with an
/// apostrophe in front where it would be taken for a formula. [`text_of_cell`] gives it back.
pub fn text_cell(text: &str) -> String {
    match begins_formula(text) {
        true => format!("'{text}"),
        false => text.into(),
    }
}

/// The text that a cell stands for.
pub fn text_of_cell(cell: &str) -> &str {
    match cell.strip_prefix('\'') {
        Some(text) if begins_formula(text) => text,
        _ => cell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_is_taken_for_a_formula_and_every_text_comes_back() {
        for text in ["=1+1", "@sum", "-x", "+x", "\tx", "\rx", "'=x", "''-", "'", "'a", "a=b", ""] {
            let cell = text_cell(text);
            assert!(!cell.starts_with(FORMULA), "{cell}");
            assert_eq!(text_of_cell(&cell), text, "{cell}");
        }
        assert_eq!(text_cell("=1+1"), "'=1+1");
        assert_eq!(text_cell("relu_1"), "relu_1");
    }

    #[test]
    fn texts_that_would_break_a_row_stand_in_quotes() {
        let row = ["a,b", "say \"x\"", "two\nlines"].map(text_cell).to_vec();
        let text = csv_text(&["a", "b", "c"], [row].into_iter());
        assert_eq!(text, "a,b,c\n\"a,b\",\"say \"\"x\"\"\",\"two\nlines\"\n");
    }
}
