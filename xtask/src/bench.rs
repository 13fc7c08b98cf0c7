//! `cargo xtask bench engine [CASE…]`: our step against PyTorch's eager step, archived under
//! `bench/runs`.
//!
//! Both sides run as processes of their own, with the same model, batch and thread count, and take
//! turns step by step, so that whatever else happens on the machine meets both. The first step of
//! each is not counted. PyTorch's peak is the sum of its live storages
//! (`python/bench/serve_torch.py`), ours the arena.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::archive::{Archive, check_names, is_wanted, mebibytes, median};
use crate::repo::Repo;
use crate::{
    bench_analysis, bench_compare, bench_devices, bench_exact, bench_inductor, bench_limit,
    bench_offload, bench_plan, bench_profile, bench_torch, bench_train, bench_transfers, bench_xl,
    bench_zoo, python,
};

/// Its name, the model, its sizes as `engine_peer` takes them (`python/bench/serve_torch.py` knows
/// the same by name), and threads.
struct Case(&'static str, &'static str, &'static str, usize);

const RESNET: &str = "batch=4 image_size=224 sequence=128 optimizer=sgd learning_rate=0.001";
const BERT: &str = "batch=8 image_size=224 sequence=128 optimizer=adam learning_rate=0.0001";
const CASES: [Case; 4] = [
    Case("resnet152-t1", "resnet152", RESNET, 1),
    Case("resnet152-t2", "resnet152", RESNET, 2),
    Case("bert-base-t1", "bert-base", BERT, 1),
    Case("bert-base-t2", "bert-base", BERT, 2),
];

/// Steps that count, per side and case.
const ROUNDS: usize = 4;

/// A benchmark, which gets the names of cases.
type Bench = (&'static str, fn(&Repo, &[String]) -> Result<()>);

const BENCHES: [Bench; 15] = [
    ("plan", bench_plan::run),
    ("exact", bench_exact::run),
    ("engine", engine),
    ("profile", bench_profile::run),
    ("compare", bench_compare::run),
    ("limit", bench_limit::run),
    ("offload", bench_offload::run),
    ("xl", bench_xl::run),
    ("torch", bench_torch::run),
    ("inductor", bench_inductor::run),
    ("zoo", bench_zoo::run),
    ("devices", bench_devices::run),
    ("analysis", bench_analysis::run),
    ("transfers", bench_transfers::run),
    ("train", bench_train::run),
];

/// Runs the benchmark that `words` name.
pub(crate) fn run(repo: &Repo, words: &[String]) -> Result<()> {
    let (name, cases) = words.split_first().map_or(("", words), |(n, c)| (n, c));
    match BENCHES.iter().find(|bench| bench.0 == name) {
        Some((_, bench)) => bench(repo, cases),
        None => bail!(
            "which benchmark? There are {}, followed by the names of cases or nothing",
            BENCHES.map(|bench| bench.0).join(", ")
        ),
    }
}

fn engine(repo: &Repo, names: &[String]) -> Result<()> {
    check_names(names, &CASES.map(|case| case.0))?;
    let peer = python::engine_peer(repo, "release")?;
    let interpreter = python::interpreter(repo)?;
    let mut results = Vec::new();
    for case in CASES.iter().filter(|case| is_wanted(names, case.0)) {
        let Case(_, model, sizes, threads) = case;
        let mut ours = repo.command(&peer);
        ours.args(["serve", model]).args(sizes.split(' '));
        ours.arg(format!("threads={threads}"));
        let mut theirs = repo.command(&interpreter);
        theirs.args(["python/bench/serve_torch.py", model, &threads.to_string()]);
        theirs.env("PYTHONPATH", "python/tests");
        let mut result =
            Comparison { case, ours: Side::start(ours)?, theirs: Side::start(theirs)? };
        for _ in 0..=ROUNDS {
            result.ours.step()?;
            result.theirs.step()?;
        }
        result.ours.finish()?;
        result.theirs.finish()?;
        println!("{}", result.row());
        results.push(result);
    }
    archive(repo, &results)
}

/// A process that runs a step whenever it is told to.
struct Side {
    process: Child,
    answers: BufReader<ChildStdout>,
    peak: u64,
    seconds: Vec<f64>,
}

impl Side {
    /// Starts the process and waits until it is ready.
    fn start(mut command: Command) -> Result<Side> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let answers = BufReader::new(process.stdout.take().context("no pipe from the process")?);
        let mut side = Side { process, answers, peak: 0, seconds: Vec::new() };
        side.peak = side.answer()?.trim().parse()?;
        Ok(side)
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the process ended early ({}); its complaint is above", self.process.wait()?);
        }
        Ok(line)
    }

    fn step(&mut self) -> Result<()> {
        writeln!(self.process.stdin.as_mut().context("no pipe to the process")?, "step")?;
        let answer = self.answer()?;
        let (seconds, loss) =
            answer.trim().split_once(' ').context("the answer is not two numbers")?;
        if !loss.parse::<f64>()?.is_finite() {
            bail!("the loss is {loss}: such a step proves nothing");
        }
        self.seconds.push(seconds.parse()?);
        Ok(())
    }

    /// Ends the process (to wait for it closes its input), and forgets the first time.
    fn finish(&mut self) -> Result<()> {
        self.process.wait()?;
        self.seconds.remove(0);
        Ok(())
    }

    fn least(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn median(&self) -> f64 {
        median(&self.seconds)
    }
}

/// Both sides of a case.
struct Comparison<'a> {
    case: &'a Case,
    ours: Side,
    theirs: Side,
}

