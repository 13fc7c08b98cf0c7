//! Train: a step that is fitted into a budget runs there, with the plain step's numbers.
//!
//! `cargo run --release -p rekindle --example train`

use rekindle::graph::Bytes;
use rekindle::models::{ModelOptions, build};
use rekindle::program::Optimizer;
use rekindle::{FitOptions, Trainer, check_numbers, fit, plain};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = build(
        "transformer-tiny",
        &ModelOptions { batch: 8, optimizer: Some(Optimizer::sgd(0.01)), ..Default::default() },
    )?;
    let options = FitOptions::default();
    let plain = plain(&model, options.threads);
    let budget = Bytes(plain.predicted().arena.get() * 7 / 10);

    // Profile, plan, rewrite, verify, place: all of it at once.
    let fitted = fit(&model, &plain, budget, &options)?;
    println!(
        "{} plain, {} planned, for {:+.1} % predicted time",
        plain.predicted().arena,
        fitted.predicted().arena,
        100.0 * fitted.overhead()
    );

    // The step is an error if its peak is not the predicted one.
    let mut trainer = Trainer::new(&model, fitted.engine()?, options.seed)?;
    for _ in 0..3 {
        let step = trainer.step()?;
        println!("step {}  loss {:.4}  peak {}", step.number, step.loss, step.measured.arena);
    }

    // Losses, gradients, parameters and buffers of two steps, against the plain step's.
    let checked = check_numbers(&model, &plain, &fitted, 2, options.seed)?;
    match checked.is_equal() {
        true => println!("{} numbers, all the same bits", checked.numbers),
        false => return Err(format!("{:?} differ", checked.differences).into()),
    }
    Ok(())
}
