//! What profiling costs, and whether its numbers add up: the whole step without the profiler against
//! the sum of the nodes' times, and the time of profiling against as many plain steps.
//!
//! `cargo run --release -p remat-profile --example cost -- resnet152 4`. Prints one row of CSV; fails
//! if a bound is broken.

use std::process::ExitCode;
use std::time::Instant;

use remat_engine::{Engine, StepContext};
use remat_models::data::batch;
use remat_models::{Model, ModelOptions, Values, build};
use remat_profile::{HostSpill, MeasureOptions, measure};
use remat_program::Optimizer;

/// How far the sum of the nodes' times may be from the whole step.
const SUM_BOUND: f64 = 0.03;
/// Rounds of which the median counts.
const ROUNDS: usize = 3;
/// How much profiling may cost, in plain steps for each step that it runs.
const COST_BOUND: f64 = 1.3;

/// The columns of the row that is printed.
const HEADER: &str = "model,batch,threads,peak_bytes,plain_step_s,sum_of_nodes_s,difference,\
                      profiling_s,cost";

fn main() -> ExitCode {
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
    let rounds: Vec<Round> = (0..ROUNDS)
        .map(|_| Round::run(&mut engine, &steps))
        .collect();
    let of = |value: fn(&Round) -> f64| median(rounds.iter().map(value).collect());
    let (plain, sum, profiling) = (of(|r| r.plain), of(|r| r.sum), of(|r| r.profiling));
    let difference = of(|r| r.sum / r.plain - 1.0);
    let cost = of(|r| r.profiling / r.plain) / steps.steps() as f64;
    let peak = engine.predicted().arena.get();
    println!("{HEADER}");
    println!(
        "{name},{},{threads},{peak},{plain:.4},{sum:.4},{difference:.4},{profiling:.4},{cost:.3}",
        options.batch
    );
    let holds = difference.abs() <= SUM_BOUND && cost <= COST_BOUND;
    if !holds {
        eprintln!("bounds: |difference| <= {SUM_BOUND}, cost <= {COST_BOUND}");
    }
    if holds {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Profiling between two plain steps, so that a machine that slows down shows in both. In seconds.
struct Round {
    /// The mean of the plain steps before and after.
    plain: f64,
    /// The sum of the nodes' times.
    sum: f64,
    /// The whole of the profiling.
    profiling: f64,
}

impl Round {
    fn run(engine: &mut Engine, steps: &MeasureOptions) -> Round {
        let before = plain_step(engine);
        let started = Instant::now();
        let measurement = measure(engine, steps, &mut HostSpill::new(), &mut |_| {});
        let profiling = started.elapsed().as_secs_f64();
        let after = plain_step(engine);
        let graph = measurement
            .expect("the batch is good and host memory can be had")
            .graph;
        Round {
            plain: (before + after) / 2.0,
            sum: graph.nodes().iter().map(|n| n.time.seconds()).sum(),
            profiling,
        }
    }
}

/// The seconds of one step without the profiler.
fn plain_step(engine: &mut Engine) -> f64 {
    let started = Instant::now();
    engine
        .run(StepContext { seed: 0, step: 1 })
        .expect("the batch is good");
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
