//! `cargo xtask bench devices [MODEL…]`: well-known models planned for a GPU that is not here,
//! archived under `bench/runs`.
//!
//! Runs `python/bench/devices.py` for each model in a process of its own. Bytes and times of the
//! GPU are predictions; the seconds and the memory of the planning are measured. Fails if a plan
//! does not hold in its budget, or took more than minutes or a few gibibytes here.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::archive::{Archive, Case, Claim, check_names, list};
use crate::python;
use crate::repo::{Repo, output};

/// The models of `python/bench/devices.py`.
const MODELS: [Case; 8] = [
    ("gpt2", "GPT-2"),
    ("llama3-8b", "Llama-3-8B"),
    ("llama3-8b-short", "Llama-3-8B, short"),
    ("llama3-3b", "Llama-3.2-3B"),
    ("bert-large", "BERT-large"),
    ("mixtral-8x7b", "Mixtral-8x7B"),
    ("vit-l", "ViT-L"),
    ("sd3", "SD3's transformer"),
];

/// What planning may take on this machine.
const MOST_SECONDS: f64 = 900.0;
const MOST_MEBIBYTES: f64 = 4096.0;

/// Runs the models that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    check_names(names, &MODELS.map(|model| model.0))?;
    let interpreter = python::interpreter(repo)?;
    let path = python::path_with_models(repo, &interpreter)?;
    let plan = |model: &Case| {
        let mut command = repo.command(&interpreter);
        command.args(["python/bench/devices.py", model.0]);
        output(command.env("PYTHONPATH", &path).env("REKINDLE_CACHE", "off"))
    };
    let archive = Archive::open(repo, "devices")?;
    let results = archive.cases(&MODELS, names, plan, |_, csv| parse(csv))?;
    let claims: Vec<Claim> = results.iter().map(|(model, row)| claim(model.1, row)).collect();
    archive.conclude(&summary(&archive, &results, &claims)?, &claims)
}

/// One planned model, by the names of its columns.
struct Row(Vec<(String, String)>);

impl Row {
    fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(column, _)| column == name).map_or("", |(_, value)| value)
    }

    fn number(&self, name: &str) -> f64 {
        self.text(name).parse().unwrap_or(f64::NAN)
    }
}

fn parse(csv: &str) -> Result<Row> {
    let mut lines = csv.lines();
    let head = lines.next().context("no header")?;
    let row = lines.next().context("no row")?;
    let pairs = head.split(',').zip(row.split(','));
    Ok(Row(pairs.map(|(name, value)| (name.into(), value.into())).collect()))
}

fn claim(model: &str, row: &Row) -> Claim {
    let needed = row.number("planned_reserved") + row.number("margins");
    let seconds = row.number("capture_seconds") + row.number("plan_seconds");
    let memory = row.number("process_mib");
    let holds =
        needed <= row.number("budget") && seconds <= MOST_SECONDS && memory <= MOST_MEBIBYTES;
    let text = format!(
        "{model}: predicted {:.1} GiB of {:.1} with margins, planned in {seconds:.0} s and \
         {memory:.0} MiB here",
        gibibytes(needed),
        gibibytes(row.number("budget")),
    );
    (holds, text)
}

fn gibibytes(bytes: f64) -> f64 {
    bytes / (1u64 << 30) as f64
}

const HEADER: &str = "\
| model | set-up | device | plain: live, GiB | with margins | by plan: live | allocated | reserved \
| margins | time | capture, s | planning, s | published |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
";

fn summary(archive: &Archive, results: &[(Case, Row)], claims: &[Claim]) -> Result<String> {
    let mut text = format!(
        "# Planned for a GPU that is not here\n\n\
         `cargo xtask bench devices` {}. Models are made from their published configurations on \
         the device `meta`, without weights, and planned for a GPU in a budget for the whole \
         process. **Every byte and every time of the GPU is a prediction: none was measured \
         on a device.** Seconds of capture and planning are this processor's, measured here. \
         `plain` is the step without a plan: what is live, and what is reserved, with margins; \
         times are those of a data sheet. What was published is for a step like it, not for the \
         same one.\n\n",
        archive.cases_made_on(&MODELS)?,
    );
    text += &list(claims);
    text.push('\n');
    text += HEADER;
    for (model, row) in results {
        let size = |name: &str| format!("{:.2}", gibibytes(row.number(name)));
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | +{:.1} % | {} | {} | {} |",
            model.1,
            row.text("setup"),
            row.text("device").trim_end_matches(" (predicted)"),
            size("plain_live"),
            size("plain_reserved"),
            size("planned_live"),
            size("planned_allocated"),
            size("planned_reserved"),
            size("margins"),
            100.0 * row.number("overhead"),
            row.text("capture_seconds"),
            row.text("plan_seconds"),
            match row.text("published") {
                "" => "–".to_owned(),
                number => format!("{number} ({})", row.text("published_source")),
            },
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_models_are_those_of_the_program() -> Result<()> {
        let program = Repo::here().read("python/bench/devices.py")?;
        let (_, table) = program.split_once("CASES = {").context("no table of models")?;
        let names: Vec<&str> = table
            .lines()
            .filter_map(|line| line.strip_prefix("    \"")?.split_once("\": Case("))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(names, MODELS.map(|model| model.0));
        Ok(())
    }

    #[test]
    fn a_plan_beyond_its_budget_is_said() -> Result<()> {
        let row = parse(
            "planned_reserved,margins,budget,capture_seconds,plan_seconds,process_mib\n\
             100,10,109,1,2,300",
        )?;
        assert!(!claim("a model", &row).0);
        Ok(())
    }
}
