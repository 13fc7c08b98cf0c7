//! Convolution and the gradient of its image, as products of indirect rows.
//!
//! `conv`: row `(n, oh, ow)` of `y` is the sum over the taps `(ky, kx)` of row `(n, oh · stride +
//! ky - padding, …)` of `x` times the tap's matrix of weights. Nothing is unfolded: the product
//! finds each row through a pointer, and a tap outside the image finds a row of zeros.
//!
//! `conv_dx` is the same the other way round. With a stride, the rows of `dx` fall into classes by
//! their position modulo the stride; each class meets its own taps and no others, so that nothing
//! is multiplied by a zero that the stride put there.
//!
//! Windows of 3 × 3 and stride 1 over enough pixels and channels go to [`super::conv_winograd`]
//! instead, those with a channel to a group to [`super::conv_depthwise`].
//!
//! An image of few channels (the first layer) would make for very short segments. There, a segment
//! is a whole row of the window, which is contiguous in an image that was padded first.

use std::ops::Range;

use rekindle_program::op::{Conv, ConvDx, Window};

use super::KernelError;
use super::conv_depthwise::{depthwise, depthwise_dx, is_depthwise};
use super::conv_winograd::Winograd;
use super::gemm::{
    Crew, LeftOperand, OperandLayout, Product, SHARED_PACK, Shape, ZEROS, multiply,
    multiply_scratch,
};
use super::gemm_tile::Simd;
use crate::dispatch::{Call, Kernel};
use crate::{SharedMut, Threads};

/// Floats of a window row, at most, for which an image is padded to make the row one segment.
pub(super) const NARROW: usize = 64;

/// Whether a convolution reads so few channels that a row of its window should be one segment.
pub(super) fn is_narrow(dims: &Conv) -> bool {
    dims.groups == 1
        && dims.window.dilation == [1, 1]
        && dims.window.kernel[1] > 1
        && dims.window.kernel[1] * dims.in_channels <= NARROW
}

/// The two coordinates of something in an image: vertical, horizontal.
type Pair = [usize; 2];

/// Rows of an image under one tap: for the image pixel `(y, x)` of the rows' own grid, the pixel
/// `y · scale + tap · step - shift` of the left operand's grid, if there is one.
struct Taps<'a> {
    image: &'a [f32],
    /// Height and width of the left operand's images, its channels, and the first one used.
    size: Pair,
    channels: usize,
    first_channel: usize,
    /// Height and width of the grid of rows.
    grid: Pair,
    /// Taps in each direction; a segment is `y · taps[1] + x`.
    taps: Pair,
    scale: Pair,
    /// Pixels that the left operand moves per tap; negative for a gradient.
    step: [isize; 2],
    /// Added to the position.
    shift: [isize; 2],
    /// Where the weights of a segment start.
    right: &'a (dyn Fn(Pair) -> usize + Sync),
    /// Where pixel `(image, y, x)` of the grid of rows starts in the result.
    result: &'a (dyn Fn(usize, Pair) -> usize + Sync),
}

impl Taps<'_> {
    /// The image and the pixel of a row.
    fn pixel(&self, row: usize) -> (usize, Pair) {
        let [height, width] = self.grid;
        (row / width / height, [row / width % height, row % width])
    }

    /// The pixel after `pixel` in the order of rows.
    fn next(&self, (image, [y, x]): (usize, Pair)) -> (usize, Pair) {
        let [height, width] = self.grid;
        match (y + 1 == height, x + 1 == width) {
            (_, false) => (image, [y, x + 1]),
            (false, true) => (image, [y + 1, 0]),
            (true, true) => (image + 1, [0, 0]),
        }
    }
}

