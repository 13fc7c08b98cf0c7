//! Where a benchmark's numbers are kept: `bench/runs/DATE-NAME`, with what they were measured on,
//! and what is claimed of them.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};

use crate::repo::{Repo, output};

/// The folder of one benchmark on one day.
pub(crate) struct Archive {
    /// Relative to the root, for a person.
    pub(crate) folder: String,
    path: PathBuf,
    /// `at commit …, on CPU with N cores`.
    pub(crate) made_on: String,
}

/// Begins the first line of a case's file, which says what the case was measured on.
const MADE: &str = "# ";

impl Archive {
    /// Opens today's folder of the benchmark `name`; makes it if it is not there.
    pub(crate) fn open(repo: &Repo, name: &str) -> Result<Archive> {
        let date = output(repo.command("date").args(["-u", "+%Y-%m-%d"]))?;
        let commit = output(repo.command("git").args(["rev-parse", "--short", "HEAD"]))?;
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name"));
        let cpu = cpu
            .unwrap_or("an unknown processor")
            .trim_start_matches(['\t', ' ', ':']);
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let folder = format!("bench/runs/{}-{name}", date.trim());
        let path = repo.path(&folder);
        std::fs::create_dir_all(&path)?;
        Ok(Archive {
            folder,
            path,
            made_on: format!("at commit {}, on {cpu} with {cores} cores", commit.trim()),
        })
    }

    /// Writes a file of the folder.
    pub(crate) fn write(&self, file: &str, text: &str) -> Result<()> {
        Ok(std::fs::write(self.path.join(file), text)?)
    }

    /// Shows the table of a case, and keeps it in a file of its own.
    pub(crate) fn keep(&self, case: &str, csv: &str) -> Result<()> {
        print!("{csv}");
        let made_on = &self.made_on;
        self.write(&format!("{case}.csv"), &format!("{MADE}{made_on}\n{csv}"))
    }

    /// What the file of a case holds; nothing if the case has not run today.
    pub(crate) fn kept<T>(
        &self,
        case: &str,
        parse: impl FnOnce(&str) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(file) = self.read(&format!("{case}.csv"))? else {
            return Ok(None);
        };
        let damaged = || format!("{}/{case}.csv is damaged", self.folder);
        let table = split(&file).and_then(|(_, csv)| parse(csv));
        table.map(Some).with_context(damaged)
    }

    /// What those of the cases were measured on that have run today; where it differs, which of
    /// them.
    pub(crate) fn cases_made_on<'a>(&self, cases: impl Iterator<Item = &'a str>) -> Result<String> {
        let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
        for case in cases {
            let Some(file) = self.read(&format!("{case}.csv"))? else {
                continue;
            };
            let made_on = split(&file)?.0;
            match groups.iter_mut().find(|(other, _)| other == made_on) {
                Some((_, names)) => names.push(case),
                None => groups.push((made_on.into(), vec![case])),
            }
        }
        if let [(made_on, _)] = &groups[..] {
            return Ok(made_on.clone());
        }
        let named = |(made_on, names): &(String, Vec<&str>)| {
            let names = names.join(", ");
            format!("{made_on} ({names})")
        };
        Ok(groups.iter().map(named).collect::<Vec<_>>().join("; "))
    }

    /// The text of a file of the folder; nothing if it is not there.
    pub(crate) fn read(&self, file: &str) -> Result<Option<String>> {
        let path = self.path.join(file);
        Ok(match path.exists() {
            true => Some(std::fs::read_to_string(path)?),
            false => None,
        })
    }

    /// Says where everything is, and fails if a claim does not hold.
    pub(crate) fn judge(&self, claims: &[Claim]) -> Result<()> {
        println!("{}", self.folder);
        ensure!(
            claims.iter().all(|(holds, _)| *holds),
            "a claim does not hold; {}/README.md says which",
            self.folder
        );
        Ok(())
    }
}

