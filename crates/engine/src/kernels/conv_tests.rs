//! The three convolution kernels against plain loops, over awkward shapes.

use rekindle_program::op::{Conv, ConvDw, ConvDx, Window};

use super::conv::{conv, conv_dx};
use super::conv_dw::conv_dw;
use super::gemm_tile::Simd;
use super::reference::{assert_sums, each_term, noise};
use crate::Threads;
use crate::dispatch::Kernel;

fn dims(
    [batch, height, width]: [usize; 3],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    [in_channels, out_channels, groups]: [usize; 3],
) -> Conv {
    let window =
        Window { batch, height, width, kernel, stride, padding, extra: [0; 2], dilation: [1; 2] };
    Conv { window, in_channels, out_channels, groups, bias: true }
}

/// Runs `kernel` into poisoned floats, with as much poisoned scratch as `op` needs, in every way,
/// and compares.
#[track_caller]
fn compare(
    what: &str,
    expected: &[f64],
    terms: usize,
    op: &dyn Kernel,
    kernel: impl Fn(Simd, &mut [f32], &mut [f32], &Threads),
) {
    let run = |simd, count| {
        let mut out = vec![f32::NAN; expected.len()];
        let mut scratch = vec![f32::NAN; op.scratch(count)];
        kernel(simd, &mut out, &mut scratch, &Threads::new(count));
        out
    };
    let one = run(Simd::detect(), 1);
    assert_sums(&one, expected, terms, what);
    assert_sums(&run(Simd::Portable, 2), expected, terms, what);
    assert_eq!(one, run(Simd::detect(), 2), "{what}: two threads");
    assert_eq!(one, run(Simd::detect(), 3), "{what}: three threads");
}

#[track_caller]
fn check(dims: &Conv) {
    let window = &dims.window;
    let taps = window.kernel[0] * window.kernel[1];
    let (ci, co) = (dims.in_channels / dims.groups, dims.out_channels / dims.groups);
    let x = noise(window.in_pixels() * dims.in_channels, 1);
    let w = noise(taps * ci * dims.out_channels, 2);
    let bias = noise(dims.out_channels, 3);
    let dy = noise(window.out_pixels() * dims.out_channels, 4);
    let mut y: Vec<f64> = (0..dy.len()).map(|i| bias[i % dims.out_channels].into()).collect();
    let mut dx = vec![0.0; x.len()];
    let mut dw = vec![0.0; w.len()];
    each_term(dims, |xi, wi, yi| {
        y[yi] += f64::from(x[xi]) * f64::from(w[wi]);
        dx[xi] += f64::from(dy[yi]) * f64::from(w[wi]);
        dw[wi] += f64::from(x[xi]) * f64::from(dy[yi]);
    });
    compare(&format!("conv {dims:?}"), &y, taps * ci + 1, dims, |simd, y, scratch, threads| {
        conv(simd, dims, &x, &w, Some(&bias), y, scratch, threads)
    });
    compare(
        &format!("conv_dx {dims:?}"),
        &dx,
        taps * co,
        &ConvDx(*dims),
        |simd, dx, scratch, threads| conv_dx(simd, dims, &dy, &w, dx, scratch, threads),
    );
    compare(
        &format!("conv_dw {dims:?}"),
        &dw,
        window.out_pixels(),
        &ConvDw(*dims),
        |simd, dw, scratch, threads| conv_dw(simd, dims, &x, &dy, dw, scratch, threads),
    );
}

#[test]
fn windows_of_one_pixel() {
    check(&dims([1, 1, 1], [1, 1], [1, 1], [0, 0], [1, 1, 1]));
    check(&dims([2, 5, 7], [1, 1], [1, 1], [0, 0], [13, 17, 1]));
    check(&dims([2, 8, 8], [1, 1], [2, 2], [0, 0], [16, 32, 1]));
    check(&dims([3, 7, 5], [1, 1], [3, 2], [0, 0], [7, 19, 1]));
    check(&dims([1, 4, 3], [1, 1], [2, 2], [2, 1], [5, 3, 1]));
}

#[test]
fn square_windows() {
    check(&dims([2, 14, 14], [3, 3], [1, 1], [1, 1], [20, 33, 1]));
    check(&dims([3, 7, 7], [3, 3], [1, 1], [1, 1], [70, 18, 1]));
    check(&dims([2, 9, 8], [3, 3], [2, 2], [1, 1], [24, 16, 1]));
    check(&dims([1, 11, 13], [5, 5], [1, 1], [2, 2], [17, 6, 1]));
    check(&dims([1, 11, 13], [5, 5], [3, 3], [0, 0], [17, 6, 1]));
    check(&dims([1, 3, 3], [3, 3], [1, 1], [0, 0], [300, 5, 1]));
}

