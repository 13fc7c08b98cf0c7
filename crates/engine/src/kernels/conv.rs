//! Convolution and its two gradients.

use remat_program::op::Conv;

use crate::Threads;

/// Scratch of [`conv`], in `f32`.
pub fn conv_scratch(_dims: &Conv, _threads: usize) -> usize {
    0
}

/// `y = x ∗ w (+ bias)`.
pub fn conv(
    dims: &Conv,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    _scratch: &mut [f32],
    _threads: &Threads,
) {
    for row in y.chunks_exact_mut(dims.out_channels.max(1)) {
        match bias {
            Some(bias) => row.copy_from_slice(bias),
            None => row.fill(0.0),
        }
    }
    each_term(dims, |xi, wi, yi| y[yi] += x[xi] * w[wi]);
}

/// Scratch of [`conv_dx`], in `f32`.
pub fn conv_dx_scratch(_dims: &Conv, _threads: usize) -> usize {
    0
}

/// The gradient of `x`.
pub fn conv_dx(
    dims: &Conv,
    dy: &[f32],
    w: &[f32],
    dx: &mut [f32],
    _scratch: &mut [f32],
    _threads: &Threads,
) {
    dx.fill(0.0);
    each_term(dims, |xi, wi, yi| dx[xi] += dy[yi] * w[wi]);
}

/// Scratch of [`conv_dw`], in `f32`.
pub fn conv_dw_scratch(_dims: &Conv, _threads: usize) -> usize {
    0
}

/// The gradient of `w`.
pub fn conv_dw(
    dims: &Conv,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    _scratch: &mut [f32],
    _threads: &Threads,
) {
    dw.fill(0.0);
    each_term(dims, |xi, wi, yi| dw[wi] += x[xi] * dy[yi]);
}

/// Calls `term` with the indices in `x`, `w` and `y` of each product that a convolution sums.
fn each_term(dims: &Conv, mut term: impl FnMut(usize, usize, usize)) {
    let w = &dims.window;
    let (ci, co) = (
        dims.in_channels / dims.groups,
        dims.out_channels / dims.groups,
    );
    for pixel in 0..w.out_pixels() {
        let (ow, oh) = (
            pixel % w.out_width(),
            pixel / w.out_width() % w.out_height(),
        );
        let image = pixel / w.out_width() / w.out_height();
        for tap in 0..w.kernel[0] * w.kernel[1] {
            let ih = oh * w.stride[0] + tap / w.kernel[1];
            let iw = ow * w.stride[1] + tap % w.kernel[1];
            let inside = |i: usize, pad: usize, size: usize| (pad..pad + size).contains(&i);
            if !inside(ih, w.padding[0], w.height) || !inside(iw, w.padding[1], w.width) {
                continue;
            }
            let input = (image * w.height + ih - w.padding[0]) * w.width + iw - w.padding[1];
            for group in 0..dims.groups {
                for c in 0..ci {
                    for o in group * co..(group + 1) * co {
                        term(
                            input * dims.in_channels + group * ci + c,
                            (tap * ci + c) * dims.out_channels + o,
                            pixel * dims.out_channels + o,
                        );
                    }
                }
            }
        }
    }
}
