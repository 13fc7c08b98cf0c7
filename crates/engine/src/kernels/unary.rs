//! Functions of one number, and their derivatives, for each element.
//!
//! What networks use in every layer is straight-line code of [`math`](super::math); what is rare
//! takes the library's functions.

use super::KernelError;
use super::lanes::{Arithmetic, vectorised};
use super::math::{exp, logistic, normal_tail};
use super::tasks::map_elements;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Map, Unary, UnaryDx};

/// `2 / √π`, the slope of the error function at zero.
const ERF_SLOPE: f32 = std::f32::consts::FRAC_2_SQRT_PI;

impl Kernel for Unary {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        map_elements(call, |[x], y| map_chunk(self.map, x, y));
        Ok(())
    }
}

impl Kernel for UnaryDx {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        map_elements(call, |[x, dy], dx| slope_chunk(self.0.map, x, dy, dx));
        Ok(())
    }
}

#[inline(always)]
fn each(x: &[f32], y: &mut [f32], f: impl Fn(f32) -> f32) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y = f(x);
    }
}

#[inline(always)]
fn each_slope(x: &[f32], dy: &[f32], dx: &mut [f32], slope: impl Fn(f32) -> f32) {
    for ((dx, &x), &dy) in dx.iter_mut().zip(x).zip(dy) {
        *dx = dy * slope(x);
    }
}