impl Comparison<'_> {
    /// A row of the table.
    fn row(&self) -> String {
        let Comparison { case, ours, theirs } = self;
        format!(
            "| {} | {} | {:.3} / {:.3} | {:.3} / {:.3} | {:.2} / {:.2} | {:.0} | {:.0} |",
            case.1,
            case.3,
            ours.least(),
            ours.median(),
            theirs.least(),
            theirs.median(),
            ours.least() / theirs.least(),
            ours.median() / theirs.median(),
            mebibytes(ours.peak),
            mebibytes(theirs.peak)
        )
    }
}

const HEADER: &str = "\
| model | threads | ours, s | PyTorch, s | ratio | our peak, MiB | PyTorch's peak, MiB |
|---|---|---|---|---|---|---|
";

/// Writes the table with what it was measured on, and every single time.
fn archive(repo: &Repo, results: &[Comparison<'_>]) -> Result<()> {
    let archive = Archive::open(repo, "engine")?;
    let mut csv =
        String::from("case,threads,round,ours_s,pytorch_s,our_peak_bytes,pytorch_peak_bytes\n");
    for Comparison { case, ours, theirs } in results {
        for (round, (our_time, their_time)) in ours.seconds.iter().zip(&theirs.seconds).enumerate()
        {
            let Case(name, _, _, threads) = case;
            let peaks = format!("{},{}", ours.peak, theirs.peak);
            let _ = writeln!(csv, "{name},{threads},{},{our_time},{their_time},{peaks}", round + 1);
        }
    }
    archive.write("raw.csv", &csv)?;
    archive.conclude(&summary(&archive, results), &[])
}

fn summary(archive: &Archive, results: &[Comparison<'_>]) -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let mut text = format!(
        "# Our training step against PyTorch's eager step\n\n\
         `cargo xtask bench engine` {}; load average at the end {load}. Versions of PyTorch and \
         the models: `python/requirements.txt`.\n\n\
         ResNet-152: batch 4, 224 × 224, SGD with momentum. BERT-base, masked language model: \
         batch 8 × 128, Adam, dropout 0.1. PyTorch with its fused optimizers and its default \
         memory layout. Both sides took turns, {ROUNDS} steps each after one that is not counted. \
         Times and ratios (ours ÷ PyTorch's, below 1 is faster) are least / median. Our peak is \
         the whole arena; PyTorch's is the sum of its live storages, without scratch inside its \
         ops.\n\n{HEADER}",
        archive.made_on,
    );
    for result in results {
        text += &result.row();
        text.push('\n');
    }
    text
}
