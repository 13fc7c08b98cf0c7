//! Where a benchmark's numbers are kept: `bench/runs/DATE-NAME`, with what they were measured on,
//! and what is claimed of them.

use std::path::PathBuf;
use std::str::FromStr;

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
        let cpu = cpu.unwrap_or("an unknown processor").trim_start_matches(['\t', ' ', ':']);
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

    /// Measures those of the cases that `names` hold, or all, keeps their tables, and gives what
    /// `parse` reads from every table that is kept today.
    pub(crate) fn cases<T>(
        &self,
        cases: &[Case],
        names: &[String],
        measure: impl Fn(&Case) -> Result<String>,
        parse: impl Fn(&Case, &str) -> Result<T>,
    ) -> Result<Vec<(Case, T)>> {
        for case in cases.iter().filter(|case| is_wanted(names, case.0)) {
            let csv = measure(case)?;
            print!("{csv}");
            self.keep(case.0, &csv)?;
        }
        let mut kept = Vec::new();
        for case in cases {
            let Some((_, csv)) = self.kept(case.0)? else {
                continue;
            };
            let damaged = || format!("{}/{}.csv is damaged", self.folder, case.0);
            kept.push((*case, parse(case, &csv).with_context(damaged)?));
        }
        Ok(kept)
    }

    /// Keeps the table of a case in a file of its own.
    fn keep(&self, case: &str, csv: &str) -> Result<()> {
        let made_on = &self.made_on;
        self.write(&format!("{case}.csv"), &format!("{MADE}{made_on}\n{csv}"))
    }

    /// What a case was measured on, and its table; nothing if it has not run today.
    fn kept(&self, case: &str) -> Result<Option<(String, String)>> {
        let Some(file) = self.read(&format!("{case}.csv"))? else {
            return Ok(None);
        };
        let parts = file.strip_prefix(MADE).and_then(|f| f.split_once('\n'));
        let (made_on, csv) = parts.with_context(|| {
            let folder = &self.folder;
            format!("{folder}/{case}.csv does not say in its first line what it was measured on")
        })?;
        Ok(Some((made_on.into(), csv.into())))
    }

    /// What those of the cases were measured on that have run today; where it differs, which of
    /// them.
    pub(crate) fn cases_made_on(&self, cases: &[Case]) -> Result<String> {
        let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
        for (case, _) in cases {
            let Some((made_on, _)) = self.kept(case)? else {
                continue;
            };
            match groups.iter_mut().find(|(other, _)| *other == made_on) {
                Some((_, names)) => names.push(case),
                None => groups.push((made_on, vec![case])),
            }
        }
        if let [(made_on, _)] = &groups[..] {
            return Ok(made_on.clone());
        }
        let named = groups.iter().map(|(made, names)| format!("{made} ({})", names.join(", ")));
        Ok(named.collect::<Vec<_>>().join("; "))
    }

    /// The text of a file of the folder; nothing if it is not there.
    pub(crate) fn read(&self, file: &str) -> Result<Option<String>> {
        let path = self.path.join(file);
        Ok(match path.exists() {
            true => Some(std::fs::read_to_string(path)?),
            false => None,
        })
    }

    /// Writes the archive's text, says where it is, and fails if a claim does not hold.
    pub(crate) fn conclude(&self, text: &str, claims: &[Claim]) -> Result<()> {
        self.write("README.md", text)?;
        println!("{}", self.folder);
        ensure!(
            claims.iter().all(|(holds, _)| *holds),
            "a claim does not hold; {}/README.md says which",
            self.folder
        );
        Ok(())
    }
}

/// A line of a table, whose cells are asked for by the names in its head.
pub(crate) struct Line<'t> {
    head: &'t str,
    line: &'t str,
}

/// The lines of a table; its first line is the head, and every line has as many cells.
pub(crate) fn lines(csv: &str) -> Result<Vec<Line<'_>>> {
    let (head, rest) = csv.split_once('\n').unwrap_or((csv, ""));
    let cells = |line: &str| line.split(',').count();
    let read = |line| {
        ensure!(cells(line) == cells(head), "not a row: {line}");
        Ok(Line { head, line })
    };
    rest.lines().map(read).collect()
}

