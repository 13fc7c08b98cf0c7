//! Normalisation of groups of channels in each image, forward and backward.
//!
//! Channels lie side by side, so sums go over pixels, channel by channel, and then over the
//! channels of a group: blocks of pixels in `f32`, all else in `f64`. Images are the tasks. The
//! second pass over an image takes the deviations from the mean, so that large means cost no
//! accuracy.

use super::KernelError;
use super::columns::{self, CHUNK, Terms, sum_terms};
use super::lanes::vectorised;
use super::tasks::{chunks_mut2, chunks_mut3};
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{GroupNorm, GroupNormDx};

impl Kernel for GroupNorm {
    fn scratch(&self, _: usize) -> usize {
        self.batch * self.channels
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let [x, gamma, beta] = [0, 1, 2].map(|k| call.read(k));
        let image = self.pixels * self.channels;
        let (y, stats) = ((call.write(0), image), (call.write(1), 2 * self.groups));
        let sums = (&mut call.scratch()[..self.batch * self.channels], self.channels);
        chunks_mut3(call.threads, y, stats, sums, |n, y, stats, sums| {
            normalise(self, &x[n * image..(n + 1) * image], gamma, beta, y, stats, sums);
        });
        Ok(())
    }
}

impl Kernel for GroupNormDx {
    fn scratch(&self, _: usize) -> usize {
        2 * self.0.batch * self.0.channels
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let dims = &self.0;
        let [x, stats, gamma, dy] = [0, 1, 2, 3].map(|k| call.read(k));
        let (image, channels) = (dims.pixels * dims.channels, dims.channels);
        let partials = &mut call.scratch()[..2 * dims.batch * channels];
        let (dx, sums) = ((call.write(0), image), (&mut *partials, 2 * channels));
        chunks_mut2(call.threads, dx, sums, |n, dx, sums| {
            let range = n * image..(n + 1) * image;
            let stats = &stats[n * 2 * dims.groups..][..2 * dims.groups];
            gradient(dims, &x[range.clone()], stats, gamma, &dy[range], dx, sums);
        });
        columns::join(partials, 2 * channels, call.write(1), call.threads);
        columns::join(&partials[channels..], 2 * channels, call.write(2), call.threads);
        Ok(())
    }
}

/// The sum over the channels of a group.
#[inline(always)]
fn of_group(sums: &[f32], group: usize, count: usize) -> f64 {
    sums[group * count..][..count].iter().map(|&sum| f64::from(sum)).sum()
}

vectorised! {
    fn normalise<A>(
        dims: &GroupNorm, x: &[f32], gamma: &[f32], beta: &[f32],
        y: &mut [f32], stats: &mut [f32], sums: &mut [f32],
    ) {
        struct Values<'a>(&'a [f32]);
        impl Terms<1> for Values<'_> {
            #[inline(always)]
            fn add(&mut self, at: usize, _: usize, width: usize, sums: &mut [[f32; CHUNK]; 1]) {
                for (sum, x) in sums[0].iter_mut().zip(&self.0[at..at + width]) {
                    *sum += x;
                }
            }
        }
        struct Squares<'a> {
            x: &'a [f32],
            stats: &'a [f32],
            count: usize,
        }
        impl Terms<1> for Squares<'_> {
            #[inline(always)]
            fn add(&mut self, at: usize, first: usize, width: usize, sums: &mut [[f32; CHUNK]; 1]) {
                let x = &self.x[at..at + width];
                for (i, (sum, x)) in sums[0].iter_mut().zip(x).enumerate() {
                    let d = x - self.stats[(first + i) / self.count * 2];
                    *sum += d * d;
                }
            }
        }
        let (pixels, channels, count) = (dims.pixels, dims.channels, dims.channels / dims.groups);
        let elements = (pixels * count) as f64;
        sum_terms(&mut Values(x), pixels, channels, sums);
        for group in 0..dims.groups {
            stats[2 * group] = (of_group(sums, group, count) / elements) as f32;
        }
        sum_terms(&mut Squares { x, stats, count }, pixels, channels, sums);
        for group in 0..dims.groups {
            let variance = of_group(sums, group, count) / elements;
            stats[2 * group + 1] = (1.0 / (variance + f64::from(dims.eps)).sqrt()) as f32;
        }
        for (x, y) in x.chunks_exact(channels).zip(y.chunks_exact_mut(channels)) {
            for group in 0..dims.groups {
                let (mean, reciprocal) = (stats[2 * group], stats[2 * group + 1]);
                for c in group * count..(group + 1) * count {
                    y[c] = A::mul_add((x[c] - mean) * reciprocal, gamma[c], beta[c]);
                }
            }
        }
    }
}

