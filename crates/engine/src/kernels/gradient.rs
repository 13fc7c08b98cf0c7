//! Gradients on their way to an optimizer: summed over several steps, and measured.

use super::KernelError;
use super::lanes::vectorised;
use super::tasks::{TASK_ELEMENTS, map_elements};
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Accumulate, Keep, SquareSum};

impl Kernel for Accumulate {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let begins = call.update_of_step.begins;
        map_elements(call, |[sum, gradient], total| match begins {
            true => total.copy_from_slice(gradient),
            false => add_chunk(sum, gradient, total),
        });
        Ok(())
    }
}

impl Kernel for Keep {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let total: &[f32] = call.read(1);
        call.threads.chunks_mut(call.update(0), TASK_ELEMENTS, &|task, sum| {
            let start = task * TASK_ELEMENTS;
            sum.copy_from_slice(&total[start..start + sum.len()]);
        });
        Ok(())
    }
}

/// Each task sums its squares in double; the tasks' sums are added up in their order.
impl Kernel for SquareSum {
    fn scratch(&self, _: usize) -> usize {
        2 * self.tasks()
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let x: &[f32] = call.read(0);
        let before: Option<&[f32]> = call.read_if(self.goes_on, 1);
        let sums = &mut call.scratch()[..2 * self.tasks()];
        call.threads.chunks_mut(sums, 2, &|task, sum| {
            let end = x.len().min((task + 1) * TASK_ELEMENTS);
            let bits = squares(&x[task * TASK_ELEMENTS..end]).to_bits();
            // Scratch is of floats: a double goes into two of them, bit for bit.
            sum[0] = f32::from_bits((bits >> 32) as u32);
            sum[1] = f32::from_bits(bits as u32);
        });
        let sum = |halves: &[f32]| {
            f64::from_bits(u64::from(halves[0].to_bits()) << 32 | u64::from(halves[1].to_bits()))
        };
        let total: f64 = sums.chunks_exact(2).map(sum).sum();
        let total = total + before.map_or(0.0, |before| f64::from(before[0]));
        call.write(0)[0] = total as f32;
        Ok(())
    }
}

trait Tasks {
    fn tasks(&self) -> usize;
}

impl Tasks for SquareSum {
    fn tasks(&self) -> usize {
        self.len.div_ceil(TASK_ELEMENTS)
    }
}

/// In a fixed order: eight sums side by side, and then these.
fn squares(x: &[f32]) -> f64 {
    let mut sums = [0.0f64; 8];
    let (chunks, rest) = x.as_chunks::<8>();
    for chunk in chunks {
        for (sum, &x) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(x) * f64::from(x);
        }
    }
    let rest: f64 = rest.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    sums.iter().sum::<f64>() + rest
}

vectorised! {
    fn add_chunk<A>(sum: &[f32], gradient: &[f32], total: &mut [f32]) {
        for ((total, sum), gradient) in total.iter_mut().zip(sum).zip(gradient) {
            *total = sum + gradient;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::test_data::{AWKWARD_LENGTHS, assert_close, compute, compute_as, random};
    use crate::{Iteration, Threads, Update};

    #[test]
    fn the_first_step_begins_a_sum_and_the_others_add_to_it() {
        let iteration = Iteration { seed: 0, number: 1 };
        for len in AWKWARD_LENGTHS {
            let (old, gradient) = (random(len, 1), random(len, 2));
            let sum: Vec<f32> = old.iter().zip(&gradient).map(|(a, b)| a + b).collect();
            for (begins, want) in [(true, &gradient), (false, &sum)] {
                let update = Update { begins, ..Update::default() };
                let (op, reads) = (Accumulate { len }, [&old[..], &gradient[..]]);
                let got = compute_as(iteration, update, op, &reads, &Threads::new(2));
                assert_eq!(&got.expect("it adds")[0], want);
            }
            let kept = compute(Keep { len }, &[&old, &gradient], &Threads::new(2));
            assert_eq!(kept.expect("it copies")[0], gradient);
        }
    }

    #[test]
    fn the_sum_of_squares_goes_on_and_is_the_same_at_any_thread_count() {
        for len in AWKWARD_LENGTHS {
            let x = random(len, 3);
            let want: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let run = |threads: &Threads| {
                let one = compute(SquareSum { len, goes_on: false }, &[&x], threads).unwrap();
                let op = SquareSum { len, goes_on: true };
                let two = compute(op, &[&x, &one[0]], threads).unwrap();
                vec![one[0].clone(), two[0].clone()]
            };
            let got = run(&Threads::new(1));
            // Sums in double, rounded to single once or twice.
            assert_close(&got[0], &[want], 1e-7, 0.0);
            assert_close(&got[1], &[2.0 * want], 2e-7, 0.0);
            crate::kernels::test_data::assert_same_bits(run);
        }
    }
}
