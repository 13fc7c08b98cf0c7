//! Batch normalisation in training mode, forward: statistics, normalisation, running averages.
//!
//! **Statistics** are taken in one pass over `x`. Rows go in blocks of [`BLOCK`]; within a block,
//! deviations `d` from the block's first row are summed with their squares, which gives the block's
//! mean and its sum of squared deviations `Σd² - (Σd)²/n`. A shift that is itself a sample is never
//! further than `√n` deviations from the mean, so this subtraction magnifies rounding by at most
//! `n + 1 = 65`, for any mean, and by about 2 as a rule. Blocks are joined in `f64` by
//! `M = Σ (M_b + n_b (m_b - m)²)`, which is exact.
//!
//! **Normalisation** is `(x - mean) · scale + beta` with `scale = gamma / √(var + eps)`: the
//! subtraction first, so that a large mean costs no accuracy. The backward recomputes ReLU's mask
//! with the same function, [`normalised`], hence with the same bits.

use super::KernelError;
use super::activation::relu_of;
use super::columns::{self, BLOCK, CHUNK};
use super::lanes::{Arithmetic, vectorised};
use super::tasks::{chunks_mut2, rows_per_task};
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{BatchNorm, BatchNormStats, BatchNormUpdate, Tail};

/// Channels of a task when partial statistics are joined, and side by side within one.
const JOINED: usize = 64;

/// Numbers that a task leaves per channel: the high and the low part of the mean, which keep the
/// distance between tasks accurate when the mean is large, and the squared deviations.
const PARTIAL: usize = 3;

impl Kernel for BatchNormStats {
    fn scratch(&self, _: usize) -> usize {
        columns::tasks(self.0.rows) * PARTIAL * self.0.channels
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (x, channels): (&[f32], usize) = (call.read(0), self.0.channels);
        let partials = &mut call.scratch()[..self.scratch(call.threads.count())];
        let elements = columns::rows_per_task(self.0.rows) * channels;
        call.threads.chunks_mut(partials, PARTIAL * channels, &|task, partial| {
            let range = task * elements..x.len().min((task + 1) * elements);
            task_moments(channels, &x[range], partial);
        });
        let stats: &mut [f32] = call.write(0);
        let (mean, variance) = stats.split_at_mut(channels);
        let (mean, variance) = ((mean, JOINED), (variance, JOINED));
        chunks_mut2(call.threads, mean, variance, |task, mean, variance| {
            join_moments(&self.0, &partials[task * JOINED..], mean, variance);
        });
        Ok(())
    }
}

impl Kernel for BatchNorm {
    fn scratch(&self, _: usize) -> usize {
        self.channels
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let [x, stats, gamma, beta]: [&[f32]; 4] = [0, 1, 2, 3].map(|k| call.read(k));
        let residual: Option<&[f32]> = call.read_if(self.tail == Tail::AddRelu, 4);
        let channels = self.channels;
        let scale = &mut call.scratch()[..channels];
        scales(self, stats, gamma, scale);
        let (scale, mean) = (&*scale, &stats[..channels]);
        let elements = rows_per_task(channels) * channels.max(1);
        call.threads.chunks_mut(call.write(0), elements, &|task, y| {
            let range = task * elements..task * elements + y.len();
            let x = &x[range.clone()];
            match (self.tail, residual) {
                (Tail::Relu, _) => normalise_relu(x, mean, scale, beta, y),
                (_, Some(residual)) => normalise_add(x, &residual[range], mean, scale, beta, y),
                (_, None) => normalise(x, mean, scale, beta, y),
            }
        });
        Ok(())
    }
}

