//! A contest between Rekindle in PyTorch and PyTorch's own ways to save memory: what the benchmarks
//! of it share.
//!
//! A script of `python/bench` runs one case, each contender in a process of its own, and prints a
//! line for each. Every contender is timed in turns with one that all are compared with, the
//! *beside*: times are multiples of its time in the same rounds.

use anyhow::{Result, ensure};

use crate::archive::{self, Archive, Case, Claim, Line, check_names, is_wanted, lines, mebibytes};
use crate::python;
use crate::repo::{Repo, output};

/// Contenders are slower only beyond what steps differ by from run to run, in percent.
const NOISE: f64 = 2.0;

/// What a benchmark has of its own.
pub(crate) struct Contest {
    /// The name of its archive.
    pub(crate) archive: &'static str,
    pub(crate) script: &'static str,
    pub(crate) cases: &'static [Case],
    /// Cases that only show that the benchmark runs; their numbers are printed and not kept.
    pub(crate) trials: &'static [&'static str],
    /// Steps of each contender that are timed, and as many of the one beside it.
    pub(crate) rounds: u32,
    /// The contender that the others are timed beside, how a claim calls it, and the column of its
    /// times.
    pub(crate) beside: [&'static str; 3],
}

/// Steps of a trial that are timed.
const TRIAL_ROUNDS: u32 = 2;

/// The cases that are kept today, with what a benchmark reads of each line.
pub(crate) type Results<R> = Vec<(Case, Vec<(Row, R)>)>;

impl Contest {
    /// Runs the cases that `names` hold, or all. Nothing is kept of trials alone.
    pub(crate) fn run<R>(
        &self,
        repo: &Repo,
        names: &[String],
        more: impl Fn(&Line<'_>) -> Result<R>,
    ) -> Result<Option<(Archive, Results<R>)>> {
        let known: Vec<&str> = self.cases.iter().map(|case| case.0).collect();
        check_names(names, &[&known, self.trials].concat())?;
        let interpreter = python::interpreter(repo)?;
        let package = python::package(repo, &interpreter)?;
        let contest = |case: &str, rounds: u32| {
            let mut command = repo.command(&interpreter);
            command.args([self.script, case, &rounds.to_string()]);
            output(command.env("PYTHONPATH", &package))
        };
        for trial in self.trials.iter().filter(|trial| !names.is_empty() && is_wanted(names, trial))
        {
            print!("{}", contest(trial, TRIAL_ROUNDS)?);
        }
        if known.iter().all(|case| !is_wanted(names, case)) {
            return Ok(None);
        }
        let archive = Archive::open(repo, self.archive)?;
        let measure = |case: &Case| contest(case.0, self.rounds);
        let results = archive.cases(self.cases, names, measure, |_, csv| self.parse(csv, &more))?;
        Ok(Some((archive, results)))
    }

    fn parse<R>(&self, csv: &str, more: impl Fn(&Line<'_>) -> Result<R>) -> Result<Vec<(Row, R)>> {
        let [beside, _, column] = self.beside;
        let row = |line: &Line<'_>| Ok((Row::read(line, column)?, more(line)?));
        let rows = lines(csv)?.iter().map(row).collect::<Result<Vec<_>>>()?;
        ensure!(rows.iter().any(|(row, _)| row.contender == beside), "there is no row of {beside}");
        Ok(rows)
    }

    /// At the peak of each of the others our step takes no more time than theirs, and our lowest
    /// peak is below all of theirs.
    pub(crate) fn claims<'r>(&self, case: &str, rows: impl Iterator<Item = &'r Row>) -> Vec<Claim> {
        let [beside, called, _] = self.beside;
        let (ours, others): (Vec<&Row>, Vec<&Row>) = rows.partition(|row| row.is_ours());
        let mut claims = Vec::new();
        for other in &others {
            let best = within(&ours, other.peak).map_or(f64::INFINITY, Row::ratio);
            let theirs = match other.contender == beside {
                true => 1.0,
                false => other.ratio(),
            };
            claims.push((
                best <= theirs * (1.0 + NOISE / 100.0),
                format!(
                    "{case}: at the peak of {}, {best:.2} × {called}'s time against its \
                     {theirs:.2}",
                    other.contender
                ),
            ));
        }
        let peak = |rows: &[&Row]| lowest(rows).map_or(u64::MAX, |row| row.peak);
        let (our_lowest, their_lowest) = (peak(&ours), peak(&others));
        claims.push((
            our_lowest < their_lowest,
            format!(
                "{case}: {:.0} MiB where the lowest of the others is {:.0}",
                mebibytes(our_lowest),
                mebibytes(their_lowest)
            ),
        ));
        claims
    }
}

/// What every line of a contest says of its contender.
pub(crate) struct Row {
    pub(crate) contender: String,
    /// Rekindle's alone.
    pub(crate) budget: Option<u64>,
    pub(crate) peak: u64,
    pub(crate) predicted_peak: Option<u64>,
    pub(crate) gradient_error: f64,
    pub(crate) first_call: f64,
    pub(crate) planning: f64,
    /// Of every round, in which the one beside and the contender ran in turns.
    beside_seconds: Vec<f64>,
    seconds: Vec<f64>,
}

impl Row {
    fn read(line: &Line<'_>, beside: &str) -> Result<Row> {
        Ok(Row {
            contender: line.get("contender")?,
            budget: line.optional("budget")?,
            peak: line.get("peak")?,
            predicted_peak: line.optional("predicted_peak")?,
            gradient_error: line.get("gradient_error")?,
            first_call: line.get("first_call_s")?,
            planning: line.get("planning_s")?,
            beside_seconds: line.seconds(beside)?,
            seconds: line.seconds("seconds")?,
        })
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.contender.starts_with("rekindle")
    }

    /// The median over the rounds of this contender's time as a multiple of the one's beside it. Of
    /// that one beside itself, it shows how exact that is.
    pub(crate) fn ratio(&self) -> f64 {
        archive::ratio(&self.seconds, &self.beside_seconds)
    }
}

/// The row that was planned for `peak`: the highest that is not above it. The fastest of all below
/// would be chosen among noisy times, which the other side is not.
pub(crate) fn within<'r>(rows: &[&'r Row], peak: u64) -> Option<&'r Row> {
    let below = rows.iter().copied().filter(|row| row.peak <= peak);
    below.max_by_key(|row| row.peak)
}

pub(crate) fn lowest<'r>(rows: &[&'r Row]) -> Option<&'r Row> {
    rows.iter().copied().min_by_key(|row| row.peak)
}
