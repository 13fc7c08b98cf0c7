//! `cargo xtask bench train [CASE…]`: real training against PyTorch, and runs that are killed,
//! archived under `bench/runs`.
//!
//! Both sides begin with the same weights, see the same batches in the same order and have the same
//! settings (`python/bench/train_torch.py` is the other side). Ours trains twice, plain and in half
//! of the plain step's memory; both runs must end with the same bits. The case `kills` ends one run
//! after the other at a random moment by SIGKILL, and resumes it.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::archive::{Archive, Case, check_names, lines, list, mebibytes};
use crate::python;
use crate::repo::{Repo, output, show};

const LEARNING: &str = "--optimizer adamw --weight-decay 0.01 --clip 1 --schedule cosine --warmup \
                        20 --seed 1 --weights start.safetensors --out ours.safetensors";

/// What is trained and on what, as the command has it; `python/bench/train_torch.py` knows the same
/// by name.
const CASES: [Case; 3] = [
    (
        "digits",
        "resnet20 --image-size 8 --data train --validate validate --batch-size 32 --epochs 12 \
         --learning-rate 0.003",
    ),
    (
        "text",
        "gpt2-tiny --dropout 0 --sequence 64 --data text --tokenizer tokenizer.json --validate 10% \
         --batch-size 16 --epochs 4 --learning-rate 0.002",
    ),
    ("kills", ""),
];

const HEADER: &str =
    "case,side,loss,accuracy,last_loss,last_accuracy,peak_bytes,resident_bytes,bits";
const KILLS_HEADER: &str = "run,killed_after_s,resumed_from,equal";

/// The digits come with scikit-learn.
const REQUIREMENTS: &str = "python/bench/train_requirements.txt";
const LIBRARIES: &str = "target/train-libs";

/// How many runs are killed.
const KILLS: u64 = 40;

/// Runs the cases that `names` hold, or all.
pub(crate) fn run(repo: &Repo, names: &[String]) -> Result<()> {
    check_names(names, &CASES.map(|case| case.0))?;
    show(&mut repo.cargo("build --quiet --release --locked --package rekindle-cli"))?;
    let archive = Archive::open(repo, "train")?;
    let measure = |case: &Case| match case.0 {
        "kills" => kills(repo),
        _ => contest(repo, case),
    };
    let kept = archive.cases(&CASES, names, measure, Found::read)?;
    let mut text = format!(
        "# Training on real data\n\n`cargo xtask bench train`, {}.\n\nA ResNet-20 on \
         scikit-learn's digits and a small GPT-2 on the licences of Debian's `base-files`: the \
         same start, batches and settings in PyTorch ({}). Found on what was held back, at the \
         best evaluation and at the last. Peaks in MiB: the arena, and what the process had in \
         memory.\n\n\
         | case | side | loss | accuracy | last loss | last accuracy | peak | resident |\n\
         |---|---|---|---|---|---|---|---|\n",
        archive.cases_made_on(&CASES)?,
        "`python/bench/train_torch.py`"
    );
    let mut claims = Vec::new();
    for (case, found) in &kept {
        found.tell(case.0, &mut text, &mut claims)?;
    }
    archive.conclude(&format!("{text}\n{}", list(&claims)), &claims)
}

/// A folder that is gone afterwards.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("rekindle-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn contest(repo: &Repo, case: &Case) -> Result<String> {
    let folder = Folder::new(case.0)?;
    let interpreter = python::interpreter(repo)?;
    let libraries = python::libraries(repo, &interpreter, REQUIREMENTS, LIBRARIES)?;
    let peer = |task: &str| {
        let mut command = repo.command(&interpreter);
        command.args(["python/bench/train_torch.py", task, case.0]).arg(&folder.0);
        command.env("PYTHONPATH", &libraries);
        command
    };
    show(&mut peer("prepare"))?;
    let mut csv = format!("{HEADER}\n");
    for (side, more) in [("plain", ""), ("half", " --budget 50%")] {
        let line = format!("train {} {LEARNING} --json --quiet{more}", case.1);
        let told: Value = serde_json::from_str(&output(&mut rekindle(repo, &folder.0, &line))?)?;
        let all = told["evaluations"].as_array().context("evaluations")?;
        let best = all.iter().find(|it| it["update"] == told["best_update"]);
        let (best, last) = (best.context("the best")?, all.last().context("the last")?);
        let cells = [&best["loss"], &best["accuracy"], &last["loss"], &last["accuracy"]];
        let cells = cells.map(Value::to_string).join(",");
        let rest =
            ["arena_bytes", "highest_resident_bytes", "bits"].map(|key| told[key].to_string());
        writeln!(csv, "{},{side},{cells},{}", case.0, rest.join(","))?;
    }
    let told: Value = serde_json::from_str(&output(&mut peer("train"))?)?;
    let (best, last) = (&told["best"], &told["last"]);
    let cells = [&best["loss"], &best["accuracy"], &last["loss"], &last["accuracy"]];
    writeln!(csv, "{},pytorch,{},,,", case.0, cells.map(Value::to_string).join(","))?;
    Ok(csv)
}

fn rekindle(repo: &Repo, folder: &Path, line: &str) -> Command {
    let mut command = Command::new(repo.target().join("release/rekindle"));
    command.args(line.split_whitespace()).current_dir(folder);
    command
}

