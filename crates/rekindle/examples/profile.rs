//! Profile: where the bytes and the time of a training step go.
//!
//! `cargo run --release -p rekindle --example profile`

use rekindle::analysis::{Analysis, Kind, Seconds, breakdowns};
use rekindle::models::{ModelOptions, build};
use rekindle::profile::{MeasureOptions, Swaps, measure};
use rekindle::program::Optimizer;
use rekindle::{FitOptions, plain, set_up, write_batch};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let batch = 8;
    let model = build(
        "transformer-tiny",
        &ModelOptions { batch, optimizer: Some(Optimizer::sgd(0.01)), ..ModelOptions::default() },
    )?;

    // What the memory is needed for is known before anything runs.
    let options = FitOptions::default();
    let plain = plain(&model, options.threads);
    let live = breakdowns(plain.graph(), &Analysis::new(plain.graph()));
    let peak = live.iter().max_by_key(|at| at.total());
    let peak = peak.ok_or("a step has nodes")?;
    println!("peak {}", peak.total());
    for (kind, name) in Kind::ALL {
        println!("  {:>12}  {name}", peak.of(kind).to_string());
    }

    // What takes the time is not: the step runs under the clock, node by node. Each activation is
    // also copied out of the arena and back, to know what swapping it would cost.
    let mut engine = set_up(&plain, options.seed, None, &mut |_| {})?;
    write_batch(&mut engine, &model, options.seed, 1)?;
    let measure_options = MeasureOptions::default();
    let measured = measure(&mut engine, &measure_options, Swaps::Memory, &mut |_| {})?;
    let mut profile = measured.profile("transformer-tiny", batch, "cpu");
    println!("step {:.1} ms", 1e3 * profile.step_time().get());

    // The activations that are cheapest to make again, for their bytes.
    let ratio = |ratio: Option<f64>| ratio.unwrap_or(0.0);
    let activations = &mut profile.activations;
    activations.sort_by(|a, b| ratio(b.recompute_ratio).total_cmp(&ratio(a.recompute_ratio)));
    println!("cheapest to recompute");
    for a in &activations[..5] {
        let milliseconds = |time: Option<Seconds>| time.map_or(0.0, |t| 1e3 * t.get());
        println!(
            "  {:>12}  idle {:>6.1} ms, again in {:.3} ms  {}",
            a.memory_size.to_string(),
            milliseconds(a.inactive_time),
            milliseconds(a.recomp_time),
            a.name
        );
    }
    Ok(())
}