/// `min(max(x, low), high)`, and NaN for NaN.
#[inline(always)]
fn clip(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

#[inline(always)]
fn power(x: f32, exponent: f32) -> f32 {
    match exponent {
        0.0 => 1.0,
        1.0 => x,
        2.0 => x * x,
        3.0 => x * x * x,
        0.5 => x.sqrt(),
        -0.5 => 1.0 / x.sqrt(),
        -1.0 => 1.0 / x,
        _ => x.powf(exponent),
    }
}

/// The error function: a polynomial near zero, the normal distribution's tail elsewhere.
#[inline(always)]
fn erf<A: Arithmetic>(x: f32) -> f32 {
    let z = x * x;
    let p = A::mul_add(-9.635_01e-6, z, 1.125_468e-4);
    let p = A::mul_add(p, z, -8.482_518_6e-4);
    let p = A::mul_add(p, z, 5.220_924_5e-3);
    let p = A::mul_add(p, z, -2.686_539_3e-2);
    let p = A::mul_add(p, z, 0.112_837_82);
    let p = A::mul_add(p, z, -0.376_126_38);
    let near = x * A::mul_add(p, z, ERF_SLOPE);
    let far = 1.0 - 2.0 * normal_tail::<A>(x * std::f32::consts::SQRT_2).0;
    let far = if x < 0.0 { -far } else { far };
    if z < 1.0 { near } else { far }
}

/// `ln(1 + e^x)`; beyond 20 it is `x` to the last place.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

vectorised! {
    fn map_chunk<A>(map: Map, x: &[f32], y: &mut [f32]) {
        match map {
            Map::Sigmoid => each(x, y, |x| logistic::<A>(x).0),
            Map::Silu => each(x, y, |x| x * logistic::<A>(x).0),
            Map::Tanh => each(x, y, f32::tanh),
            Map::HardSigmoid { slope, shift } => {
                each(x, y, |x| clip(A::mul_add(slope, x, shift), 0.0, 1.0));
            }
            Map::HardSwish => each(x, y, |x| x * clip(x + 3.0, 0.0, 6.0) / 6.0),
            Map::LeakyRelu { slope } => each(x, y, |x| if x < 0.0 { slope * x } else { x }),
            Map::Elu { alpha } => each(x, y, |x| if x < 0.0 { alpha * x.exp_m1() } else { x }),
            Map::Clip { low, high } => each(x, y, |x| clip(x, low, high)),
            Map::Softplus => each(x, y, softplus),
            Map::Exp => each(x, y, |x| if x > 88.0 { x.exp() } else { exp::<A>(x) }),
            Map::Log => each(x, y, f32::ln),
            Map::Sqrt => each(x, y, f32::sqrt),
            Map::Reciprocal => each(x, y, |x| 1.0 / x),
            Map::Abs => each(x, y, f32::abs),
            Map::Erf => each(x, y, erf::<A>),
            Map::Sin => each(x, y, f32::sin),
            Map::Cos => each(x, y, f32::cos),
            Map::Power { exponent } => match exponent {
                2.0 => each(x, y, |x| x * x),
                _ => each(x, y, |x| power(x, exponent)),
            },
            Map::Shift { by } => each(x, y, |x| x + by),
        }
    }
}

vectorised! {
    /// `dx = dy · map'(x)`.
    fn slope_chunk<A>(map: Map, x: &[f32], dy: &[f32], dx: &mut [f32]) {
        match map {
            Map::Sigmoid => each_slope(x, dy, dx, |x| logistic::<A>(x).1),
            Map::Silu => each_slope(x, dy, dx, |x| {
                let (value, slope) = logistic::<A>(x);
                A::mul_add(x, slope, value)
            }),
            Map::Tanh => each_slope(x, dy, dx, |x| 1.0 - x.tanh() * x.tanh()),
            Map::HardSigmoid { slope, shift } => each_slope(x, dy, dx, |x| {
                let y = A::mul_add(slope, x, shift);
                if y > 0.0 && y < 1.0 { slope } else { 0.0 }
            }),
            Map::HardSwish => each_slope(x, dy, dx, |x| {
                let inner = x / 3.0 + 0.5;
                let inner = if x < -3.0 { 0.0 } else { inner };
                if x > 3.0 { 1.0 } else { inner }
            }),
            Map::LeakyRelu { slope } => {
                each_slope(x, dy, dx, |x| if x > 0.0 { 1.0 } else { slope });
            }
            Map::Elu { alpha } => {
                each_slope(x, dy, dx, |x| if x > 0.0 { 1.0 } else { alpha * x.exp() });
            }
            Map::Clip { low, high } => {
                each_slope(x, dy, dx, |x| if x <= low || x >= high { 0.0 } else { 1.0 });
            }
            Map::Softplus => each_slope(x, dy, dx, |x| logistic::<A>(x).0),
            Map::Exp => each_slope(x, dy, dx, |x| if x > 88.0 { x.exp() } else { exp::<A>(x) }),
            Map::Log | Map::Reciprocal => {
                let squared = map == Map::Reciprocal;
                each_slope(x, dy, dx, |x| if squared { -1.0 / (x * x) } else { 1.0 / x });
            }
            Map::Sqrt => each_slope(x, dy, dx, |x| 0.5 / x.sqrt()),
            Map::Abs => each_slope(x, dy, dx, |x| if x == 0.0 { 0.0 } else { 1f32.copysign(x) }),
            Map::Erf => each_slope(x, dy, dx, |x| ERF_SLOPE * exp::<A>(-x * x)),
            Map::Sin => each_slope(x, dy, dx, f32::cos),
            Map::Cos => each_slope(x, dy, dx, |x| -x.sin()),
            Map::Power { exponent } => match exponent {
                2.0 => each_slope(x, dy, dx, |x| 2.0 * x),
                _ => each_slope(x, dy, dx, |x| exponent * power(x, exponent - 1.0)),
            },
            Map::Shift { .. } => each_slope(x, dy, dx, |_| 1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;
    use crate::kernels::lanes::tests::portable;
    use crate::kernels::test_data::{
        AWKWARD_LENGTHS, assert_close, assert_same_bits, compute, random, wide,
    };

    const MAPS: [Map; 20] = [
        Map::Sigmoid,
        Map::Tanh,
        Map::Silu,
        Map::HardSigmoid { slope: 0.2, shift: 0.5 },
        Map::HardSwish,
        Map::LeakyRelu { slope: 0.1 },
        Map::Elu { alpha: 0.7 },
        Map::Clip { low: -0.5, high: 1.0 },
        Map::Softplus,
        Map::Exp,
        Map::Log,
        Map::Sqrt,
        Map::Reciprocal,
        Map::Abs,
        Map::Erf,
        Map::Sin,
        Map::Cos,
        Map::Power { exponent: 3.0 },
        Map::Power { exponent: 1.7 },
        Map::Shift { by: -2.0 },
    ];

    /// Whether it is defined for positive numbers alone.
    fn positive(map: Map) -> bool {
        matches!(map, Map::Log | Map::Sqrt | Map::Power { exponent: 1.7 })
    }

    /// The error function by its series, in `f64`.
    fn erf_series(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..60 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    }

    fn reference(map: Map, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        match map {
            Map::Sigmoid => sigmoid(x),
            Map::Tanh => x.tanh(),
            Map::Silu => x * sigmoid(x),
            Map::HardSigmoid { slope, shift } => {
                (f64::from(slope) * x + f64::from(shift)).clamp(0.0, 1.0)
            }
            Map::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
            Map::LeakyRelu { slope } => x.max(f64::from(slope) * x),
            Map::Elu { alpha } => x.max(0.0) + f64::from(alpha) * (x.min(0.0).exp() - 1.0),
            Map::Clip { low, high } => x.clamp(low.into(), high.into()),
            Map::Softplus => x.exp().ln_1p(),
            Map::Exp => x.exp(),
            Map::Log => x.ln(),
            Map::Sqrt => x.sqrt(),
            Map::Reciprocal => 1.0 / x,
            Map::Abs => x.abs(),
            Map::Erf => erf_series(x),
            Map::Sin => x.sin(),
            Map::Cos => x.cos(),
            Map::Power { exponent } => x.powf(exponent.into()),
            Map::Shift { by } => x + f64::from(by),
        }
    }

    fn run(map: Map, x: &[f32], dy: &[f32], threads: &Threads) -> Vec<Vec<f32>> {
        let op = Unary { len: x.len(), map };
        let y = compute(op, &[x], threads).unwrap().remove(0);
        let dx = compute(UnaryDx(op), &[x, dy], threads).unwrap().remove(0);
        vec![y, dx]
    }

    fn inputs(map: Map, len: usize) -> (Vec<f32>, Vec<f32>) {
        let mut x = random(len, 1);
        if positive(map) || map == Map::Reciprocal {
            x.iter_mut().for_each(|x| *x = x.abs() + 0.1);
        }
        (x, random(len, 2))
    }

    #[test]
    fn values_and_slopes_match_the_definitions() {
        for map in MAPS {
            let (x, dy) = inputs(map, 4000);
            let want: Vec<f64> = wide(&x).iter().map(|&x| reference(map, x)).collect();
            // Central differences in `f64`; kinks are further away than the step, or the value is
            // one of either side.
            let h = 1e-6;
            let slope = |x: f64| (reference(map, x + h) - reference(map, x - h)) / (2.0 * h);
            let slopes: Vec<f64> =
                x.iter().zip(&dy).map(|(&x, &dy)| slope(x.into()) * f64::from(dy)).collect();
            for got in [
                run(map, &x, &dy, &Threads::new(1)),
                portable(|| run(map, &x, &dy, &Threads::new(1))),
            ] {
                // A few roundings of values around one.
                assert_close(&got[0], &want, 1e-6, 3e-7);
                assert_close(&got[1], &slopes, 2e-6, 2e-6);
            }
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for map in MAPS {
            for len in AWKWARD_LENGTHS {
                let (x, dy) = inputs(map, len);
                assert_same_bits(|threads| run(map, &x, &dy, threads));
            }
        }
    }
}