/// The running variance takes the unbiased one, which one row alone does not have: it is NaN then,
/// as in PyTorch's kernel.
impl Kernel for BatchNormUpdate {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let stats: &[f32] = call.read(0);
        let (mean, variance) = stats.split_at(self.norm.channels);
        let (running_mean, running_var): (&mut [f32], &mut [f32]) =
            (call.update(1), call.update(2));
        let batches: &mut [i64] = call.update(3);
        let rows = self.norm.rows as f64;
        let unbias = (rows / (rows - 1.0)) as f32;
        let update = |running: &mut f32, batch: f32| {
            *running = (1.0 - self.momentum) * *running + self.momentum * batch;
        };
        for (running, &batch) in running_mean.iter_mut().zip(mean) {
            update(running, batch);
        }
        for (running, &batch) in running_var.iter_mut().zip(variance) {
            update(running, batch * unbias);
        }
        batches[0] += 1;
        Ok(())
    }
}

vectorised! {
    /// Mean and sum of squared deviations of each channel over the rows of `x`, into
    /// `out: [PARTIAL, channels]`.
    fn task_moments<A>(channels: usize, x: &[f32], out: &mut [f32]) {
        let rows = x.len() / channels;
        for channel in (0..channels).step_by(CHUNK) {
            let width = CHUNK.min(channels - channel);
            let run = |row: usize| &x[row * channels + channel..][..width];
            let (mut count, mut mean, mut squares) = (0.0, [0.0f64; CHUNK], [0.0f64; CHUNK]);
            for block in (0..rows).step_by(BLOCK) {
                let end = rows.min(block + BLOCK);
                let shift = run(block);
                let (mut sum, mut square) = ([0.0f32; CHUNK], [0.0f32; CHUNK]);
                for row in block + 1..end {
                    let x = run(row);
                    for l in 0..width {
                        let d = x[l] - shift[l];
                        sum[l] += d;
                        square[l] = A::mul_add(d, d, square[l]);
                    }
                }
                let n = (end - block) as f64;
                let share = n / (count + n);
                for l in 0..width {
                    let d = f64::from(sum[l]) / n;
                    let delta = f64::from(shift[l]) + d - mean[l];
                    squares[l] += f64::from(square[l]) - n * d * d + delta * delta * count * share;
                    mean[l] += delta * share;
                }
                count += n;
            }
            for l in 0..width {
                let high = mean[l] as f32;
                out[channel + l] = high;
                out[channels + channel + l] = (mean[l] - f64::from(high)) as f32;
                // The subtraction above may leave a rounding error below zero.
                out[2 * channels + channel + l] = squares[l].max(0.0) as f32;
            }
        }
    }
}

vectorised! {
    /// Joins the tasks' moments of up to [`JOINED`] channels; `partials` starts at the first of
    /// them.
    fn join_moments<A>(
        dims: &BatchNorm, partials: &[f32], mean: &mut [f32], variance: &mut [f32],
    ) {
        let rows = columns::rows_per_task(dims.rows);
        let rows_of = |task: usize| rows.min(dims.rows - task * rows) as f64;
        let mean_of = |partial: &[f32], l: usize| {
            f64::from(partial[l]) + f64::from(partial[dims.channels + l])
        };
        let (mut total, mut squares) = ([0.0f64; JOINED], [0.0f64; JOINED]);
        for (task, partial) in partials.chunks(PARTIAL * dims.channels).enumerate() {
            for (l, total) in total[..mean.len()].iter_mut().enumerate() {
                *total += rows_of(task) * mean_of(partial, l);
            }
        }
        for total in &mut total {
            *total /= dims.rows as f64;
        }
        for (task, partial) in partials.chunks(PARTIAL * dims.channels).enumerate() {
            for l in 0..mean.len() {
                let delta = mean_of(partial, l) - total[l];
                let within = f64::from(partial[2 * dims.channels + l]);
                squares[l] += within + rows_of(task) * delta * delta;
            }
        }
        for l in 0..mean.len() {
            mean[l] = total[l] as f32;
            variance[l] = (squares[l] / dims.rows as f64) as f32;
        }
    }
}

