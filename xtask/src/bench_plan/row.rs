//! What became of one case: a line of the table, and a line of the archive's `raw.csv`.

use anyhow::{Context, Result};

use super::cases::Case;
use crate::archive::Line;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) case: Case,
    pub(crate) nodes: u64,
    /// In percent of the plain step's time, by the judge; `None` if there is no plan.
    pub(crate) overhead: Option<f64>,
    /// No plan has a lower overhead, in percent.
    pub(crate) bound: f64,
    pub(crate) peak: u64,
    /// Processor seconds of the tool.
    pub(crate) seconds: f64,
    /// Seconds that the first plan took; `None` if effort 0 finds none.
    pub(crate) first: Option<f64>,
    /// The most bytes of the tool that were resident.
    pub(crate) highest: u64,
    pub(crate) outcome: Outcome,
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Plan,
    /// That there is no plan.
    Proof,
    /// A refusal that names a larger budget, which then has a plan with the row's `peak`.
    Larger,
    Nothing,
}

impl Outcome {
    const ALL: [(Outcome, &'static str); 4] = [
        (Outcome::Plan, "plan"),
        (Outcome::Proof, "proof"),
        (Outcome::Larger, "larger"),
        (Outcome::Nothing, "nothing"),
    ];

    fn name(self) -> &'static str {
        let found = Outcome::ALL.iter().find(|(outcome, _)| *outcome == self);
        found.expect("every outcome is listed").1
    }
}

pub(crate) const HEAD: &str = "table      graph                      nodes      budget  overhead   \
                               bound    peer      s  first s  outcome";
pub(crate) const CSV_HEAD: &str = "table,graph,budget,nodes,overhead,bound,peer,peak_bytes,\
                                   seconds,first_seconds,resident_bytes,outcome";

impl Row {
    pub(crate) fn line(&self) -> String {
        // Sums of floats in another order may be a little below zero.
        let show = |x: Option<f64>| x.map_or("–".into(), |x| format!("{:.2}", x.max(0.0)));
        format!(
            "{:<10} {:<25} {:>6} {:>11} {:>9} {:>7} {:>7} {:>6.2} {:>8}  {}",
            self.case.table.name(),
            self.case.graph,
            self.nodes,
            self.case.budget,
            show(self.overhead),
            show(self.overhead.map(|_| self.bound)),
            show(self.case.peer),
            self.seconds,
            self.first.map_or("–".into(), |s| format!("{s:.3}")),
            self.outcome.name()
        )
    }

    pub(crate) fn csv(&self) -> String {
        let plain = |x: Option<f64>| x.map_or(String::new(), |x| format!("{x:.4}"));
        format!(
            "{},{},{},{},{},{:.4},{},{},{:.3},{},{},{}",
            self.case.table.name(),
            self.case.graph,
            self.case.budget,
            self.nodes,
            plain(self.overhead),
            self.bound,
            plain(self.case.peer),
            self.peak,
            self.seconds,
            plain(self.first),
            self.highest,
            self.outcome.name()
        )
    }

    /// Whether [`csv`](Row::csv) wrote the line for `case`.
    pub(crate) fn is_of(line: &Line<'_>, case: &Case) -> Result<bool> {
        let named = (line.text("table")?, line.text("graph")?, line.text("budget")?);
        Ok(named == (case.table.name(), &*case.graph, &*case.budget))
    }

    /// The row of `case` as [`csv`](Row::csv) wrote it.
    pub(crate) fn from_csv(line: &Line<'_>, case: &Case) -> Result<Row> {
        let name = line.text("outcome")?;
        let outcome = Outcome::ALL.iter().find(|(_, other)| *other == name);
        Ok(Row {
            case: case.clone(),
            nodes: line.get("nodes")?,
            overhead: line.optional("overhead")?,
            bound: line.get("bound")?,
            peak: line.get("peak_bytes")?,
            seconds: line.get("seconds")?,
            first: line.optional("first_seconds")?,
            highest: line.get("resident_bytes")?,
            outcome: outcome.with_context(|| format!("no outcome is `{name}`"))?.0,
        })
    }

    /// Not above its peer, as far as the peer's digits say; where the peer has nothing, a plan or a
    /// proof.
    pub(crate) fn holds(&self) -> bool {
        match (self.case.peer, self.overhead) {
            (Some(peer), Some(overhead)) => overhead < peer + self.case.rounding,
            (Some(_), None) => false,
            (None, _) => self.outcome != Outcome::Nothing,
        }
    }

    /// Above the peer's figure, and equal to it in the digits that it is given with.
    pub(crate) fn is_rounded(&self) -> bool {
        let above = |(ours, peer): (f64, f64)| ours > peer;
        self.holds() && self.overhead.zip(self.case.peer).is_some_and(above)
    }

    /// Whether the peer's figure is below the bound: then it was rounded down, and no plan reaches
    /// it.
    pub(crate) fn peer_is_out_of_reach(&self) -> bool {
        self.case.peer.is_some_and(|peer| self.bound > peer)
    }

    pub(crate) fn gap(&self) -> f64 {
        self.overhead.map_or(0.0, |o| (o - self.bound).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::Table;
    use super::*;
    use crate::archive::lines;

    fn row() -> Row {
        Row {
            case: Case {
                table: Table::Reference,
                graph: "g".into(),
                budget: "80%".into(),
                peer: Some(0.9),
                rounding: 0.05,
            },
            nodes: 7,
            overhead: Some(0.91),
            bound: 0.905,
            peak: 1 << 40,
            seconds: 1.5,
            first: Some(0.0123),
            highest: 4096,
            outcome: Outcome::Plan,
        }
    }

    #[test]
    fn a_row_survives_its_line_and_belongs_to_its_case_alone() {
        let row = row();
        let table = format!("{CSV_HEAD}\n{}\n", row.csv());
        let lines = lines(&table).expect("a table");
        let read = Row::from_csv(&lines[0], &row.case).expect("a row");
        assert_eq!(read.csv(), row.csv());
        let other = Case { budget: "70%".into(), ..row.case.clone() };
        let is_of = |case| Row::is_of(&lines[0], case).expect("named");
        assert!(is_of(&row.case) && !is_of(&other));
    }

    #[test]
    fn a_peer_is_compared_in_the_digits_that_it_is_given_with() {
        let mut row = row();
        assert!(row.holds() && row.is_rounded() && row.peer_is_out_of_reach());
        row.overhead = Some(0.9);
        assert!(row.holds() && !row.is_rounded());
        row.overhead = Some(0.96);
        assert!(!row.holds());
        // Without a plan only a proof will do, and only where the peer has none either.
        row.overhead = None;
        row.outcome = Outcome::Proof;
        assert!(!row.holds());
        row.case.peer = None;
        assert!(row.holds());
        row.outcome = Outcome::Nothing;
        assert!(!row.holds());
    }
}
