//! Convolution with a channel to a group: each channel has a window of its own.
//!
//! Channels lie side by side in images and weights, so every loop over them is innermost,
//! [`LANES`] at a time in registers, and a pixel is a sum over the taps that meet it. The gradient
//! of the image is such a sum too, over the pixels of `dy` that meet a pixel. For the gradient of
//! the weights, rows of `y` are shared out in tasks by their number alone; each leaves partial
//! sums, which are added in the order of the tasks.

use super::columns;
use super::lanes::vectorised;
use crate::Threads;
use rekindle_program::op::{Conv, Window};

/// Channels at a time: eight registers of sums.
const LANES: usize = 64;
/// The same for what is left over.
const NARROW: usize = 8;
/// Taps of a window whose places are held at a time.
const TAPS: usize = 64;

/// Whether each channel is a group.
pub(super) fn is_depthwise(dims: &Conv) -> bool {
    dims.groups > 1 && dims.groups == dims.in_channels && dims.groups == dims.out_channels
}

/// `y = x ∗ w (+ bias)`.
pub(super) fn depthwise(
    dims: &Conv,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    threads: &Threads,
) {
    let row = dims.window.out_width() * dims.out_channels;
    threads.chunks_mut(y, row, &|task, y| conv_row(dims, task, x, w, bias, y));
}

/// The gradient of `x`.
pub(super) fn depthwise_dx(dims: &Conv, dy: &[f32], w: &[f32], dx: &mut [f32], threads: &Threads) {
    let row = dims.window.width * dims.in_channels;
    threads.chunks_mut(dx, row, &|task, dx| conv_dx_row(dims, task, dy, w, dx));
}

/// Floats of scratch of [`depthwise_dw`].
pub(super) fn depthwise_dw_scratch(dims: &Conv) -> usize {
    let rows = dims.window.batch * dims.window.out_height();
    columns::tasks(rows) * weights(dims)
}

/// The gradient of `w`.
pub(super) fn depthwise_dw(
    dims: &Conv,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    scratch: &mut [f32],
    threads: &Threads,
) {
    let rows = dims.window.batch * dims.window.out_height();
    if rows == 0 {
        return dw.fill(0.0);
    }
    let partials = &mut scratch[..depthwise_dw_scratch(dims)];
    let share = columns::rows_per_task(rows);
    threads.chunks_mut(partials, weights(dims), &|task, dw| {
        let last = rows.min((task + 1) * share);
        conv_dw_rows(dims, task * share, last, x, dy, dw);
    });
    columns::join(partials, weights(dims), dw, threads);
}

fn weights(dims: &Conv) -> usize {
    dims.window.kernel[0] * dims.window.kernel[1] * dims.in_channels
}

/// The pixel of the image under tap `tap` of pixel `out` of the result, if there is one.
#[inline(always)]
fn under(window: &Window, axis: usize, size: usize, out: usize, tap: usize) -> Option<usize> {
    let at = out * window.stride[axis] + tap * window.dilation[axis];
    at.checked_sub(window.padding[axis]).filter(|&at| at < size)
}

/// The pixel of the result whose tap `tap` meets pixel `at` of the image, if there is one.
#[inline(always)]
fn over(window: &Window, axis: usize, size: usize, at: usize, tap: usize) -> Option<usize> {
    let from = (at + window.padding[axis]).checked_sub(tap * window.dilation[axis])?;
    let out = from / window.stride[axis];
    (from.is_multiple_of(window.stride[axis]) && out < size).then_some(out)
}

vectorised! {
    /// One row of `y`; `row` counts over all images.
    fn conv_row<A>(
        dims: &Conv, row: usize, x: &[f32], w: &[f32], bias: Option<&[f32]>, y: &mut [f32],
    ) {
        let window = &dims.window;
        let (image, oh) = (row / window.out_height(), row % window.out_height());
        let start = |kh: usize| {
            let h = under(window, 0, window.height, oh, kh)?;
            Some((image * window.height + h) * window.width)
        };
        for (ow, y) in y.chunks_exact_mut(dims.in_channels).enumerate() {
            match bias {
                Some(bias) => y.copy_from_slice(bias),
                None => y.fill(0.0),
            }
            let find = |kh: usize, kw: usize| {
                Some(start(kh)? + under(window, 1, window.width, ow, kw)?)
            };
            add_taps::<A>(window, find, x, w, y);
        }
    }
}

vectorised! {
    /// One row of `dx`; `row` counts over all images.
    fn conv_dx_row<A>(dims: &Conv, row: usize, dy: &[f32], w: &[f32], dx: &mut [f32]) {
        let window = &dims.window;
        let (image, h) = (row / window.height, row % window.height);
        let [height, width] = [window.out_height(), window.out_width()];
        for (at, dx) in dx.chunks_exact_mut(dims.in_channels).enumerate() {
            dx.fill(0.0);
            let find = |kh: usize, kw: usize| {
                let row = image * height + over(window, 0, height, h, kh)?;
                Some(row * width + over(window, 1, width, at, kw)?)
            };
            add_taps::<A>(window, find, dy, w, dx);
        }
    }
}

