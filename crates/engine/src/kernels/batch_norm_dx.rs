//! Batch normalisation in training mode, backward, with the ReLU and the residual of its tail.
//!
//! Two passes. The first takes `g`, the gradient behind the tail's mask, and sums `g` and `g · (x -
//! mean)` per channel; for [`Tail::AddRelu`] it also writes `g`, which is the gradient of the
//! residual. The second computes `dx = scale · (g - Σg / n - (x - mean) · Σ g (x - mean) / (n (var
//! + eps)))`. For [`Tail::Relu`] both recompute the mask from `x`, so nothing but `x` need be kept.

use super::KernelError;
use super::batch_norm::{normalised, scales};
use super::columns::{self, CHUNK, Terms, sum_terms};
use super::lanes::{Arithmetic, vectorised};
use super::tasks::{chunks_mut2, rows_per_task};
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{BatchNormDx, Tail};

impl Kernel for BatchNormDx {
    fn scratch(&self, _: usize) -> usize {
        // Partial sums, and three numbers per channel.
        (columns::tasks(self.norm.rows) * 2 + 3) * self.norm.channels
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let BatchNormDx { norm, two } = self;
        let channels = norm.channels;
        let dy = if norm.tail == Tail::Linear { 3 } else { 4 };
        let reads = Reads {
            x: call.read(0),
            stats: call.read(1),
            gamma: call.read(2),
            beta: call.read_if(norm.tail == Tail::Relu, 3),
            y: call.read_if(norm.tail == Tail::AddRelu, 3),
            dy: call.read(dy),
            dy2: call.read_if(*two, dy + 1),
        };
        let [dx, dgamma, dbeta]: [&mut [f32]; 3] = [0, 1, 2].map(|k| call.write(k));
        let mut dresidual = (norm.tail == Tail::AddRelu).then(|| call.write(3));

        let (coefficients, partials) = call.scratch().split_at_mut(3 * channels);
        let (scale, coefficients) = coefficients.split_at_mut(channels);
        let partials = &mut partials[..columns::tasks(norm.rows) * 2 * channels];
        scales(norm, reads.stats, reads.gamma, scale);
        let channel =
            Channels { mean: &reads.stats[..channels], scale, beta: reads.beta.unwrap_or(&[]) };

        let rows = columns::rows_per_task(norm.rows) * channels;
        match dresidual.as_deref_mut() {
            Some(dresidual) => chunks_mut2(
                call.threads,
                (partials, 2 * channels),
                (dresidual, rows),
                |task, partial, dresidual| {
                    sum_gradient(&reads, channel, task * rows, partial, dresidual)
                },
            ),
            None => call.threads.chunks_mut(partials, 2 * channels, &|task, partial| {
                sum_gradient(&reads, channel, task * rows, partial, &mut []);
            }),
        }
        columns::join(partials, 2 * channels, dbeta, call.threads);
        columns::join(&partials[channels..], 2 * channels, dgamma, call.threads);

        let (offset, slope) = coefficients.split_at_mut(channels);
        let variance = &reads.stats[channels..];
        for c in 0..channels {
            let spread = variance[c] + norm.eps;
            offset[c] = -dbeta[c] / norm.rows as f32;
            slope[c] = -dgamma[c] / (spread * norm.rows as f32);
            dgamma[c] /= spread.sqrt();
        }
        let (offset, slope, dresidual) = (&*offset, &*slope, dresidual.as_deref());
        let elements = rows_per_task(channels) * channels;
        call.threads.chunks_mut(dx, elements, &|task, dx| {
            let range = task * elements..task * elements + dx.len();
            let x = &reads.x[range.clone()];
            // With a residual, the masked gradient has been written already.
            let (dy, dy2) = match dresidual {
                Some(g) => (&g[range], None),
                None => (&reads.dy[range.clone()], reads.dy2.map(|dy2| &dy2[range])),
            };
            input_gradient(x, dy, dy2, channel, offset, slope, dx);
        });
        Ok(())
    }
}