/// A run of a second or so: whole once, then killed at a random moment and resumed, again and
/// again.
fn kills(repo: &Repo) -> Result<String> {
    let folder = Folder::new("kills")?;
    let tokens: Vec<u8> =
        (0..60_000u32).flat_map(|i| ((i * i % 997) as u16).to_le_bytes()).collect();
    std::fs::write(folder.0.join("tokens.bin"), tokens)?;
    let step = "train gpt2-tiny --sequence 32 --batch-size 8 --data tokens.bin --validate 5% \
                --accumulate 2 --updates 60 --evaluate-every 9 --schedule cosine --clip 1 \
                --budget 80% --effort 0 --json --quiet";
    let started = Instant::now();
    let whole = output(&mut rekindle(repo, &folder.0, &format!("{step} --out whole.safetensors")))?;
    let took = started.elapsed();
    let whole: Value = serde_json::from_str(&whole)?;
    let mut csv = format!("{KILLS_HEADER}\n");
    let mut random: u64 = 7;
    for number in 1..=KILLS {
        let files = format!(
            "--checkpoints run{number} --checkpoint-every 1 --resume --out o{number}.safetensors"
        );
        let line = format!("{step} {files}");
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let share = (random >> 33) as f64 / (1u64 << 31) as f64;
        let moment = Duration::from_secs_f64(took.as_secs_f64() * share);
        let mut child =
            rekindle(repo, &folder.0, &line).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        std::thread::sleep(moment);
        child.kill()?;
        child.wait()?;
        let checkpoint = folder.0.join(format!("run{number}/last.safetensors"));
        let resumed_from = checkpoint.exists();
        let told: Value = serde_json::from_str(&output(&mut rekindle(repo, &folder.0, &line))?)?;
        let file = |name: &str| std::fs::read(folder.0.join(name));
        let same_file = file(&format!("o{number}.safetensors"))? == file("whole.safetensors")?;
        let equal =
            same_file && told["bits"] == whole["bits"] && told["updates"] == whole["updates"];
        let from = if resumed_from { "a checkpoint" } else { "the start" };
        writeln!(csv, "{number},{:.3},{from},{equal}", moment.as_secs_f64())?;
        ensure!(equal, "run {number} ended with other bits after it was killed");
    }
    Ok(csv)
}

/// What a case found.
enum Found {
    Contest(Vec<Side>),
    Kills { runs: usize, from_checkpoint: usize, equal: usize },
}

struct Side {
    side: String,
    loss: f64,
    accuracy: f64,
    last: [f64; 2],
    peak: Option<u64>,
    resident: Option<u64>,
    bits: Option<u64>,
}

impl Found {
    fn read(case: &Case, csv: &str) -> Result<Found> {
        let table = lines(csv)?;
        if case.0 == "kills" {
            let count = |key: &str, value: &str| -> Result<usize> {
                let cells: Result<Vec<&str>> = table.iter().map(|line| line.text(key)).collect();
                Ok(cells?.into_iter().filter(|cell| *cell == value).count())
            };
            let from_checkpoint = count("resumed_from", "a checkpoint")?;
            let equal = count("equal", "true")?;
            return Ok(Found::Kills { runs: table.len(), from_checkpoint, equal });
        }
        let sides: Result<Vec<Side>> = table
            .iter()
            .map(|line| {
                Ok(Side {
                    side: line.get("side")?,
                    loss: line.get("loss")?,
                    accuracy: line.get("accuracy")?,
                    last: [line.get("last_loss")?, line.get("last_accuracy")?],
                    peak: line.optional("peak_bytes")?,
                    resident: line.optional("resident_bytes")?,
                    bits: line.optional("bits")?,
                })
            })
            .collect();
        Ok(Found::Contest(sides?))
    }

    fn tell(&self, case: &str, text: &mut String, claims: &mut Vec<(bool, String)>) -> Result<()> {
        let sides = match self {
            Found::Kills { runs, from_checkpoint, equal } => {
                claims.push((
                    *runs as u64 == KILLS && equal == runs,
                    format!(
                        "{runs} runs were killed at random moments and resumed ({from_checkpoint} \
                         from a checkpoint, the others before there was one): {equal} ended with \
                         the bits and the file of the run that was not killed"
                    ),
                ));
                return Ok(());
            }
            Found::Contest(sides) => sides,
        };
        for it in sides {
            let mib = |bytes: Option<u64>| {
                bytes.map_or("—".into(), |bytes| format!("{:.1}", mebibytes(bytes)))
            };
            writeln!(
                text,
                "| {case} | {} | {:.5} | {:.4} | {:.5} | {:.4} | {} | {} |",
                it.side,
                it.loss,
                it.accuracy,
                it.last[0],
                it.last[1],
                mib(it.peak),
                mib(it.resident)
            )?;
        }
        let [plain, half, torch] = &sides[..] else {
            anyhow::bail!("three sides");
        };
        claims.push((
            plain.bits == half.bits && plain.loss == half.loss,
            format!("{case}: in half of the memory every bit is the plain run's"),
        ));
        claims.push((
            half.peak <= plain.peak.map(|peak| peak.div_ceil(2)),
            format!("{case}: that is an arena of at most half of the plain one"),
        ));
        claims.push(match case {
            "digits" => (
                plain.accuracy >= torch.accuracy,
                "digits: at least the accuracy that PyTorch reaches".into(),
            ),
            _ => (
                (plain.loss / torch.loss - 1.0).abs() <= 0.01,
                "text: PyTorch's loss within 1 %".into(),
            ),
        });
        Ok(())
    }
}