/// What a case was measured on, and its table.
fn split(file: &str) -> Result<(&str, &str)> {
    let lines = file.strip_prefix(MADE).and_then(|f| f.split_once('\n'));
    lines.context("the first line does not say what it was measured on")
}

/// Fails if a word is not the name of a case.
pub(crate) fn check_names<'a>(
    words: &[String],
    cases: impl Iterator<Item = &'a str>,
) -> Result<()> {
    let known: Vec<&str> = cases.collect();
    match words.iter().find(|word| !known.contains(&word.as_str())) {
        Some(unknown) => bail!(
            "there is no case `{unknown}`; the cases are {}",
            known.join(", ")
        ),
        None => Ok(()),
    }
}

/// Whether a case is among those that were named, or none was.
pub(crate) fn is_wanted(words: &[String], case: &str) -> bool {
    words.is_empty() || words.iter().any(|word| word == case)
}

/// The middle, or the mean of the two in the middle of an even number; of none, not a number.
pub(crate) fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// The median over the rounds of one side's time as a multiple of the other's. In a round both run
/// in turns, so that a machine that is slower for a while is so for both.
pub(crate) fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    let pairs = ours.iter().zip(theirs);
    median(
        &pairs
            .map(|(ours, theirs)| ours / theirs)
            .collect::<Vec<_>>(),
    )
}

pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Whether the numbers bear something out, and what it is.
pub(crate) type Claim = (bool, String);

/// `holds` or `FAILS`, before what was claimed.
pub(crate) fn verdict(holds: bool) -> &'static str {
    match holds {
        true => "holds",
        false => "FAILS",
    }
}

/// The claims as a list of the archive's text.
pub(crate) fn list(claims: &[Claim]) -> String {
    let line = |(holds, text): &Claim| format!("- {}: {text}\n", verdict(*holds));
    claims.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(path: &std::path::Path, made_on: &str) -> Archive {
        Archive {
            folder: "bench/runs/today".into(),
            path: path.into(),
            made_on: made_on.into(),
        }
    }

    #[test]
    fn cases_tell_what_they_were_measured_on() -> Result<()> {
        let name = format!("rekindle-archive-test-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        let (first, second) = (
            archive(&folder, "at commit 1"),
            archive(&folder, "at commit 2"),
        );
        first.keep("a", "x\n1\n")?;
        first.keep("b", "x\n2\n")?;
        let cases = || ["a", "b", "c"].into_iter();
        assert_eq!(second.cases_made_on(cases())?, "at commit 1");
        second.keep("b", "x\n3\n")?;
        assert_eq!(
            second.cases_made_on(cases())?,
            "at commit 1 (a); at commit 2 (b)"
        );
        let table = |csv: &str| Ok(csv.to_owned());
        assert_eq!(second.kept("b", table)?.as_deref(), Some("x\n3\n"));
        assert_eq!(second.kept("c", table)?, None);
        second.write("c.csv", "x\n4\n")?;
        let damaged = second.kept("c", table).expect_err("no first line");
        assert_eq!(damaged.to_string(), "bench/runs/today/c.csv is damaged");
        Ok(std::fs::remove_dir_all(&folder)?)
    }

    #[test]
    fn a_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_ratio_pairs_the_rounds() {
        // A machine that is ten times slower in one round is so for both sides.
        assert_eq!(ratio(&[1.2, 12.0, 1.3], &[1.0, 10.0, 1.0]), 1.2);
    }

    #[test]
    fn names_are_those_of_cases() {
        let cases = || ["a", "b"].into_iter();
        assert!(check_names(&[], cases()).is_ok());
        assert!(check_names(&["b".into()], cases()).is_ok());
        let refused = check_names(&["c".into()], cases()).expect_err("no such case");
        assert_eq!(
            refused.to_string(),
            "there is no case `c`; the cases are a, b"
        );
        assert!(is_wanted(&[], "a") && is_wanted(&["a".into()], "a"));
        assert!(!is_wanted(&["a".into()], "b"));
    }
}