vectorised! {
    /// `dx` of an image, and its `[dgamma, dbeta]`.
    fn gradient<A>(
        dims: &GroupNorm, x: &[f32], stats: &[f32], gamma: &[f32], dy: &[f32],
        dx: &mut [f32], sums: &mut [f32],
    ) {
        struct Both<'a> {
            x: &'a [f32],
            dy: &'a [f32],
            stats: &'a [f32],
            count: usize,
        }
        impl Terms<2> for Both<'_> {
            #[inline(always)]
            fn add(&mut self, at: usize, first: usize, width: usize, sums: &mut [[f32; CHUNK]; 2]) {
                let [dots, totals] = sums;
                let each = self.x[at..at + width].iter().zip(&self.dy[at..at + width]);
                let sums = dots.iter_mut().zip(totals);
                for (i, ((x, dy), (dot, total))) in each.zip(sums).enumerate() {
                    let stats = &self.stats[(first + i) / self.count * 2..][..2];
                    *dot += dy * ((x - stats[0]) * stats[1]);
                    *total += dy;
                }
            }
        }
        let (pixels, channels, count) = (dims.pixels, dims.channels, dims.channels / dims.groups);
        sum_terms(&mut Both { x, dy, stats, count }, pixels, channels, sums);
        let (dgamma, dbeta) = sums.split_at(channels);
        let elements = (pixels * count) as f64;
        for group in 0..dims.groups {
            let own = group * count..(group + 1) * count;
            let weighted = |sums: &[f32]| -> f32 {
                let terms = own.clone().map(|c| f64::from(gamma[c]) * f64::from(sums[c]));
                (terms.sum::<f64>() / elements) as f32
            };
            let (slope, average) = (weighted(dgamma), weighted(dbeta));
            let (mean, reciprocal) = (stats[2 * group], stats[2 * group + 1]);
            for pixel in 0..pixels {
                for c in own.clone() {
                    let at = pixel * channels + c;
                    let value = (x[at] - mean) * reciprocal;
                    let scaled = A::mul_add(dy[at], gamma[c], -average);
                    dx[at] = reciprocal * A::mul_add(value, -slope, scaled);
                }
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

    const EPS: f32 = 1e-5;

    fn cases() -> impl Iterator<Item = GroupNorm> {
        [(1, 6, 4, 2), (2, 35, 12, 3), (3, 100, 8, 8), (2, 70, 320, 32), (1, 9, 5, 1)]
            .into_iter()
            .map(|(batch, pixels, channels, groups)| GroupNorm {
                batch,
                pixels,
                channels,
                groups,
                eps: EPS,
            })
    }

    fn operands(dims: &GroupNorm) -> [Vec<f32>; 4] {
        let len = dims.batch * dims.pixels * dims.channels;
        let x = random(len, 1).into_iter().map(|x| x + 30.0).collect();
        [x, random(dims.channels, 2), random(dims.channels, 3), random(len, 4)]
    }

    /// `[y, stats, dx, dgamma, dbeta]`.
    fn run(dims: &GroupNorm, threads: &Threads) -> Vec<Vec<f32>> {
        let [x, gamma, beta, dy] = operands(dims);
        let mut outputs = compute(*dims, &[&x, &gamma, &beta], threads).unwrap();
        let reads: [&[f32]; 4] = [&x, &outputs[1], &gamma, &dy];
        outputs.extend(compute(GroupNormDx(*dims), &reads, threads).unwrap());
        outputs
    }

    #[test]
    fn values_match_the_definition() {
        for dims in cases() {
            let [x, gamma, beta, dy] = operands(&dims);
            let GroupNorm { batch, pixels, channels, groups, .. } = dims;
            let count = channels / groups;
            let mut want = [0, 1, 2, 3, 4]
                .map(|k| vec![0.0; [x.len(), 2 * batch * groups, x.len(), channels, channels][k]]);
            for n in 0..batch {
                for group in 0..groups {
                    let own = || {
                        (0..pixels).flat_map(move |p| {
                            (group * count..(group + 1) * count)
                                .map(move |c| ((n * pixels + p) * channels + c, c))
                        })
                    };
                    let size = (pixels * count) as f64;
                    let mean = own().map(|(i, _)| f64::from(x[i])).sum::<f64>() / size;
                    let square = |(i, _): (usize, usize)| (f64::from(x[i]) - mean).powi(2);
                    let variance = own().map(square).sum::<f64>() / size;
                    let r = 1.0 / (variance + f64::from(EPS)).sqrt();
                    let value = |i: usize| (f64::from(x[i]) - mean) * r;
                    let g = |i: usize, c: usize| f64::from(dy[i]) * f64::from(gamma[c]);
                    let total: f64 = own().map(|(i, c)| g(i, c)).sum::<f64>() / size;
                    let dot: f64 = own().map(|(i, c)| g(i, c) * value(i)).sum::<f64>() / size;
                    want[1][2 * (n * groups + group)] = mean;
                    want[1][2 * (n * groups + group) + 1] = r;
                    for (i, c) in own() {
                        want[0][i] = value(i) * f64::from(gamma[c]) + f64::from(beta[c]);
                        want[2][i] = r * (g(i, c) - total - value(i) * dot);
                        want[3][c] += f64::from(dy[i]) * value(i);
                        want[4][c] += f64::from(dy[i]);
                    }
                }
            }
            for got in [run(&dims, &Threads::new(1)), portable(|| run(&dims, &Threads::new(1)))] {
                for (got, want) in got.iter().zip(&want) {
                    // A mean of 30 is rounded to 2e-6, and so is each deviation from it.
                    assert_close(got, want, 1e-5, 1e-4);
                }
            }
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for dims in cases() {
            assert_same_bits(|threads| run(&dims, threads));
        }
    }
}
