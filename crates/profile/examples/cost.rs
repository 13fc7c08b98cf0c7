//! What profiling costs, and whether its numbers add up: the whole step without the profiler
//! against the sum of the nodes' times, and the time of profiling against as many plain steps.
//!
//! `cargo run --release -p rekindle-profile --example cost -- resnet152 4`. Prints CSV: a line for
//! each round, then their medians with the difference and the cost that follow.

use std::time::Instant;

use rekindle_engine::{Engine, Iteration};
use rekindle_models::data::batch;
use rekindle_models::{Model, ModelOptions, Values, build};
use rekindle_profile::{MeasureOptions, Swaps, measure};
use rekindle_program::Optimizer;

/// Rounds of which the median counts. Steps on a shared machine differ by several percent; the
/// medians of seven rounds of profiling and fourteen plain steps do not.
const ROUNDS: usize = 7;

fn main() {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_else(|| "resnet152".into());
    let size = words.next().map_or(Ok(4), |text| text.parse());
    let options = ModelOptions {
        batch: size.expect("the second word is the batch size"),
        optimizer: Some(Optimizer::adam(1e-4)),
        ..Default::default()
    };
    let model = build(&name, &options).unwrap_or_else(|error| panic!("{error}"));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut engine = Engine::new(&model.program, threads).expect("the step fits in memory");
    write_batch(&mut engine, &model);

    let steps = MeasureOptions::default();
    // The very first step meets cold memory.
    plain_step(&mut engine);
    println!("round,plain_before_s,plain_after_s,sum_of_nodes_s,profiling_s");
    let mut rounds = Vec::new();
    for number in 1..=ROUNDS {
        let round = Round::run(&mut engine, &steps);
        let [before, after] = round.plain;
        println!("{number},{before:.4},{after:.4},{:.4},{:.4}", round.sum, round.profiling);
        rounds.push(round);
    }
    let plain = median(rounds.iter().flat_map(|r| r.plain).collect());
    let sum = median(rounds.iter().map(|r| r.sum).collect());
    let profiling = median(rounds.iter().map(|r| r.profiling).collect());
    let difference = sum / plain - 1.0;
    let cost = profiling / plain / steps.steps() as f64;
    println!("threads,plain_s,sum_of_nodes_s,profiling_s,difference,cost");
    println!("{threads},{plain:.4},{sum:.4},{profiling:.4},{difference:.4},{cost:.3}");
}

/// Profiling between two plain steps, so that a machine that slows down shows in both. In seconds.
struct Round {
    /// The steps before and after.
    plain: [f64; 2],
    /// The sum of the nodes' times.
    sum: f64,
    /// The whole of the profiling.
    profiling: f64,
}

impl Round {
    fn run(engine: &mut Engine, steps: &MeasureOptions) -> Round {
        let before = plain_step(engine);
        let started = Instant::now();
        let measurement = measure(engine, steps, Swaps::Memory, &mut |_| {});
        let profiling = started.elapsed().as_secs_f64();
        let after = plain_step(engine);
        let graph = measurement.expect("the batch is good and host memory can be had").graph;
        Round {
            plain: [before, after],
            sum: graph.nodes().iter().map(|n| n.time.seconds()).sum(),
            profiling,
        }
    }
}

/// The seconds of one step without the profiler.
fn plain_step(engine: &mut Engine) -> f64 {
    let started = Instant::now();
    engine.run(Iteration { seed: 0, number: 1 }).expect("the batch is good");
    started.elapsed().as_secs_f64()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn write_batch(engine: &mut Engine, model: &Model) {
    for (tensor, values) in batch(model, 0, 1) {
        let written = match values {
            Values::F32(values) => engine.write_f32(tensor, &values),
            Values::I64(values) => engine.write_i64(tensor, &values),
        };
        written.expect("the batch fits the model");
    }
}
