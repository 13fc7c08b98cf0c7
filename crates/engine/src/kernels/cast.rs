//! Whole numbers as numbers to compute with.

use super::KernelError;
use super::tasks::TASK_ELEMENTS;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::Cast;

impl Kernel for Cast {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let x: &[i64] = call.read(0);
        call.threads.chunks_mut(call.write(0), TASK_ELEMENTS, &|task, y| {
            for (y, &x) in y.iter_mut().zip(&x[task * TASK_ELEMENTS..]) {
                *y = x as f32;
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;
    use crate::kernels::test_data::compute;

    #[test]
    fn whole_numbers_stay_what_they_are() {
        let x: Vec<f32> = (0..40_000).map(|i| (i - 20_000) as f32).collect();
        let y = compute(Cast { len: x.len() }, &[&x], &Threads::new(2)).unwrap();
        assert_eq!(y, [x]);
    }
}