// SAFETY: `left` finds slices of the image or of zeros; each pixel of the grid has a place of its
// own.
unsafe impl OperandLayout for Taps<'_> {
    fn left(
        &self,
        segment: usize,
        depth: Range<usize>,
        rows: Range<usize>,
        starts: &mut [*const f32],
    ) {
        let tap = [segment / self.taps[1], segment % self.taps[1]];
        let offset: [isize; 2] =
            std::array::from_fn(|axis| self.shift[axis] + self.step[axis] * tap[axis] as isize);
        let position = |pixel: Pair, axis: usize| {
            // A negative position wraps around and is outside, too.
            (pixel[axis] * self.scale[axis]).wrapping_add_signed(offset[axis])
        };
        let mut pixel = self.pixel(rows.start);
        for start in starts.iter_mut().take(rows.len()) {
            let (y, x) = (position(pixel.1, 0), position(pixel.1, 1));
            *start = if y < self.size[0] && x < self.size[1] {
                let index = (pixel.0 * self.size[0] + y) * self.size[1] + x;
                let channel = index * self.channels + self.first_channel + depth.start;
                self.image[channel..channel + depth.len()].as_ptr()
            } else {
                ZEROS[..depth.len()].as_ptr()
            };
            pixel = self.next(pixel);
        }
    }

    fn right(&self, segment: usize) -> usize {
        (self.right)([segment / self.taps[1], segment % self.taps[1]])
    }

    fn result(&self, rows: Range<usize>, starts: &mut [usize]) {
        let mut pixel = self.pixel(rows.start);
        for start in starts.iter_mut().take(rows.len()) {
            *start = (self.result)(pixel.0, pixel.1);
            pixel = self.next(pixel);
        }
    }
}

/// Channels of one group: of the image, of the result.
fn group_channels(dims: &Conv) -> (usize, usize) {
    (dims.in_channels / dims.groups, dims.out_channels / dims.groups)
}

fn out_size(window: &Window) -> Pair {
    [window.out_height(), window.out_width()]
}

fn conv_shape(dims: &Conv) -> Shape {
    let (depth, cols) = group_channels(dims);
    let window = &dims.window;
    let [height, width] = window.kernel;
    match is_narrow(dims) {
        true => Shape {
            rows: window.out_height() * window.out_width(),
            cols,
            segments: height,
            depth: width * depth,
        },
        false => Shape { rows: window.out_pixels(), cols, segments: height * width, depth },
    }
}

/// Height and width of a padded image.
fn padded(window: &Window) -> Pair {
    let Window { height, width, padding, extra, .. } = window;
    [height + 2 * padding[0] + extra[0], width + 2 * padding[1] + extra[1]]
}

/// Floats of one padded image, if it is to be padded.
fn padded_len(dims: &Conv) -> usize {
    match is_narrow(dims) {
        true => padded(&dims.window).iter().product::<usize>() * dims.in_channels,
        false => 0,
    }
}

impl Kernel for Conv {
    fn scratch(&self, threads: usize) -> usize {
        if let Some(winograd) = Winograd::forward(self) {
            return winograd.scratch(threads);
        }
        if is_depthwise(self) {
            return 0;
        }
        // The padded image is rounded up, so that what follows it is aligned to a cache line.
        padded_len(self).next_multiple_of(16)
            + multiply_scratch(&conv_shape(self), false, SHARED_PACK, threads)
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (x, w, bias) = (call.read(0), call.read(1), call.read_if(self.bias, 2));
        let (y, scratch) = (call.write(0), call.scratch());
        conv(Simd::detect(), self, x, w, bias, y, scratch, call.threads);
        Ok(())
    }
}

impl Kernel for ConvDx {
    fn scratch(&self, threads: usize) -> usize {
        if let Some(winograd) = Winograd::gradient(&self.0) {
            return winograd.scratch(threads);
        }
        if is_depthwise(&self.0) {
            return 0;
        }
        let classes = classes(&self.0.window);
        let shapes = classes.map(|class| dx_shape(&self.0, &class));
        let scratch = shapes.map(|shape| multiply_scratch(&shape, false, SHARED_PACK, threads));
        scratch.max().unwrap_or(0)
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (dy, w) = (call.read(0), call.read(1));
        let (dx, scratch) = (call.write(0), call.scratch());
        conv_dx(Simd::detect(), &self.0, dy, w, dx, scratch, call.threads);
        Ok(())
    }
}

