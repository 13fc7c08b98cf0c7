//! Runs the check on many seeds; `cargo xtask soak` calls it at full length.
//!
//! The seeds are shared out to one process per core, each of which is this program again; failures
//! are printed as they are found, with their seed, and so is how far each process is.

use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use clap::Parser;

/// Plan random graphs and check everything that must hold.
#[derive(Parser)]
struct Arguments {
    /// How many graphs
    #[arg(long, default_value_t = 10_000)]
    graphs: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// About how many forward nodes a graph has at most
    #[arg(long, default_value_t = 60)]
    size: usize,
    /// How many processes share the work [default: one per core]
    #[arg(long)]
    processes: Option<u64>,
}

/// Graphs after each of which a process says how far it is.
const PROGRESS: u64 = 500;

/// What became of some graphs.
#[derive(Clone, Copy, Default)]
struct Tally {
    plans: u64,
    failures: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let processes = arguments.processes.unwrap_or_else(cores);
    let tally = match processes {
        0 | 1 => Ok(check_all(&arguments)),
        _ => share_out(&arguments, processes),
    };
    match tally {
        Ok(Tally { plans, failures }) => {
            println!("{} graphs, {plans} plans, {failures} failures", arguments.graphs);
            ExitCode::from(u8::from(failures > 0))
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

fn check_all(arguments: &Arguments) -> Tally {
    let mut tally = Tally::default();
    for done in 0..arguments.graphs {
        let seed = arguments.seed + done;
        if done > 0 && done % PROGRESS == 0 {
            eprintln!("{done} of {} graphs from seed {}", arguments.graphs, arguments.seed);
        }
        match rekindle_soak::check(seed, arguments.size) {
            Ok(count) => tally.plans += count as u64,
            Err(error) => {
                tally.failures += 1;
                eprintln!("seed {seed} (size {}): {error:#}", arguments.size);
            }
        }
    }
    tally
}

/// Each process gets a range of seeds.
fn share_out(arguments: &Arguments, processes: u64) -> Result<Tally> {
    let bound = |i: u64| arguments.graphs * i / processes;
    let start = |i: u64| -> Result<Child> {
        let child = Command::new(std::env::current_exe()?)
            .args(["--processes", "1"])
            .args(["--graphs", &(bound(i + 1) - bound(i)).to_string()])
            .args(["--seed", &(arguments.seed + bound(i)).to_string()])
            .args(["--size", &arguments.size.to_string()])
            .stdout(Stdio::piped())
            .spawn();
        child.context("cannot start a process")
    };
    let children: Vec<Child> = (0..processes).map(start).collect::<Result<_>>()?;
    let mut sum = Tally::default();
    for child in children {
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        // As printed at the end of `main`.
        let numbers: Vec<u64> =
            said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [_, plans, failures] = numbers[..] else {
            bail!("a process ended with {}: {said}", output.status);
        };
        sum.plans += plans;
        sum.failures += failures;
    }
    Ok(sum)
}
