//! Max and average pooling of images `[n, h, w, c]`, forward and backward.
//!
//! Every loop over channels is innermost, [`CHUNK`] at a time. The backward gathers: each pixel of
//! `dx` looks at the windows that cover it, in order, so rows of `dx` are independent tasks and
//! nothing is scattered. Max pooling pads with `-∞`, takes the first maximum and lets NaN win, and
//! average pooling counts padding as zeros, as in PyTorch.

use super::KernelError;
use super::lanes::vectorised;
use super::tasks::chunks_mut2;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{AvgPool, AvgPoolDx, MaxPool, MaxPoolDx, Pooling, Window};
use std::hint::select_unpredictable;
use std::ops::Range;

/// Channels at a time: their running values stay in the first-level cache.
const CHUNK: usize = 64;
/// Channels of a maximum at a time: two registers of values and two of positions.
const LANES: usize = 16;

impl Kernel for MaxPool {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (x, row) = (call.read(0), self.0.window.out_width() * self.0.channels);
        let (y, index) = ((call.write(0), row), (call.write(1), row));
        chunks_mut2(call.threads, y, index, |task, y, index| {
            max_row(&self.0, task, x, y, index);
        });
        Ok(())
    }
}

impl Kernel for MaxPoolDx {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (dy, index) = (call.read(0), call.read(1));
        let row = self.0.window.width * self.0.channels;
        call.threads.chunks_mut(call.write(0), row, &|task, dx| {
            max_dx_row(&self.0, task, dy, index, dx);
        });
        Ok(())
    }
}

impl Kernel for AvgPool {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (x, row) = (call.read(0), self.0.window.out_width() * self.0.channels);
        call.threads.chunks_mut(call.write(0), row, &|task, y| avg_row(&self.0, task, x, y));
        Ok(())
    }
}

impl Kernel for AvgPoolDx {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (dy, row) = (call.read(0), self.0.window.width * self.0.channels);
        call.threads.chunks_mut(call.write(0), row, &|task, dx| {
            avg_dx_row(&self.0, task, dy, dx);
        });
        Ok(())
    }
}

/// One axis of a pooling.
#[derive(Clone, Copy)]
struct Axis {
    len: usize,
    out_len: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
}

impl Axis {
    fn both(window: &Window) -> [Axis; 2] {
        let axis = |i: usize, len, out_len| Axis {
            len,
            out_len,
            kernel: window.kernel[i],
            stride: window.stride[i],
            padding: window.padding[i],
        };
        [axis(0, window.height, window.out_height()), axis(1, window.width, window.out_width())]
    }

    /// The taps of output `out` that lie on the image.
    #[inline(always)]
    fn taps(&self, out: usize) -> Range<usize> {
        let start = out * self.stride;
        let first = self.padding.saturating_sub(start);
        first..(self.len + self.padding).saturating_sub(start).min(self.kernel)
    }

    /// Where tap `tap` of output `out` lies on the image.
    #[inline(always)]
    fn at(&self, out: usize, tap: usize) -> usize {
        out * self.stride + tap - self.padding
    }

    /// The outputs whose window covers `at`.
    #[inline(always)]
    fn covering(&self, at: usize) -> Range<usize> {
        let padded = at + self.padding;
        let first = (padded + 1).saturating_sub(self.kernel).div_ceil(self.stride);
        first..(padded / self.stride + 1).min(self.out_len)
    }

    /// Which tap of output `out` lies at `at`.
    #[inline(always)]
    fn tap(&self, out: usize, at: usize) -> usize {
        at + self.padding - out * self.stride
    }
}

vectorised! {
    /// One row of outputs; `row` counts over all images.
    fn max_row<A>(dims: &Pooling, row: usize, x: &[f32], y: &mut [f32], index: &mut [u8]) {
        let [vertical, horizontal] = Axis::both(&dims.window);
        let (image, oh) = (row / vertical.out_len, row % vertical.out_len);
        let channels = dims.channels;
        // The window's elements of channel 0, and their positions.
        let mut taps = [(0, 0); MaxPool::MAX_POSITIONS];
        let outputs = y.chunks_exact_mut(channels).zip(index.chunks_exact_mut(channels));
        for (ow, (y, index)) in outputs.enumerate() {
            let mut count = 0;
            for kh in vertical.taps(oh) {
                for kw in horizontal.taps(ow) {
                    let pixel = (image * vertical.len + vertical.at(oh, kh)) * horizontal.len
                        + horizontal.at(ow, kw);
                    taps[count] = (pixel * channels, (kh * horizontal.kernel + kw) as i32);
                    count += 1;
                }
            }
            let taps = &taps[..count];
            let whole = channels - channels % LANES;
            for channel in (0..whole).step_by(LANES) {
                max_lanes::<LANES>(x, taps, channel, y, index);
            }
            for channel in whole..channels {
                max_lanes::<1>(x, taps, channel, y, index);
            }
        }
    }
}

