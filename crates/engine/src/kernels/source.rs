//! Sources have no kernel: what they hold is there before the first step.

use super::KernelError;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::Source;

impl Kernel for Source {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, _: &mut Call<'_>) -> Result<(), KernelError> {
        unreachable!("a source never runs")
    }
}
