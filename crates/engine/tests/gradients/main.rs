//! Every op's gradient in the plain step.

mod cases;

use remat_engine::Engine;
use remat_program::Program;

fn set_up(program: &Program) -> Engine {
    Engine::new(program, 1).unwrap()
}
