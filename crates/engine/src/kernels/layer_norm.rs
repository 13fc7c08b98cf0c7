//! Layer normalisation over the last axis, forward and backward.
//!
//! A row stays in the first-level cache, so its mean and its squared deviations are two passes; the
//! second corrects the first's rounding (`Σd² - (Σd)²/n`), which keeps large means accurate. The
//! backward writes `dx` row by row and adds `dgamma` and `dbeta` up per task, then over tasks in
//! their order.

use super::KernelError;
use super::columns;
use super::lanes::{sum, sums, vectorised};
use super::tasks::{chunks_mut2, rows_per_task};
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{LayerNorm, LayerNormDx};

impl Kernel for LayerNorm {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let [x, gamma, beta] = [0, 1, 2].map(|k| call.read(k));
        let rows = rows_per_task(self.cols);
        let elements = rows * self.cols;
        let (y, stats) = ((call.write(0), elements), (call.write(1), 2 * rows));
        chunks_mut2(call.threads, y, stats, |task, y, stats| {
            let x = &x[task * elements..task * elements + y.len()];
            normalise_rows(self, x, gamma, beta, y, stats);
        });
        Ok(())
    }
}

impl Kernel for LayerNormDx {
    fn scratch(&self, _: usize) -> usize {
        columns::tasks(self.0.rows) * 2 * self.0.cols
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let cols = self.0.cols;
        let [x, stats, gamma, dy] = [0, 1, 2, 3].map(|k| call.read(k));
        let partials = &mut call.scratch()[..self.scratch(call.threads.count())];
        let rows = columns::rows_per_task(self.0.rows);
        let (dx, sums) = ((call.write(0), rows * cols), (&mut *partials, 2 * cols));
        chunks_mut2(call.threads, dx, sums, |task, dx, partial| {
            let range = task * rows * cols..task * rows * cols + dx.len();
            let stats = &stats[task * rows * 2..][..dx.len() / cols * 2];
            let (x, dy) = (&x[range.clone()], &dy[range]);
            let (dgamma, dbeta) = partial.split_at_mut(cols);
            gradient_rows(x, stats, gamma, dy, dx, dgamma, dbeta);
        });
        columns::join(partials, 2 * cols, call.write(1), call.threads);
        columns::join(&partials[cols..], 2 * cols, call.write(2), call.threads);
        Ok(())
    }
}

vectorised! {
    fn normalise_rows<A>(
        dims: &LayerNorm, x: &[f32], gamma: &[f32], beta: &[f32], y: &mut [f32], stats: &mut [f32],
    ) {
        let n = dims.cols as f32;
        let (gamma, beta) = (&gamma[..dims.cols], &beta[..dims.cols]);
        let rows = x.chunks_exact(dims.cols).zip(y.chunks_exact_mut(dims.cols));
        for ((x, y), stats) in rows.zip(stats.chunks_exact_mut(2)) {
            let near = sum(x) / n;
            let [residue, squares] = sums([x], |[residue, squares], [x]| {
                let d = x - near;
                [residue + d, A::mul_add(d, d, squares)]
            });
            let mean = near + residue / n;
            let variance = ((squares - residue * (residue / n)) / n).max(0.0);
            let reciprocal = 1.0 / (variance + dims.eps).sqrt();
            for c in 0..dims.cols {
                y[c] = A::mul_add((x[c] - mean) * reciprocal, gamma[c], beta[c]);
            }
            stats[0] = mean;
            stats[1] = reciprocal;
        }
    }
}