/// Adds to `out` the products of the weights of each tap with the pixel that `find` gives for it.
#[inline(always)]
fn add_taps<A: super::lanes::Arithmetic>(
    window: &Window,
    find: impl Fn(usize, usize) -> Option<usize>,
    pixels: &[f32],
    w: &[f32],
    out: &mut [f32],
) {
    let channels = out.len();
    // Where the pixel and the weights of a tap begin.
    let mut taps = [(0, 0); TAPS];
    let mut count = 0;
    let mut each = |taps: &[(usize, usize)]| {
        let wide = channels - channels % LANES;
        let narrow = channels - channels % NARROW;
        for channel in (0..wide).step_by(LANES) {
            add_lanes::<A, LANES>(taps, pixels, w, channel, out);
        }
        for channel in (wide..narrow).step_by(NARROW) {
            add_lanes::<A, NARROW>(taps, pixels, w, channel, out);
        }
        for channel in narrow..channels {
            add_lanes::<A, 1>(taps, pixels, w, channel, out);
        }
    };
    for kh in 0..window.kernel[0] {
        for kw in 0..window.kernel[1] {
            let Some(pixel) = find(kh, kw) else { continue };
            taps[count] = (pixel * channels, (kh * window.kernel[1] + kw) * channels);
            count += 1;
            if count == TAPS {
                each(&taps);
                count = 0;
            }
        }
    }
    each(&taps[..count]);
}

#[inline(always)]
fn add_lanes<A: super::lanes::Arithmetic, const W: usize>(
    taps: &[(usize, usize)],
    pixels: &[f32],
    w: &[f32],
    channel: usize,
    out: &mut [f32],
) {
    let out = &mut out[channel..channel + W];
    let mut sums = [0.0; W];
    sums.copy_from_slice(out);
    for &(pixel, weight) in taps {
        let pixel = &pixels[pixel + channel..][..W];
        let weight = &w[weight + channel..][..W];
        for l in 0..W {
            sums[l] = A::mul_add(pixel[l], weight[l], sums[l]);
        }
    }
    out.copy_from_slice(&sums);
}

vectorised! {
    /// The sums over some rows of `y`, of all images.
    fn conv_dw_rows<A>(
        dims: &Conv, first: usize, last: usize, x: &[f32], dy: &[f32], dw: &mut [f32],
    ) {
        let window = &dims.window;
        let channels = dims.in_channels;
        dw.fill(0.0);
        for row in first..last {
            let (image, oh) = (row / window.out_height(), row % window.out_height());
            let dy = &dy[row * window.out_width() * channels..];
            for kh in 0..window.kernel[0] {
                let Some(h) = under(window, 0, window.height, oh, kh) else { continue };
                let x = &x[(image * window.height + h) * window.width * channels..];
                for kw in 0..window.kernel[1] {
                    let tap = kh * window.kernel[1] + kw;
                    let dw = &mut dw[tap * channels..][..channels];
                    add_row::<A>(window, kw, x, dy, dw);
                }
            }
        }
    }
}

/// Adds the products of one tap with one row of `dy` to `dw`.
#[inline(always)]
fn add_row<A: super::lanes::Arithmetic>(
    window: &Window,
    kw: usize,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
) {
    // The pixels of `dy` whose tap lies on the image.
    let shift = kw * window.dilation[1];
    let (stride, padding) = (window.stride[1], window.padding[1]);
    let first = padding.saturating_sub(shift).div_ceil(stride);
    let last = (window.width + padding).saturating_sub(shift).div_ceil(stride);
    let last = last.min(window.out_width());
    if first >= last {
        return;
    }
    let channels = dw.len();
    let from = (first * stride + shift - padding) * channels;
    let (x, dy, count) = (&x[from..], &dy[first * channels..], last - first);
    let wide = channels - channels % LANES;
    let narrow = channels - channels % NARROW;
    for channel in (0..wide).step_by(LANES) {
        row_lanes::<A, LANES>(x, stride * channels, dy, channels, count, channel, dw);
    }
    for channel in (wide..narrow).step_by(NARROW) {
        row_lanes::<A, NARROW>(x, stride * channels, dy, channels, count, channel, dw);
    }
    for channel in narrow..channels {
        row_lanes::<A, 1>(x, stride * channels, dy, channels, count, channel, dw);
    }
}

#[inline(always)]
fn row_lanes<A: super::lanes::Arithmetic, const W: usize>(
    x: &[f32],
    x_step: usize,
    dy: &[f32],
    dy_step: usize,
    count: usize,
    channel: usize,
    dw: &mut [f32],
) {
    let mut sums = [0.0; W];
    for i in 0..count {
        let x = &x[i * x_step + channel..][..W];
        let dy = &dy[i * dy_step + channel..][..W];
        for l in 0..W {
            sums[l] = A::mul_add(x[l], dy[l], sums[l]);
        }
    }
    for (dw, sum) in dw[channel..channel + W].iter_mut().zip(sums) {
        *dw += sum;
    }
}