/// `gamma / √(variance + eps)` for each channel.
pub(super) fn scales(dims: &BatchNorm, stats: &[f32], gamma: &[f32], scale: &mut [f32]) {
    let variance = &stats[dims.channels..];
    for ((scale, &variance), &gamma) in scale.iter_mut().zip(variance).zip(gamma) {
        *scale = gamma / (variance + dims.eps).sqrt();
    }
}

/// The normalised value of `centred = x - mean`.
#[inline(always)]
pub(super) fn normalised<A: Arithmetic>(centred: f32, scale: f32, beta: f32) -> f32 {
    A::mul_add(centred, scale, beta)
}

vectorised! {
    fn normalise<A>(x: &[f32], mean: &[f32], scale: &[f32], beta: &[f32], y: &mut [f32]) {
        let channels = mean.len();
        let (scale, beta) = (&scale[..channels], &beta[..channels]);
        for (x, y) in x.chunks_exact(channels).zip(y.chunks_exact_mut(channels)) {
            for c in 0..channels {
                y[c] = normalised::<A>(x[c] - mean[c], scale[c], beta[c]);
            }
        }
    }
}

vectorised! {
    fn normalise_relu<A>(x: &[f32], mean: &[f32], scale: &[f32], beta: &[f32], y: &mut [f32]) {
        let channels = mean.len();
        let (scale, beta) = (&scale[..channels], &beta[..channels]);
        for (x, y) in x.chunks_exact(channels).zip(y.chunks_exact_mut(channels)) {
            for c in 0..channels {
                y[c] = relu_of(normalised::<A>(x[c] - mean[c], scale[c], beta[c]));
            }
        }
    }
}