vectorised! {
    /// `dx` of a task's rows, and their `[dgamma, dbeta]`.
    fn gradient_rows<A>(
        x: &[f32], stats: &[f32], gamma: &[f32], dy: &[f32],
        dx: &mut [f32], dgamma: &mut [f32], dbeta: &mut [f32],
    ) {
        let cols = gamma.len();
        let (dgamma, dbeta) = (&mut dgamma[..cols], &mut dbeta[..cols]);
        dgamma.fill(0.0);
        dbeta.fill(0.0);
        let rows = x
            .chunks_exact(cols)
            .zip(dy.chunks_exact(cols))
            .zip(dx.chunks_exact_mut(cols))
            .zip(stats.chunks_exact(2));
        for (((x, dy), dx), stats) in rows {
            let (mean, reciprocal) = (stats[0], stats[1]);
            let [total, dot] = sums([x, dy, gamma], |[total, dot], [x, dy, gamma]| {
                let g = dy * gamma;
                [total + g, A::mul_add(g, (x - mean) * reciprocal, dot)]
            });
            let average = total / cols as f32;
            let slope = -dot / cols as f32;
            for c in 0..cols {
                let value = (x[c] - mean) * reciprocal;
                dgamma[c] = A::mul_add(dy[c], value, dgamma[c]);
                dbeta[c] += dy[c];
                let scaled = A::mul_add(dy[c], gamma[c], -average);
                dx[c] = reciprocal * A::mul_add(value, slope, scaled);
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

    /// `[y, stats, dx, dgamma, dbeta]`.
    fn run(dims: &LayerNorm, operands: &[Vec<f32>; 4], threads: &Threads) -> Vec<Vec<f32>> {
        let [x, gamma, beta, dy] = operands;
        let mut outputs = compute(*dims, &[x, gamma, beta], threads).unwrap();
        let reads: [&[f32]; 4] = [x, &outputs[1], gamma, dy];
        let gradients = compute(LayerNormDx(*dims), &reads, threads).unwrap();
        outputs.extend(gradients);
        outputs
    }

    fn operands(dims: &LayerNorm, offset: f32) -> [Vec<f32>; 4] {
        let len = dims.rows * dims.cols;
        let x = random(len, 1).iter().map(|x| x + offset).collect();
        [x, random(dims.cols, 2), random(dims.cols, 3), random(len, 4)]
    }

    fn reference(dims: &LayerNorm, operands: &[Vec<f32>; 4]) -> Vec<Vec<f64>> {
        let [x, gamma, beta, dy] = operands.each_ref().map(|v| crate::kernels::test_data::wide(v));
        let (cols, n) = (dims.cols, dims.cols as f64);
        let (mut y, mut stats, mut dx) = (vec![], vec![], vec![]);
        let (mut dgamma, mut dbeta) = (vec![0.0; cols], vec![0.0; cols]);
        for (x, dy) in x.chunks(cols).zip(dy.chunks(cols)) {
            let mean = x.iter().sum::<f64>() / n;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let reciprocal = 1.0 / (variance + f64::from(dims.eps)).sqrt();
            stats.extend([mean, reciprocal]);
            let value = |c: usize| (x[c] - mean) * reciprocal;
            let average = (0..cols).map(|c| dy[c] * gamma[c]).sum::<f64>() / n;
            let dot = (0..cols).map(|c| dy[c] * gamma[c] * value(c)).sum::<f64>() / n;
            for c in 0..cols {
                y.push(value(c) * gamma[c] + beta[c]);
                dx.push(reciprocal * (dy[c] * gamma[c] - average - value(c) * dot));
                dgamma[c] += dy[c] * value(c);
                dbeta[c] += dy[c];
            }
        }
        vec![y, stats, dx, dgamma, dbeta]
    }

    #[test]
    fn both_directions_match_the_definition() {
        let threads = Threads::new(1);
        for (rows, cols) in SHAPES {
            // A wide eps keeps the reciprocal below 4, also for a single column, so that the
            // error of each value is a few roundings of numbers up to about 10.
            let dims = LayerNorm { rows, cols, eps: 0.1 };
            let operands = operands(&dims, 0.0);
            let want = reference(&dims, &operands);
            let fast = run(&dims, &operands, &threads);
            let plain = portable(|| run(&dims, &operands, &threads));
            for got in [fast, plain] {
                for (got, want) in got.iter().zip(&want).take(3) {
                    assert_close(got, want, 1e-6, 5e-6);
                }
                for (got, want) in got.iter().zip(&want).skip(3) {
                    assert_close(got, want, 1e-6, 1e-6 * rows as f64);
                }
            }
        }
    }

    #[test]
    fn a_large_mean_costs_no_accuracy() {
        let dims = LayerNorm { rows: 20, cols: 768, eps: 1e-5 };
        let operands = operands(&dims, 10_000.0);
        let got = run(&dims, &operands, &Threads::new(1));
        let want = reference(&dims, &operands);
        // The mean is stored as f32, to 5e-4; the deviation of 0.7 is good to 1e-6 nevertheless.
        assert_close(&got[0], &want[0], 1e-6, 2e-3);
        for (got, want) in got[1].chunks(2).zip(want[1].chunks(2)) {
            assert_close(&got[1..], &want[1..], 1e-6, 0.0);
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for (rows, cols) in SHAPES {
            let dims = LayerNorm { rows, cols, eps: 1e-5 };
            let operands = operands(&dims, 1.0);
            assert_same_bits(|threads| run(&dims, &operands, threads));
        }
    }
}
