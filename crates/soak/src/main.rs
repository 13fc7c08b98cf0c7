//! Runs the check on many seeds; `cargo xtask soak` calls it at full length.

use std::process::ExitCode;

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
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (mut plans, mut failures) = (0, 0);
    for seed in arguments.seed..arguments.seed + arguments.graphs {
        match remat_soak::check(seed, arguments.size) {
            Ok(count) => plans += count,
            Err(error) => {
                failures += 1;
                eprintln!("seed {seed} (size {}): {error:#}", arguments.size);
            }
        }
    }
    println!(
        "{} graphs, {plans} plans, {failures} failures",
        arguments.graphs
    );
    match failures {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
