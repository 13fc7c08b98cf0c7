//! What the kernels' tests share: plain loops in double precision, inputs, and the comparison.

use rekindle_program::op::Conv;
use rekindle_program::random::Stream;

/// `len` numbers between -1 and 1 that look random.
pub(super) fn noise(len: usize, seed: u64) -> Vec<f32> {
    let stream = Stream::new(seed);
    let noise = |i| (2.0 * stream.unit(i) - 1.0) as f32;
    (0..len as u64).map(noise).collect()
}

/// Fails unless each of `actual` is what the sum of `terms` products of two numbers within ±1 may
/// come to in single precision.
///
/// Such a product has a variance of 1/9, so a partial sum of `t` terms is about `√t / 3` large, and
/// rounding it errs by up to half a unit in the last place of that. Over all partial sums, the
/// errors add up to a standard deviation of about `terms / 7` half units. The bound is fourteen of
/// those; a term left out or counted twice is beyond it by orders of magnitude.
#[track_caller]
pub(super) fn assert_sums(actual: &[f32], expected: &[f64], terms: usize, what: &str) {
    assert_eq!(actual.len(), expected.len(), "{what}");
    let half_unit = f64::from(f32::EPSILON) / 2.0;
    let bound = 2.0 * terms.max(1) as f64 * half_unit;
    for (i, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
        let error = (f64::from(actual) - expected).abs();
        assert!(error <= bound, "{what}: [{i}] is {actual}, not {expected}: {error:e} > {bound:e}");
    }
}

/// Calls `term` with the indices in `x`, `w` and `y` of each product that a convolution sums.
pub(super) fn each_term(dims: &Conv, mut term: impl FnMut(usize, usize, usize)) {
    let w = &dims.window;
    let (ci, co) = (dims.in_channels / dims.groups, dims.out_channels / dims.groups);
    for pixel in 0..w.out_pixels() {
        let (ow, oh) = (pixel % w.out_width(), pixel / w.out_width() % w.out_height());
        let image = pixel / w.out_width() / w.out_height();
        for tap in 0..w.kernel[0] * w.kernel[1] {
            let ih = oh * w.stride[0] + tap / w.kernel[1] * w.dilation[0];
            let iw = ow * w.stride[1] + tap % w.kernel[1] * w.dilation[1];
            let inside = |i: usize, pad: usize, size: usize| (pad..pad + size).contains(&i);
            if !inside(ih, w.padding[0], w.height) || !inside(iw, w.padding[1], w.width) {
                continue;
            }
            let input = (image * w.height + ih - w.padding[0]) * w.width + iw - w.padding[1];
            for o in 0..dims.out_channels {
                for c in 0..ci {
                    term(
                        input * dims.in_channels + o / co * ci + c,
                        (tap * ci + c) * dims.out_channels + o,
                        pixel * dims.out_channels + o,
                    );
                }
            }
        }
    }
}
