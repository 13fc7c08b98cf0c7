//! Every op's gradient in the plain step.

mod cases;

use rekindle_engine::Engine;
use rekindle_program::Program;

fn set_up(program: &Program) -> Engine {
    Engine::new(program, 1).unwrap()
}