/// What the op reads.
#[derive(Clone, Copy, Debug)]
struct Reads<'a> {
    /// The input of the forward.
    x: &'a [f32],
    /// Mean and biased variance.
    stats: &'a [f32],
    /// The factor of each channel.
    gamma: &'a [f32],
    /// The offset of each channel, if the tail is [`Tail::Relu`].
    beta: Option<&'a [f32]>,
    /// The output of the forward, if the tail is [`Tail::AddRelu`].
    y: Option<&'a [f32]>,
    /// The gradient of `y`, or its first summand.
    dy: &'a [f32],
    /// The second summand of the gradient of `y`.
    dy2: Option<&'a [f32]>,
}

/// The forward's numbers of each channel; `beta` is empty unless ReLU's mask is recomputed.
#[derive(Clone, Copy)]
struct Channels<'a> {
    mean: &'a [f32],
    scale: &'a [f32],
    beta: &'a [f32],
}

/// Which mask the gradient passes and whether it has two summands, known to the compiler.
struct Gradient<'a, A, const RELU: bool, const ADD: bool, const TWO: bool> {
    reads: &'a Reads<'a>,
    channel: Channels<'a>,
    /// Offset of the task's first element in the operands.
    start: usize,
    dresidual: &'a mut [f32],
    arithmetic: std::marker::PhantomData<A>,
}

impl<A: Arithmetic, const RELU: bool, const ADD: bool, const TWO: bool> Terms<2>
    for Gradient<'_, A, RELU, ADD, TWO>
{
    #[inline(always)]
    fn add(&mut self, at: usize, column: usize, width: usize, sums: &mut [[f32; CHUNK]; 2]) {
        let here = self.start + at..self.start + at + width;
        let (x, dy) = (&self.reads.x[here.clone()], &self.reads.dy[here.clone()]);
        // What a case does not read is some other operand here, which the compiler drops.
        let dy2 = &self.reads.dy2.filter(|_| TWO).unwrap_or(self.reads.dy)[here.clone()];
        let y = &self.reads.y.filter(|_| ADD).unwrap_or(self.reads.x)[here];
        let columns = column..column + width;
        let mean = &self.channel.mean[columns.clone()];
        let scale = &self.channel.scale[columns.clone()];
        let beta = if RELU { &self.channel.beta[columns] } else { mean };
        let [total, dot] = sums;
        let (total, dot) = (&mut total[..width], &mut dot[..width]);
        let mut masked = [0.0; CHUNK];
        for c in 0..width {
            let centred = x[c] - mean[c];
            let mut g = if TWO { dy[c] + dy2[c] } else { dy[c] };
            if RELU && normalised::<A>(centred, scale[c], beta[c]) <= 0.0 {
                g = 0.0;
            }
            if ADD {
                g = if y[c] <= 0.0 { 0.0 } else { g };
                masked[c] = g;
            }
            total[c] += g;
            dot[c] = A::mul_add(g, centred, dot[c]);
        }
        if ADD {
            self.dresidual[at..at + width].copy_from_slice(&masked[..width]);
        }
    }
}

vectorised! {
    /// Sums `g` and `g · (x - mean)` over the rows of a task that starts at element `start`.
    fn sum_gradient<A>(
        reads: &Reads, channel: Channels, start: usize,
        out: &mut [f32], dresidual: &mut [f32],
    ) {
        macro_rules! sum {
            ($relu:literal, $add:literal, $two:literal) => {{
                let channels = channel.mean.len();
                let rows = columns::rows_per_task(reads.x.len() / channels);
                let rows = rows.min((reads.x.len() - start) / channels);
                let mut terms = Gradient::<A, $relu, $add, $two> {
                    reads, channel, start, dresidual, arithmetic: std::marker::PhantomData,
                };
                sum_terms(&mut terms, rows, channels, out);
            }};
        }
        match (!channel.beta.is_empty(), reads.y.is_some(), reads.dy2.is_some()) {
            (true, _, false) => sum!(true, false, false),
            (true, _, true) => sum!(true, false, true),
            (_, true, false) => sum!(false, true, false),
            (_, true, true) => sum!(false, true, true),
            (_, _, false) => sum!(false, false, false),
            (_, _, true) => sum!(false, false, true),
        }
    }
}