vectorised! {
    fn normalise_add<A>(
        x: &[f32], residual: &[f32], mean: &[f32], scale: &[f32], beta: &[f32], y: &mut [f32],
    ) {
        let channels = mean.len();
        let (scale, beta) = (&scale[..channels], &beta[..channels]);
        let rows = x
            .chunks_exact(channels)
            .zip(residual.chunks_exact(channels))
            .zip(y.chunks_exact_mut(channels));
        for ((x, residual), y) in rows {
            for c in 0..channels {
                let z = normalised::<A>(x[c] - mean[c], scale[c], beta[c]);
                y[c] = relu_of(z + residual[c]);
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

    const SHAPES: [(usize, usize); 7] =
        [(2, 1), (31, 3), (65, 8), (64, 41), (1000, 100), (5000, 37), (4100, 64)];

    fn stats_of(dims: &BatchNorm, x: &[f32], threads: &Threads) -> Vec<f32> {
        compute(BatchNormStats(*dims), &[x], threads).unwrap().remove(0)
    }

    fn reference_stats(dims: &BatchNorm, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let n = dims.rows as f64;
        let moments = |c: usize| {
            let column = || x.iter().skip(c).step_by(dims.channels).map(|&x| f64::from(x));
            let mean = column().sum::<f64>() / n;
            (mean, column().map(|x| (x - mean).powi(2)).sum::<f64>() / n)
        };
        (0..dims.channels).map(moments).unzip()
    }

    #[track_caller]
    fn check_stats(dims: &BatchNorm, x: &[f32], mean_error: f64, variance_error: f64) {
        let threads = Threads::new(1);
        let (mean, variance) = reference_stats(dims, x);
        let fast = stats_of(dims, x, &threads);
        for got in [&fast, &portable(|| stats_of(dims, x, &threads))] {
            assert_close(&got[..dims.channels], &mean, 1e-7, mean_error);
            assert_close(&got[dims.channels..], &variance, variance_error, 0.0);
        }
    }

    fn plain(rows: usize, channels: usize) -> BatchNorm {
        BatchNorm { rows, channels, eps: 1e-5, tail: Tail::Linear }
    }

    #[test]
    fn statistics_match_plain_loops() {
        for (rows, channels) in SHAPES {
            // Deviations of up to 6 are summed: 64 roundings of half a unit of about 16.
            check_stats(&plain(rows, channels), &random(rows * channels, 1), 3e-7, 2e-6);
        }
    }

    #[test]
    fn statistics_survive_large_means() {
        for (rows, channels) in SHAPES {
            let x: Vec<f32> = random(rows * channels, 1).iter().map(|x| x + 1e4).collect();
            // As without the offset, while the naive E[x²] - E[x]² would be off by the whole
            // variance; the mean itself is stored as f32.
            check_stats(&plain(rows, channels), &x, 1e-3, 2e-6);
        }
    }

    #[test]
    fn statistics_survive_an_outlier_in_the_shift() {
        let (rows, channels) = (4100, 33);
        let mut x = random(rows * channels, 1);
        for block in x.chunks_mut(BLOCK * channels) {
            block[..channels].fill(1e4);
        }
        // The worst case: deviations from the shift are 1e4 throughout, √65 times the true one, so
        // their squares are 65 times as large and their sums rounded accordingly.
        check_stats(&plain(rows, channels), &x, 1e4 * 1.2e-7, 65.0 * 1.2e-7);
    }

    #[test]
    fn a_constant_channel_has_no_variance() {
        let dims = plain(777, 5);
        let stats = stats_of(&dims, &[0.1; 777 * 5], &Threads::new(1));
        assert_eq!(stats[..5], [0.1; 5]);
        assert_eq!(stats[5..], [0.0; 5]);
    }

    fn run(dims: &BatchNorm, x: &[f32], residual: &[f32], threads: &Threads) -> Vec<Vec<f32>> {
        let stats = stats_of(dims, x, threads);
        let (gamma, beta) = (random(dims.channels, 5), random(dims.channels, 6));
        let mut reads = vec![x, &stats, &gamma, &beta];
        reads.extend((dims.tail == Tail::AddRelu).then_some(residual));
        let y = compute(*dims, &reads, threads).unwrap().remove(0);
        vec![y, stats]
    }

    #[test]
    fn normalisation_matches_plain_loops_at_any_thread_count() {
        for (rows, channels) in SHAPES {
            for tail in [Tail::Linear, Tail::Relu, Tail::AddRelu] {
                // The wide eps keeps the scale near one for two rows.
                let dims = BatchNorm { rows, channels, eps: 0.1, tail };
                let (x, residual) = (random(rows * channels, 3), random(rows * channels, 4));
                let (gamma, beta) = (random(channels, 5), random(channels, 6));
                let (mean, variance) = reference_stats(&dims, &x);
                let value = |i: usize| {
                    let c = i % channels;
                    let scale = f64::from(gamma[c]) / (variance[c] + f64::from(dims.eps)).sqrt();
                    let z = (f64::from(x[i]) - mean[c]) * scale + f64::from(beta[c]);
                    match tail {
                        Tail::Linear => z,
                        Tail::Relu => z.max(0.0),
                        Tail::AddRelu => (z + f64::from(residual[i])).max(0.0),
                    }
                };
                let want: Vec<f64> = (0..x.len()).map(value).collect();
                let threads = Threads::new(1);
                // Values up to about 10, four roundings, and the statistics' own error.
                assert_close(&run(&dims, &x, &residual, &threads)[0], &want, 2e-6, 5e-6);
                let slow = portable(|| run(&dims, &x, &residual, &threads));
                assert_close(&slow[0], &want, 2e-6, 5e-6);
                assert_same_bits(|threads| run(&dims, &x, &residual, threads));
            }
        }
    }

    #[test]
    fn running_averages_take_the_unbiased_variance() {
        let (norm, momentum) = (plain(5, 2), 0.5);
        let op = BatchNormUpdate { norm, momentum };
        let reads: [&[f32]; 4] = [&[10.0, 20.0, 8.0, 16.0], &[1.0, 2.0], &[3.0, 4.0], &[6.0]];
        let updated = compute(op, &reads, &Threads::new(1)).unwrap();
        assert_eq!(updated, [&[5.5, 11.0][..], &[6.5, 12.0], &[7.0]]);
    }
}
