//! Steps on demand, timed.
//!
//! Prints the arena's bytes when ready; then, for each line of standard input, runs one step on a
//! batch that stays the same and prints its seconds and its loss. Dropout is as the model has it.

use std::io::{BufRead, Write};
use std::time::Instant;

use rekindle::write_batch;
use rekindle_engine::{Engine, Iteration};

use crate::Outcome;
use crate::request::Request;

pub(crate) fn run(request: &Request) -> Outcome<()> {
    let model = request.build(&request.options)?;
    let mut engine = Engine::new(&model.program, request.threads)?;
    write_batch(&mut engine, &model, 1, 1)?;
    let mut answers = std::io::stdout();
    writeln!(answers, "{}", engine.predicted().arena.get())?;
    for (step, line) in (1..).zip(std::io::stdin().lock().lines()) {
        line?;
        let start = Instant::now();
        engine.run(Iteration { seed: 1, number: step })?;
        let seconds = start.elapsed().as_secs_f64();
        writeln!(answers, "{seconds} {}", engine.read_f32(model.loss)?[0])?;
    }
    Ok(())
}