vectorised! {
    /// `dx = scale · (g + offset + (x - mean) · slope)` over whole rows.
    fn input_gradient<A>(
        x: &[f32], dy: &[f32], dy2: Option<&[f32]>, channel: Channels,
        offset: &[f32], slope: &[f32], dx: &mut [f32],
    ) {
        match (!channel.beta.is_empty(), dy2) {
            (true, None) => gradient_rows::<A, true, false>(x, dy, dy, channel, offset, slope, dx),
            (true, Some(dy2)) => {
                gradient_rows::<A, true, true>(x, dy, dy2, channel, offset, slope, dx)
            }
            (false, None) => {
                gradient_rows::<A, false, false>(x, dy, dy, channel, offset, slope, dx)
            }
            (false, Some(dy2)) => {
                gradient_rows::<A, false, true>(x, dy, dy2, channel, offset, slope, dx)
            }
        }
    }
}

#[inline(always)]
fn gradient_rows<A: Arithmetic, const RELU: bool, const TWO: bool>(
    x: &[f32],
    dy: &[f32],
    dy2: &[f32],
    channel: Channels,
    offset: &[f32],
    slope: &[f32],
    dx: &mut [f32],
) {
    let channels = channel.mean.len();
    let (mean, scale) = (channel.mean, &channel.scale[..channels]);
    let beta = if RELU { &channel.beta[..channels] } else { mean };
    let (offset, slope) = (&offset[..channels], &slope[..channels]);
    let rows = x
        .chunks_exact(channels)
        .zip(dy.chunks_exact(channels))
        .zip(dy2.chunks_exact(channels))
        .zip(dx.chunks_exact_mut(channels));
    for (((x, dy), dy2), dx) in rows {
        for c in 0..channels {
            let centred = x[c] - mean[c];
            let mut g = if TWO { dy[c] + dy2[c] } else { dy[c] };
            if RELU && normalised::<A>(centred, scale[c], beta[c]) <= 0.0 {
                g = 0.0;
            }
            dx[c] = scale[c] * A::mul_add(centred, slope[c], g + offset[c]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;
    use crate::kernels::lanes::tests::portable;
    use crate::kernels::test_data::{assert_close, assert_same_bits, compute, random};
    use rekindle_program::op::{BatchNorm, BatchNormStats};

    const SHAPES: [(usize, usize); 5] = [(2, 1), (31, 3), (65, 41), (1000, 40), (4100, 64)];

    fn cases() -> impl Iterator<Item = (BatchNorm, bool)> {
        let tails = [Tail::Linear, Tail::Relu, Tail::AddRelu];
        SHAPES.into_iter().flat_map(move |(rows, channels)| {
            tails.into_iter().flat_map(move |tail| {
                // The wide eps keeps the scale near one for two rows.
                [false, true].map(|two| (BatchNorm { rows, channels, eps: 0.1, tail }, two))
            })
        })
    }

    /// `x, residual, dy, dy2`, then `gamma, beta`.
    fn operands(dims: &BatchNorm) -> [Vec<f32>; 6] {
        let len = dims.rows * dims.channels;
        let lens = [len, len, len, len, dims.channels, dims.channels];
        std::array::from_fn(|i| random(lens[i], 1 + i as u64))
    }

    /// The forward and the backward: `[dx, dgamma, dbeta, dresidual, y, stats]`; without a residual
    /// its gradient is zero.
    fn run(norm: &BatchNorm, two: bool, threads: &Threads) -> Vec<Vec<f32>> {
        let [x, residual, dy, dy2, gamma, beta] = operands(norm);
        let stats = compute(BatchNormStats(*norm), &[&x], threads).unwrap().remove(0);
        let mut reads: Vec<&[f32]> = vec![&x, &stats, &gamma, &beta];
        reads.extend((norm.tail == Tail::AddRelu).then_some(&residual[..]));
        let y = compute(*norm, &reads, threads).unwrap().remove(0);
        reads.truncate(3);
        match norm.tail {
            Tail::Linear => {}
            Tail::Relu => reads.push(&beta),
            Tail::AddRelu => reads.push(&y),
        }
        reads.push(&dy);
        reads.extend(two.then_some(&dy2[..]));
        let mut outputs = compute(BatchNormDx { norm: *norm, two }, &reads, threads).unwrap();
        outputs.resize(4, vec![0.0; x.len()]);
        outputs.extend([y, stats]);
        outputs
    }

    /// `[dx, dgamma, dbeta, dresidual]` in `f64`, with the mask of the given `y`.
    fn reference(dims: &BatchNorm, two: bool, y: &[f32]) -> [Vec<f64>; 4] {
        let [x, _, dy, dy2, gamma, _] = operands(dims).map(|v| crate::kernels::test_data::wide(&v));
        let (channels, n) = (dims.channels, dims.rows as f64);
        let masked = |i: usize| match dims.tail {
            Tail::Relu | Tail::AddRelu if y[i] <= 0.0 => 0.0,
            _ => dy[i] + if two { dy2[i] } else { 0.0 },
        };
        let g: Vec<f64> = (0..x.len()).map(masked).collect();
        let (mut dx, mut dgamma, mut dbeta) = (vec![0.0; x.len()], vec![], vec![]);
        for (c, gamma) in gamma.iter().enumerate() {
            let rows = || (c..x.len()).step_by(channels);
            let mean = rows().map(|i| x[i]).sum::<f64>() / n;
            let variance = rows().map(|i| (x[i] - mean).powi(2)).sum::<f64>() / n;
            let deviation = (variance + f64::from(dims.eps)).sqrt();
            let sum: f64 = rows().map(|i| g[i]).sum();
            let dot: f64 = rows().map(|i| g[i] * (x[i] - mean) / deviation).sum();
            for i in rows() {
                let value = (x[i] - mean) / deviation;
                dx[i] = gamma / deviation * (g[i] - sum / n - value * dot / n);
            }
            dgamma.push(dot);
            dbeta.push(sum);
        }
        let dresidual = if dims.tail == Tail::AddRelu { g } else { vec![0.0; x.len()] };
        [dx, dgamma, dbeta, dresidual]
    }

    #[test]
    fn gradients_match_plain_loops() {
        let threads = Threads::new(1);
        for (dims, two) in cases() {
            let fast = run(&dims, two, &threads);
            let slow = portable(|| run(&dims, two, &threads));
            for got in [&fast, &slow] {
                // The mask itself is compared bit for bit in the next test.
                let want = reference(&dims, two, &got[4]);
                // Gradients up to 6 times a scale up to 10, half a dozen roundings.
                assert_close(&got[0], &want[0], 2e-6, 1e-5);
                let sums = 1e-6 * (8.0 + dims.rows.div_ceil(columns::BLOCK) as f64);
                assert_close(&got[1], &want[1], 2e-6, sums);
                assert_close(&got[2], &want[2], 2e-6, sums);
                assert_close(&got[3], &want[3], 1e-7, 0.0);
            }
        }
    }

    #[test]
    fn the_recomputed_mask_is_the_forwards() {
        // Channels whose values lie around zero within rounding: any other arithmetic than the
        // forward's would give another mask here.
        let dims = BatchNorm { rows: 512, channels: 64, eps: 1e-5, tail: Tail::Relu };
        let x: Vec<f32> = random(512 * 64, 9).iter().map(|x| x + 100.0).collect();
        let threads = Threads::new(2);
        let stats = compute(BatchNormStats(dims), &[&x], &threads).unwrap().remove(0);
        // Each channel's offset puts one of its own rows at zero, up to rounding.
        let gamma = vec![1.0; 64];
        let beta: Vec<f32> = (0..64)
            .map(|c| (stats[c] - x[c * 64 + c]) / (stats[64 + c] + dims.eps).sqrt())
            .collect();
        let y = compute(dims, &[&x, &stats, &gamma, &beta], &threads).unwrap().remove(0);
        // A gradient of ones: the sums per channel count the elements that pass.
        let (norm, two, dy) = (dims, false, vec![1.0; x.len()]);
        let reads: [&[f32]; 5] = [&x, &stats, &gamma, &beta, &dy];
        let dbeta = compute(BatchNormDx { norm, two }, &reads, &threads).unwrap().remove(2);
        for (c, &passed) in dbeta.iter().enumerate() {
            let positive = y.iter().skip(c).step_by(64).filter(|&&y| y > 0.0).count();
            assert_eq!(passed, positive as f32, "channel {c}");
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for (dims, two) in cases() {
            assert_same_bits(|threads| run(&dims, two, threads));
        }
    }
}