/// The maxima of one window in `W` channels, which stay in registers.
#[inline(always)]
fn max_lanes<const W: usize>(
    x: &[f32],
    taps: &[(usize, i32)],
    channel: usize,
    y: &mut [f32],
    index: &mut [u8],
) {
    // A window of nothing but -∞ points at its first pixel.
    let first = taps.first().map_or(0, |tap| tap.1);
    let (mut best, mut position) = ([f32::NEG_INFINITY; W], [first; W]);
    for &(at, here) in taps {
        let x = &x[at + channel..][..W];
        for l in 0..W {
            let wins = (x[l] > best[l]) | x[l].is_nan();
            best[l] = select_unpredictable(wins, x[l], best[l]);
            position[l] = select_unpredictable(wins, here, position[l]);
        }
    }
    y[channel..channel + W].copy_from_slice(&best);
    index[channel..channel + W].copy_from_slice(&position.map(|position| position as u8));
}

vectorised! {
    /// One row of `dx`; `row` counts over all images.
    fn max_dx_row<A>(dims: &Pooling, row: usize, dy: &[f32], index: &[u8], dx: &mut [f32]) {
        let [vertical, horizontal] = Axis::both(&dims.window);
        let (image, h) = (row / vertical.len, row % vertical.len);
        for w in 0..horizontal.len {
            for channel in (0..dims.channels).step_by(CHUNK) {
                let width = CHUNK.min(dims.channels - channel);
                let mut sum = [0.0f32; CHUNK];
                for oh in vertical.covering(h) {
                    for ow in horizontal.covering(w) {
                        let pixel = (image * vertical.out_len + oh) * horizontal.out_len + ow;
                        let at = pixel * dims.channels + channel;
                        let (dy, index) = (&dy[at..at + width], &index[at..at + width]);
                        let tap = vertical.tap(oh, h) * horizontal.kernel + horizontal.tap(ow, w);
                        for l in 0..width {
                            let mask = 0u32.wrapping_sub(u32::from(index[l] == tap as u8));
                            sum[l] += f32::from_bits(dy[l].to_bits() & mask);
                        }
                    }
                }
                dx[w * dims.channels + channel..][..width].copy_from_slice(&sum[..width]);
            }
        }
    }
}

vectorised! {
    /// One row of outputs; `row` counts over all images.
    fn avg_row<A>(dims: &Pooling, row: usize, x: &[f32], y: &mut [f32]) {
        let [vertical, horizontal] = Axis::both(&dims.window);
        let (image, oh) = (row / vertical.out_len, row % vertical.out_len);
        let positions = (vertical.kernel * horizontal.kernel) as f32;
        for ow in 0..horizontal.out_len {
            for channel in (0..dims.channels).step_by(CHUNK) {
                let width = CHUNK.min(dims.channels - channel);
                let mut sum = [0.0f32; CHUNK];
                for kh in vertical.taps(oh) {
                    for kw in horizontal.taps(ow) {
                        let pixel = (image * vertical.len + vertical.at(oh, kh)) * horizontal.len
                            + horizontal.at(ow, kw);
                        let x = &x[pixel * dims.channels + channel..][..width];
                        for l in 0..width {
                            sum[l] += x[l];
                        }
                    }
                }
                let y = &mut y[ow * dims.channels + channel..][..width];
                for l in 0..width {
                    y[l] = sum[l] / positions;
                }
            }
        }
    }
}