/// `y = x ∗ w (+ bias)`.
#[allow(clippy::too_many_arguments)] // The op's operands, and how to compute it.
pub(super) fn conv(
    simd: Simd,
    dims: &Conv,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    scratch: &mut [f32],
    threads: &Threads,
) {
    if let Some(winograd) = Winograd::forward(dims) {
        return winograd.run(simd, x, w, bias, y, scratch, threads);
    }
    if is_depthwise(dims) {
        return depthwise(dims, x, w, bias, y, threads);
    }
    let window = &dims.window;
    let (ci, co) = group_channels(dims);
    let grid = out_size(window);
    let y = SharedMut::new(y);
    let run = |layout: &Taps, group: usize, scratch: &mut [f32]| {
        let product = Product {
            simd,
            shape: conv_shape(dims),
            layout,
            left: LeftOperand::Rows,
            right: w,
            right_pitch: dims.out_channels,
            right_transposed: false,
            alpha: 1.0,
            bias: bias.map(|bias| &bias[group * co..][..co]),
        };
        multiply(&product, &y, SHARED_PACK, scratch, Crew::All(threads));
    };
    if is_narrow(dims) {
        let (image, scratch) = scratch.split_at_mut(padded_len(dims).next_multiple_of(16));
        let size = padded(window);
        for n in 0..window.batch {
            pad(dims, x, n, image, threads);
            let layout = Taps {
                image,
                size,
                channels: dims.in_channels,
                first_channel: 0,
                grid,
                taps: [window.kernel[0], 1],
                scale: window.stride,
                step: [1, 1],
                shift: [0, 0],
                right: &|tap| tap[0] * window.kernel[1] * ci * co,
                result: &|_, pixel| ((n * grid[0] + pixel[0]) * grid[1] + pixel[1]) * co,
            };
            run(&layout, 0, scratch);
        }
        return;
    }
    for group in 0..dims.groups {
        let layout = Taps {
            image: x,
            size: [window.height, window.width],
            channels: dims.in_channels,
            first_channel: group * ci,
            grid,
            taps: window.kernel,
            scale: window.stride,
            step: window.dilation.map(|dilation| dilation as isize),
            shift: window.padding.map(|padding| -(padding as isize)),
            right: &|tap| {
                (tap[0] * window.kernel[1] + tap[1]) * ci * dims.out_channels + group * co
            },
            result: &|n, pixel| {
                ((n * grid[0] + pixel[0]) * grid[1] + pixel[1]) * dims.out_channels + group * co
            },
        };
        run(&layout, group, scratch);
    }
}

/// Copies image `n` of `x` into `image`, with zeros around it.
fn pad(dims: &Conv, x: &[f32], n: usize, image: &mut [f32], threads: &Threads) {
    let window = &dims.window;
    let [_, width] = padded(window);
    let (row, inner) = (width * dims.in_channels, window.width * dims.in_channels);
    let left = window.padding[1] * dims.in_channels;
    threads.chunks_mut(&mut image[..padded_len(dims)], row, &|y, out| {
        let source = y.wrapping_sub(window.padding[0]);
        if source < window.height {
            out[..left].fill(0.0);
            out[left..left + inner]
                .copy_from_slice(&x[(n * window.height + source) * inner..][..inner]);
            out[left + inner..].fill(0.0);
        } else {
            out.fill(0.0);
        }
    });
}

/// A class of pixels of `dx` along one axis: those whose padded position is `phase` modulo the
/// stride.
struct Class {
    /// The first pixel, and how many there are.
    first: usize,
    count: usize,
    /// The taps that meet them: the first, how far the next one is, and how many.
    first_tap: usize,
    tap_step: usize,
    taps: usize,
    /// The pixel of `dy` that the first pixel meets at the first tap, and how far the next tap's
    /// is.
    shift: isize,
    step: isize,
}