impl<'t> Line<'t> {
    /// The cell below `name`, as it stands.
    pub(crate) fn text(&self, name: &str) -> Result<&'t str> {
        let at = self.head.split(',').position(|other| other == name);
        let cell = at.and_then(|at| self.line.split(',').nth(at));
        cell.with_context(|| format!("no `{name}` in: {}", self.head))
    }

    /// The cell below `name`, read.
    pub(crate) fn get<T: FromStr>(&self, name: &str) -> Result<T> {
        let text = self.text(name)?;
        let read = text.parse().ok();
        read.with_context(|| format!("`{name}` cannot be `{text}` in: {}", self.line))
    }

    /// The cell below `name`, read; nothing where it is empty.
    pub(crate) fn optional<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        match self.text(name)? {
            "" => Ok(None),
            _ => self.get(name).map(Some),
        }
    }

    /// The seconds of all rounds, which stand in one cell.
    pub(crate) fn seconds(&self, name: &str) -> Result<Vec<f64>> {
        let times = self.text(name)?.split(' ').map(str::parse);
        Ok(times.collect::<Result<_, _>>()?)
    }
}

/// The name of a case, and what its benchmark must know of it.
pub(crate) type Case = (&'static str, &'static str);

/// Fails if a word is not the name of a case.
pub(crate) fn check_names(words: &[String], known: &[&str]) -> Result<()> {
    match words.iter().find(|word| !known.contains(&word.as_str())) {
        Some(unknown) => bail!("there is no case `{unknown}`; the cases are {}", known.join(", ")),
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
    median(&pairs.map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
}

pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Whether the numbers bear something out, and what it is.
pub(crate) type Claim = (bool, String);

/// The claims as a list of the archive's text: what holds, and what fails.
pub(crate) fn list(claims: &[Claim]) -> String {
    let verdict = |holds: bool| if holds { "holds" } else { "FAILS" };
    let line = |(holds, text): &Claim| format!("- {}: {text}\n", verdict(*holds));
    claims.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(path: &std::path::Path, made_on: &str) -> Archive {
        Archive { folder: "bench/runs/today".into(), path: path.into(), made_on: made_on.into() }
    }

    #[test]
    fn cases_tell_what_they_were_measured_on() -> Result<()> {
        let name = format!("rekindle-archive-test-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        let (first, second) = (archive(&folder, "at commit 1"), archive(&folder, "at commit 2"));
        first.keep("a", "x\n1\n")?;
        first.keep("b", "x\n2\n")?;
        let cases = ["a", "b", "c"].map(|name| (name, ""));
        assert_eq!(second.cases_made_on(&cases)?, "at commit 1");
        let measured = |_: &Case| Ok("x\n3\n".to_owned());
        let number = |_: &Case, csv: &str| lines(csv)?[0].get::<u32>("x");
        let read = second.cases(&cases, &["b".into()], measured, number)?;
        assert_eq!(read, [(("a", ""), 1), (("b", ""), 3)]);
        let made_on = second.cases_made_on(&cases)?;
        assert_eq!(made_on, "at commit 1 (a); at commit 2 (b)");
        second.keep("c", "x,y\n4\n")?;
        let damaged = second.cases(&cases, &["b".into()], measured, number);
        let damaged = damaged.expect_err("a cell is missing");
        assert_eq!(damaged.to_string(), "bench/runs/today/c.csv is damaged");
        second.write("c.csv", "x\n4\n")?;
        assert!(second.kept("c").is_err(), "no first line");
        Ok(std::fs::remove_dir_all(&folder)?)
    }

    #[test]
    fn cells_are_known_by_their_names() -> Result<()> {
        let table = lines("a,b,c\n1,,0.5 1.5\n")?;
        let [line] = &table[..] else {
            panic!("one line below the head");
        };
        assert_eq!((line.get::<u64>("a")?, line.text("b")?), (1, ""));
        assert_eq!(line.optional::<f64>("b")?, None);
        assert_eq!(line.optional("a")?, Some(1.0));
        assert_eq!(line.seconds("c")?, [0.5, 1.5]);
        assert!(line.get::<u64>("b").is_err() && line.text("d").is_err());
        assert!(lines("a,b\n1\n").is_err());
        Ok(())
    }

    #[test]
    fn a_median_is_the_middle_and_a_ratio_pairs_the_rounds() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        // A machine that is ten times slower in one round is so for both sides.
        assert_eq!(ratio(&[1.2, 12.0, 1.3], &[1.0, 10.0, 1.0]), 1.2);
    }

    #[test]
    fn names_are_those_of_cases() {
        let cases = ["a", "b"];
        assert!(check_names(&[], &cases).is_ok());
        assert!(check_names(&["b".into()], &cases).is_ok());
        let refused = check_names(&["c".into()], &cases).expect_err("no such case");
        assert_eq!(refused.to_string(), "there is no case `c`; the cases are a, b");
        assert!(is_wanted(&[], "a") && is_wanted(&["a".into()], "a"));
        assert!(!is_wanted(&["a".into()], "b"));
    }
}