vectorised! {
    /// One row of `dx`; `row` counts over all images.
    fn avg_dx_row<A>(dims: &Pooling, row: usize, dy: &[f32], dx: &mut [f32]) {
        let [vertical, horizontal] = Axis::both(&dims.window);
        let (image, h) = (row / vertical.len, row % vertical.len);
        let positions = (vertical.kernel * horizontal.kernel) as f32;
        for w in 0..horizontal.len {
            for channel in (0..dims.channels).step_by(CHUNK) {
                let width = CHUNK.min(dims.channels - channel);
                let mut sum = [0.0f32; CHUNK];
                for oh in vertical.covering(h) {
                    for ow in horizontal.covering(w) {
                        let pixel = (image * vertical.out_len + oh) * horizontal.out_len + ow;
                        let dy = &dy[pixel * dims.channels + channel..][..width];
                        for l in 0..width {
                            sum[l] += dy[l];
                        }
                    }
                }
                let dx = &mut dx[w * dims.channels + channel..][..width];
                for l in 0..width {
                    dx[l] = sum[l] / positions;
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

    fn cases() -> Vec<Pooling> {
        let case = |batch, height, width, kernel, stride, padding, channels| Pooling {
            window: Window {
                batch,
                height,
                width,
                kernel,
                stride,
                padding,
                extra: [0; 2],
                dilation: [1; 2],
            },
            channels,
        };
        vec![
            case(1, 1, 1, [1, 1], [1, 1], [0, 0], 1),
            case(2, 7, 9, [3, 3], [2, 2], [1, 1], 3),
            case(1, 8, 8, [2, 2], [2, 2], [0, 0], 40),
            case(2, 6, 5, [3, 2], [1, 3], [1, 1], 45),
            case(1, 11, 4, [2, 2], [3, 3], [0, 0], 8), // Pixels that no window covers.
            case(3, 7, 7, [7, 7], [1, 1], [0, 0], 33),
            case(1, 17, 16, [16, 16], [1, 1], [0, 0], 5), // As many positions as a byte names.
        ]
    }

    /// For each output (pixel, channel): the elements of `x` in its window, with their positions.
    fn windows(dims: &Pooling) -> Vec<Vec<(usize, usize)>> {
        let w = &dims.window;
        let mut all = vec![];
        for n in 0..w.batch {
            for (oh, ow) in
                (0..w.out_height()).flat_map(|h| (0..w.out_width()).map(move |w| (h, w)))
            {
                for c in 0..dims.channels {
                    let mut taps = vec![];
                    for (kh, kw) in
                        (0..w.kernel[0]).flat_map(|h| (0..w.kernel[1]).map(move |w| (h, w)))
                    {
                        let h = (oh * w.stride[0] + kh) as i64 - w.padding[0] as i64;
                        let col = (ow * w.stride[1] + kw) as i64 - w.padding[1] as i64;
                        if (0..w.height as i64).contains(&h) && (0..w.width as i64).contains(&col) {
                            let pixel = (n * w.height + h as usize) * w.width + col as usize;
                            taps.push((pixel * dims.channels + c, kh * w.kernel[1] + kw));
                        }
                    }
                    all.push(taps);
                }
            }
        }
        all
    }

    /// `[y, index as numbers, dx]` of max pooling, then `[y, dx]` of average pooling.
    fn run(dims: &Pooling, x: &[f32], dy: &[f32], threads: &Threads) -> Vec<Vec<f32>> {
        let mut outputs = compute(MaxPool(*dims), &[x], threads).unwrap();
        let dx = compute(MaxPoolDx(*dims), &[dy, &outputs[1]], threads).unwrap();
        outputs.extend(dx);
        outputs.extend(compute(AvgPool(*dims), &[x], threads).unwrap());
        outputs.extend(compute(AvgPoolDx(*dims), &[dy], threads).unwrap());
        outputs
    }

    #[test]
    fn pooling_matches_plain_loops() {
        for dims in cases() {
            // Whole numbers: many ties, and sums that are exact.
            let round = |x: Vec<f32>| x.iter().map(|x| (2.0 * x).round()).collect::<Vec<_>>();
            let x = round(random(dims.window.in_pixels() * dims.channels, 1));
            let dy = round(random(dims.window.out_pixels() * dims.channels, 2));
            let (mut y, mut index, mut dx) = (vec![], vec![], vec![0.0; x.len()]);
            let (mut avg, mut avg_dx) = (vec![], vec![0.0; x.len()]);
            let positions = (dims.window.kernel[0] * dims.window.kernel[1]) as f64;
            for (taps, &dy) in windows(&dims).iter().zip(&dy) {
                let mut best = taps[0];
                for &tap in taps {
                    if x[tap.0] > x[best.0] {
                        best = tap;
                    }
                    avg_dx[tap.0] += f64::from(dy) / positions;
                }
                y.push(f64::from(x[best.0]));
                index.push(best.1 as f64);
                dx[best.0] += f64::from(dy);
                avg.push(taps.iter().map(|tap| f64::from(x[tap.0])).sum::<f64>() / positions);
            }
            let threads = Threads::new(1);
            let fast = run(&dims, &x, &dy, &threads);
            for got in [&fast, &portable(|| run(&dims, &x, &dy, &threads))] {
                for (got, want) in got.iter().zip([&y, &index, &dx]) {
                    assert_close(got, want, 0.0, 0.0);
                }
                // One division after an exact sum.
                assert_close(&got[3], &avg, 1e-7, 0.0);
                assert_close(&got[4], &avg_dx, 1e-7, 1e-15);
            }
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for dims in cases() {
            let x = random(dims.window.in_pixels() * dims.channels, 3);
            let dy = random(dims.window.out_pixels() * dims.channels, 4);
            assert_same_bits(|threads| run(&dims, &x, &dy, threads));
        }
    }

    #[test]
    fn nan_wins_and_minus_infinity_has_a_place() {
        let dims = Pooling {
            window: Window {
                batch: 1,
                height: 2,
                width: 4,
                kernel: [1, 4],
                stride: [1, 4],
                padding: [0, 0],
                extra: [0, 0],
                dilation: [1, 1],
            },
            channels: 1,
        };
        let minus = f32::NEG_INFINITY;
        let x = [1.0, f32::NAN, 3.0, f32::NAN, minus, minus, minus, minus];
        let outputs = compute(MaxPool(dims), &[&x], &Threads::new(1)).unwrap();
        let [y, index] = &outputs[..] else { panic!("{outputs:?}") };
        assert!(y[0].is_nan());
        assert_eq!(y[1], minus);
        assert_eq!(index[..], [3.0, 0.0], "PyTorch's choice: the last NaN, the first of equals");
    }
}