impl Class {
    fn new(window: &Window, axis: usize, phase: usize) -> Class {
        let (stride, padding) = (window.stride[axis], window.padding[axis]);
        let size = [window.height, window.width][axis];
        let first = (phase + stride * padding - padding) % stride;
        // Tap `t` lies `t · dilation` from the window's first; those that meet the class lie at
        // its phase modulo the stride, if any does.
        let (kernel, dilation) = (window.kernel[axis], window.dilation[axis]);
        let meets = |tap: &usize| tap * dilation % stride == phase;
        let first_tap = (0..kernel).find(meets).unwrap_or(kernel);
        let tap_step = (1..=stride).find(|step| step * dilation % stride == 0).unwrap_or(stride);
        let shift = (first + padding) as isize - (first_tap * dilation) as isize;
        Class {
            first,
            count: size.saturating_sub(first).div_ceil(stride),
            first_tap,
            tap_step,
            taps: (kernel - first_tap).div_ceil(tap_step),
            shift: shift / stride as isize,
            step: -((tap_step * dilation / stride) as isize),
        }
    }
}

fn dx_shape(dims: &Conv, [y, x]: &[Class; 2]) -> Shape {
    let (cols, depth) = group_channels(dims);
    Shape { rows: dims.window.batch * y.count * x.count, cols, segments: y.taps * x.taps, depth }
}

/// All pairs of a vertical and a horizontal class.
fn classes(window: &Window) -> impl Iterator<Item = [Class; 2]> {
    (0..window.stride[0] * window.stride[1]).map(|phase| {
        [
            Class::new(window, 0, phase / window.stride[1]),
            Class::new(window, 1, phase % window.stride[1]),
        ]
    })
}

/// The gradient of `x`.
pub(super) fn conv_dx(
    simd: Simd,
    dims: &Conv,
    dy: &[f32],
    w: &[f32],
    dx: &mut [f32],
    scratch: &mut [f32],
    threads: &Threads,
) {
    if let Some(winograd) = Winograd::gradient(dims) {
        return winograd.run(simd, dy, w, None, dx, scratch, threads);
    }
    if is_depthwise(dims) {
        return depthwise_dx(dims, dy, w, dx, threads);
    }
    let window = &dims.window;
    let (ci, co) = group_channels(dims);
    let dx = SharedMut::new(dx);
    for class in classes(window) {
        let [vertical, horizontal] = &class;
        for group in 0..dims.groups {
            let layout = Taps {
                image: dy,
                size: out_size(window),
                channels: dims.out_channels,
                first_channel: group * co,
                grid: [vertical.count, horizontal.count],
                taps: [vertical.taps, horizontal.taps],
                scale: [1, 1],
                step: [vertical.step, horizontal.step],
                shift: [vertical.shift, horizontal.shift],
                right: &|tap| {
                    let y = vertical.first_tap + tap[0] * vertical.tap_step;
                    let x = horizontal.first_tap + tap[1] * horizontal.tap_step;
                    (y * window.kernel[1] + x) * ci * dims.out_channels + group * co
                },
                result: &|n, pixel| {
                    let y = vertical.first + pixel[0] * window.stride[0];
                    let x = horizontal.first + pixel[1] * window.stride[1];
                    ((n * window.height + y) * window.width + x) * dims.in_channels + group * ci
                },
            };
            let product = Product {
                simd,
                shape: dx_shape(dims, &class),
                layout: &layout,
                left: LeftOperand::Rows,
                right: w,
                right_pitch: dims.out_channels,
                right_transposed: true,
                alpha: 1.0,
                bias: None,
            };
            multiply(&product, &dx, SHARED_PACK, scratch, Crew::All(threads));
        }
    }
}