#[test]
fn few_input_channels() {
    check(&dims([2, 23, 21], [7, 7], [2, 2], [3, 3], [3, 20, 1]));
    check(&dims([2, 5, 4], [7, 7], [1, 1], [3, 3], [1, 2, 1]));
    check(&dims([1, 9, 9], [3, 5], [2, 3], [1, 0], [4, 16, 1]));
    check(&dims([1, 300, 3], [2, 3], [1, 1], [0, 1], [2, 3, 1]));
}

#[test]
fn uneven_windows_strides_and_padding() {
    check(&dims([2, 6, 10], [1, 5], [1, 2], [0, 2], [18, 9, 1]));
    check(&dims([2, 10, 6], [5, 1], [2, 1], [2, 0], [18, 9, 1]));
    check(&dims([1, 8, 9], [2, 4], [3, 1], [1, 3], [23, 4, 1]));
    // The stride skips pixels that no window meets.
    check(&dims([1, 9, 9], [2, 2], [3, 3], [0, 0], [40, 8, 1]));
    // The last pixels are left over.
    check(&dims([1, 10, 10], [3, 3], [4, 4], [1, 1], [40, 8, 1]));
    // A whole row of windows lies in the padding.
    check(&dims([1, 2, 2], [2, 2], [1, 1], [3, 3], [40, 3, 1]));
}

#[test]
fn groups() {
    check(&dims([2, 6, 5], [3, 3], [1, 1], [1, 1], [12, 18, 3]));
    check(&dims([1, 7, 7], [3, 3], [2, 2], [1, 1], [8, 8, 8]));
    check(&dims([1, 4, 4], [1, 1], [2, 2], [0, 0], [64, 40, 2]));
}

#[test]
fn a_channel_to_a_group() {
    check(&dims([2, 6, 5], [3, 3], [1, 1], [1, 1], [40, 40, 40]));
    check(&dims([1, 9, 8], [5, 5], [2, 2], [2, 2], [33, 33, 33]));
    check(&dims([2, 7, 7], [7, 7], [1, 1], [3, 3], [72, 72, 72]));
    check(&dims([1, 5, 6], [2, 3], [3, 1], [0, 2], [5, 5, 5]));
    check(&dims([3, 40, 3], [3, 1], [1, 1], [1, 0], [16, 16, 16]));
    check(&dims([0, 6, 5], [3, 3], [1, 1], [1, 1], [4, 4, 4]));
}

#[test]
fn taps_apart() {
    for (groups, dilation, stride) in
        [(1, [2, 2], [1, 1]), (1, [3, 2], [2, 3]), (1, [2, 4], [2, 2]), (24, [2, 3], [2, 1])]
    {
        let mut dims = dims([2, 11, 13], [3, 3], stride, [2, 3], [24, 24, groups]);
        dims.window.dilation = dilation;
        check(&dims);
        dims.window.extra = [1, 2];
        check(&dims);
    }
    let mut few = dims([1, 9, 9], [3, 3], [1, 1], [2, 2], [3, 8, 1]);
    few.window.dilation = [2, 2];
    check(&few);
}

#[test]
fn more_padding_at_the_end() {
    for channels in [3, 40] {
        let mut dims = dims([2, 8, 8], [3, 3], [2, 2], [0, 0], [channels, 16, 1]);
        dims.window.extra = [1, 1];
        check(&dims);
        dims.window.stride = [1, 1];
        check(&dims);
    }
}

#[test]
fn an_empty_batch_has_a_zero_gradient() {
    check(&dims([0, 6, 5], [3, 3], [1, 1], [1, 1], [4, 2, 1]));
}

#[test]
fn operands_larger_than_the_packing_buffers_are_taken_in_parts() {
    check(&dims([2, 3, 2], [3, 3], [1, 1], [1, 1], [400, 600, 1]));
    check(&dims([3, 40, 40], [1, 2], [1, 1], [0, 1], [280, 3, 1]));
}

#[test]
fn windows_of_three_by_three_over_many_pixels() {
    check(&dims([3, 14, 14], [3, 3], [1, 1], [1, 1], [48, 32, 1]));
    check(&dims([2, 17, 19], [3, 3], [1, 1], [0, 1], [32, 64, 1]));
    check(&dims([1, 23, 22], [3, 3], [1, 1], [2, 0], [64, 32, 1]));
    // More channels than a block of summed channels, and more weights than fit at a time.
    check(&dims([1, 1, 256], [3, 3], [1, 1], [1, 1], [288, 32, 1]));
    check(&dims([1, 1, 256], [3, 3], [1, 1], [1, 1], [1056, 64, 1]));
}
