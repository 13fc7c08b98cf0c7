//! ReLU and GELU, forward and backward.
//!
//! ReLU maps NaN to NaN, and its gradient at zero is zero, as in PyTorch. GELU's backward needs `x`
//! and no saved value; both directions share one pass of [`math`](super::math) per element.

use super::KernelError;
use super::lanes::{Arithmetic, vectorised};
use super::math::{logistic, normal_tail};
use super::tasks::map_elements;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Gelu, GeluDx, GeluKind, Relu, ReluDx};

/// `1 / √(2π)`, the height of the normal density.
const DENSITY: f32 = 0.398_942_3;
/// `2 · √(2/π)`: the tanh-GELU is `x · logistic(2 √(2/π) (x + 0.044715 x³))`.
const TANH_SCALE: f32 = 1.595_769;
/// The cubic term of the tanh-GELU.
const TANH_CUBIC: f32 = 0.044_715;

/// `max(x, 0)`, and NaN for NaN.
#[inline(always)]
pub(crate) fn relu_of(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

impl Kernel for Relu {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        map_elements(call, |[x], y| relu_chunk(x, y));
        Ok(())
    }
}

impl Kernel for ReluDx {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        map_elements(call, |[y, dy], dx| relu_dx_chunk(y, dy, dx));
        Ok(())
    }
}

impl Kernel for Gelu {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        map_elements(call, |[x], y| gelu_chunk(self.kind, x, y));
        Ok(())
    }
}

impl Kernel for GeluDx {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        map_elements(call, |[x, dy], dx| gelu_dx_chunk(self.0.kind, x, dy, dx));
        Ok(())
    }
}

vectorised! {
    fn relu_chunk<A>(x: &[f32], y: &mut [f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = relu_of(x);
        }
    }
}

vectorised! {
    /// `dx = dy` where `y` is positive (or NaN), zero elsewhere.
    fn relu_dx_chunk<A>(y: &[f32], dy: &[f32], dx: &mut [f32]) {
        for ((dx, &y), &dy) in dx.iter_mut().zip(y).zip(dy) {
            *dx = if y <= 0.0 { 0.0 } else { dy };
        }
    }
}

vectorised! {
    fn gelu_chunk<A>(kind: GeluKind, x: &[f32], y: &mut [f32]) {
        match kind {
            GeluKind::Erf => {
                for (y, &x) in y.iter_mut().zip(x) {
                    // `x Φ(x)`, in a form that needs no choice between the tails.
                    *y = A::mul_add(-x.abs(), normal_tail::<A>(x).0, relu_of(x));
                }
            }
            GeluKind::Tanh => {
                for (y, &x) in y.iter_mut().zip(x) {
                    *y = x * tanh_weight::<A>(x).0;
                }
            }
        }
    }
}

vectorised! {
    /// `dx = dy · gelu'(x)`.
    fn gelu_dx_chunk<A>(kind: GeluKind, x: &[f32], dy: &[f32], dx: &mut [f32]) {
        match kind {
            GeluKind::Erf => {
                for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
                    let (tail, bell) = normal_tail::<A>(x);
                    let cdf = if x > 0.0 { 1.0 - tail } else { tail };
                    *dx = dy * A::mul_add(x * DENSITY, bell, cdf);
                }
            }
            GeluKind::Tanh => {
                for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
                    let (weight, product) = tanh_weight::<A>(x);
                    let slope = TANH_SCALE * A::mul_add(3.0 * TANH_CUBIC * x, x, 1.0);
                    *dx = dy * A::mul_add(x * slope, product, weight);
                }
            }
        }
    }
}

/// What the tanh-GELU multiplies `x` with, `s = (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2`, and `s
/// (1 - s)`.
#[inline(always)]
fn tanh_weight<A: Arithmetic>(x: f32) -> (f32, f32) {
    logistic::<A>(TANH_SCALE * x * A::mul_add(TANH_CUBIC * x, x, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;
    use crate::kernels::lanes::tests::portable;
    use crate::kernels::test_data::{
        AWKWARD_LENGTHS, assert_close, assert_same_bits, compute, random,
    };

    /// `gelu(x)` and its derivative, from an independent formula in `f64`.
    fn reference(kind: GeluKind, x: f64) -> (f64, f64) {
        let value = |x: f64| match kind {
            // Simpson's rule over the density from 0 to x.
            GeluKind::Erf => {
                const STEPS: usize = 400;
                let h = x / STEPS as f64;
                let density = |t: f64| (-t * t / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
                let inner: f64 = (1..STEPS)
                    .map(|i| density(h * i as f64) * if i % 2 == 1 { 4.0 } else { 2.0 })
                    .sum();
                x * (0.5 + h / 3.0 * (density(0.0) + inner + density(x)))
            }
            GeluKind::Tanh => {
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + u.tanh())
            }
        };
        let h = 1e-5;
        (value(x), (value(x + h) - value(x - h)) / (2.0 * h))
    }

    #[test]
    fn relu_keeps_nan_and_stops_the_gradient_at_zero() {
        let threads = Threads::new(1);
        let x = [-1.0, -0.0, 0.0, 2.0, f32::NAN, f32::NEG_INFINITY];
        let op = Relu { len: 6 };
        let y = compute(op, &[&x], &threads).unwrap().remove(0);
        assert_eq!(y[..4], [0.0, 0.0, 0.0, 2.0]);
        assert!(y[4].is_nan());
        assert_eq!(y[5], 0.0);
        let dx = compute(ReluDx(op), &[&y, &[5.0; 6]], &threads).unwrap();
        assert_eq!(dx[0], [0.0, 0.0, 0.0, 5.0, 5.0, 0.0]);
    }

    #[test]
    fn gelu_and_its_gradient_match_the_definition() {
        let threads = Threads::new(1);
        for kind in [GeluKind::Erf, GeluKind::Tanh] {
            let x: Vec<f32> = (-600..=600).map(|i| i as f32 / 100.0).collect();
            let dy = vec![2.0; x.len()];
            let op = Gelu { len: x.len(), kind };
            let both = || {
                let y = compute(op, &[&x], &threads).unwrap().remove(0);
                (y, compute(GeluDx(op), &[&x, &dy], &threads).unwrap().remove(0))
            };
            let want: Vec<(f64, f64)> = x.iter().map(|&x| reference(kind, f64::from(x))).collect();
            let value: Vec<f64> = want.iter().map(|w| w.0).collect();
            let slope: Vec<f64> = want.iter().map(|w| 2.0 * w.1).collect();
            for (y, dx) in [both(), portable(both)] {
                // Eight roundings of values up to 6, and the finite difference's own 1e-9.
                assert_close(&y, &value, 1e-6, 1e-9);
                assert_close(&dx, &slope, 1e-6, 5e-7);
            }
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for len in AWKWARD_LENGTHS {
            let (x, dy) = (random(len, 3), random(len, 4));
            assert_same_bits(|threads| {
                let mut outputs = compute(Relu { len }, &[&x], threads).unwrap();
                for kind in [GeluKind::Erf, GeluKind::Tanh] {
                    let op = Gelu { len, kind };
                    outputs.extend(compute(op, &[&x], threads).unwrap());
                    outputs.extend(compute(GeluDx(op), &[&x, &dy], threads).unwrap());
                }
                outputs
            });
        }
    }
}
