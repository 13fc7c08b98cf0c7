//! Normalisation of rows by their root mean square, forward and backward.
//!
//! The backward writes `dx` row by row and adds `dgamma` up per task, then over tasks in their
//! order.

use super::KernelError;
use super::columns;
use super::lanes::{sums, vectorised};
use super::tasks::{chunks_mut2, rows_per_task};
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{RmsNorm, RmsNormDx};

impl Kernel for RmsNorm {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let [x, gamma] = [0, 1].map(|k| call.read(k));
        let rows = rows_per_task(self.cols);
        let elements = rows * self.cols;
        let (y, stats) = ((call.write(0), elements), (call.write(1), rows));
        chunks_mut2(call.threads, y, stats, |task, y, stats| {
            let x = &x[task * elements..task * elements + y.len()];
            normalise_rows(self, x, gamma, y, stats);
        });
        Ok(())
    }
}

impl Kernel for RmsNormDx {
    fn scratch(&self, _: usize) -> usize {
        columns::tasks(self.0.rows) * self.0.cols
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let cols = self.0.cols;
        let [x, stats, gamma, dy] = [0, 1, 2, 3].map(|k| call.read(k));
        let partials = &mut call.scratch()[..self.scratch(call.threads.count())];
        let rows = columns::rows_per_task(self.0.rows);
        let (dx, sums) = ((call.write(0), rows * cols), (&mut *partials, cols));
        chunks_mut2(call.threads, dx, sums, |task, dx, dgamma| {
            let range = task * rows * cols..task * rows * cols + dx.len();
            let stats = &stats[task * rows..][..dx.len() / cols];
            gradient_rows(&x[range.clone()], stats, gamma, &dy[range], dx, dgamma);
        });
        columns::join(partials, cols, call.write(1), call.threads);
        Ok(())
    }
}

vectorised! {
    fn normalise_rows<A>(
        dims: &RmsNorm, x: &[f32], gamma: &[f32], y: &mut [f32], stats: &mut [f32],
    ) {
        let gamma = &gamma[..dims.cols];
        let rows = x.chunks_exact(dims.cols).zip(y.chunks_exact_mut(dims.cols));
        for ((x, y), stats) in rows.zip(stats) {
            let [squares] = sums([x], |[squares], [x]| [A::mul_add(x, x, squares)]);
            let reciprocal = 1.0 / (squares / dims.cols as f32 + dims.eps).sqrt();
            for c in 0..dims.cols {
                y[c] = x[c] * reciprocal * gamma[c];
            }
            *stats = reciprocal;
        }
    }
}

vectorised! {
    /// `dx` of a task's rows, and their `dgamma`.
    fn gradient_rows<A>(
        x: &[f32], stats: &[f32], gamma: &[f32], dy: &[f32], dx: &mut [f32], dgamma: &mut [f32],
    ) {
        let cols = gamma.len();
        let dgamma = &mut dgamma[..cols];
        dgamma.fill(0.0);
        let rows = x.chunks_exact(cols).zip(dy.chunks_exact(cols)).zip(dx.chunks_exact_mut(cols));
        for (((x, dy), dx), &reciprocal) in rows.zip(stats) {
            let [dot] = sums([x, dy, gamma], |[dot], [x, dy, gamma]| {
                [A::mul_add(dy * gamma, x * reciprocal, dot)]
            });
            let slope = -dot / cols as f32;
            for c in 0..cols {
                let value = x[c] * reciprocal;
                dgamma[c] = A::mul_add(dy[c], value, dgamma[c]);
                dx[c] = reciprocal * A::mul_add(value, slope, dy[c] * gamma[c]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;
    use crate::kernels::lanes::tests::portable;
    use crate::kernels::test_data::{assert_close, assert_same_bits, compute, random};

    const SHAPES: [(usize, usize); 6] = [(1, 1), (3, 7), (40, 33), (300, 64), (65, 768), (2, 5000)];
    const EPS: f32 = 1e-5;

    /// `[y, stats, dx, dgamma]`.
    fn run(rows: usize, cols: usize, threads: &Threads) -> Vec<Vec<f32>> {
        let dims = RmsNorm { rows, cols, eps: EPS };
        let (x, gamma, dy) = operands(rows, cols);
        let mut outputs = compute(dims, &[&x, &gamma], threads).unwrap();
        let reads: [&[f32]; 4] = [&x, &outputs[1], &gamma, &dy];
        outputs.extend(compute(RmsNormDx(dims), &reads, threads).unwrap());
        outputs
    }

    fn operands(rows: usize, cols: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
        (random(rows * cols, 1), random(cols, 2), random(rows * cols, 3))
    }

    #[test]
    fn values_match_the_definition() {
        for (rows, cols) in SHAPES {
            let (x, gamma, dy) = operands(rows, cols);
            let mut want = vec![vec![], vec![], vec![], vec![0.0; cols]];
            for row in 0..rows {
                let at = |v: &[f32], c: usize| f64::from(v[row * cols + c]);
                let square: f64 = (0..cols).map(|c| at(&x, c).powi(2)).sum::<f64>() / cols as f64;
                let r = 1.0 / (square + f64::from(EPS)).sqrt();
                let g = |c: usize| at(&dy, c) * f64::from(gamma[c]);
                let dot: f64 = (0..cols).map(|c| g(c) * at(&x, c)).sum::<f64>() / cols as f64;
                want[1].push(r);
                for c in 0..cols {
                    want[0].push(at(&x, c) * r * f64::from(gamma[c]));
                    want[2].push(r * (g(c) - at(&x, c) * r * r * dot));
                    want[3][c] += at(&dy, c) * at(&x, c) * r;
                }
            }
            for got in
                [run(rows, cols, &Threads::new(1)), portable(|| run(rows, cols, &Threads::new(1)))]
            {
                for (got, want) in got.iter().zip(&want) {
                    // Sums of up to 5000 products near one, rounded to 2^-24 each.
                    assert_close(got, want, 1e-5, 1e-4);
                }
            }
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for (rows, cols) in SHAPES {
            assert_same_bits(|threads| run(rows, cols, threads));
        }
    }
}
