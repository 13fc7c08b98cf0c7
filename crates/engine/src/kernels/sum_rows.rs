//! The sum over rows: the gradient of a bias.

use super::KernelError;
use super::columns::{CHUNK, Terms, join, rows_per_task, sum_terms, tasks};
use super::lanes::vectorised;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::SumRows;

impl Kernel for SumRows {
    fn scratch(&self, _: usize) -> usize {
        tasks(self.rows) * self.cols
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (x, y): (&[f32], &mut [f32]) = (call.read(0), call.write(0));
        let partials = &mut call.scratch()[..self.scratch(call.threads.count())];
        let elements = rows_per_task(self.rows) * self.cols;
        let cols = self.cols.max(1);
        call.threads.chunks_mut(partials, cols, &|task, partial| {
            let end = x.len().min((task + 1) * elements);
            sum_task(&x[task * elements..end], partial);
        });
        join(partials, cols, y, call.threads);
        Ok(())
    }
}

vectorised! {
    fn sum_task<A>(x: &[f32], out: &mut [f32]) {
        struct Column<'a>(&'a [f32]);
        impl Terms<1> for Column<'_> {
            #[inline(always)]
            fn add(&mut self, at: usize, _: usize, width: usize, sums: &mut [[f32; CHUNK]; 1]) {
                for (sum, x) in sums[0].iter_mut().zip(&self.0[at..at + width]) {
                    *sum += x;
                }
            }
        }
        sum_terms(&mut Column(x), x.len() / out.len(), out.len(), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;
    use crate::kernels::columns::BLOCK;
    use crate::kernels::lanes::tests::portable;
    use crate::kernels::test_data::{assert_close, assert_same_bits, compute, random};

    const SHAPES: [(usize, usize); 8] =
        [(1, 1), (0, 5), (31, 3), (33, 41), (65, 32), (1024, 300), (5000, 7), (4097, 64)];

    fn run(rows: usize, cols: usize, x: &[f32], threads: &Threads) -> Vec<f32> {
        compute(SumRows { rows, cols }, &[x], threads).unwrap().remove(0)
    }

    #[test]
    fn sums_match_plain_loops() {
        for (rows, cols) in SHAPES {
            let x = random(rows * cols, 1);
            let want: Vec<f64> =
                (0..cols).map(|c| (0..rows).map(|r| f64::from(x[r * cols + c])).sum()).collect();
            let threads = Threads::new(1);
            // BLOCK additions of values up to 3 in f32, each rounded to 2^-24 of a sum that stays
            // near 10, and one rounding of the partial sums; every block adds to the error.
            let error = 1e-6 * (1.0 + rows.div_ceil(BLOCK) as f64);
            assert_close(&run(rows, cols, &x, &threads), &want, 2e-7, error);
            let plain = portable(|| run(rows, cols, &x, &threads));
            assert_close(&plain, &want, 2e-7, error);
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for (rows, cols) in SHAPES {
            let x = random(rows * cols, 2);
            assert_same_bits(|threads| vec![run(rows, cols, &x, threads)]);
        }
    }
}
