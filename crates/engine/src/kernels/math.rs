//! Elementary functions as straight-line code, which the compiler turns into vector code.
//!
//! Each states its domain and its error; the tests measure it against `f64` over the domain. None
//! has a branch: selections compile to blends. NaN stays NaN.

use super::lanes::Arithmetic;
use std::f32::consts::LOG2_E;

/// Adding this rounds an `f32` below 2^22 to a whole number, kept in the low bits of the sum.
const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23

/// `ln 2` in two parts: the first has few enough bits that its product with an exponent is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Below this, `exp` is under the smallest normal number and is given as zero.
const EXP_UNDERFLOW: f32 = -87.3;

/// `e^x` for `x ≤ 88`, within 2 units in the last place; zero where it would be subnormal.
///
/// `x = n · ln 2 + r` with `|r| ≤ ln 2 / 2`; `e^r = 1 + r + r² · q(r)`, `q` a minimax polynomial
/// with relative error 3e-9; the factor `2^n` is put together from its bits.
#[inline(always)]
pub(crate) fn exp<A: Arithmetic>(x: f32) -> f32 {
    let shifted = A::mul_add(x, LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = A::mul_add(n, -LN_2_LOW, A::mul_add(n, -LN_2_HIGH, x));
    let q = A::mul_add(1.381_446_7e-3, r, 8.368_78e-3);
    let q = A::mul_add(q, r, 4.166_839_4e-2);
    let q = A::mul_add(q, r, 0.166_665_2);
    let q = A::mul_add(q, r, 0.499_999_93);
    let e = A::mul_add(q * r, r, r) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    let result = e * power;
    if x < EXP_UNDERFLOW { 0.0 } else { result }
}

/// The lower tail of the normal distribution, `Φ(-|x|)`, and `exp(-x² / 2)`.
///
/// `exp(-x² / 2) = 2^n · 2^f` with `|f| ≤ 1/2` and `2^f = 1 + f · q(f)`; for `a = |x|`, `Φ(-a) =
/// exp(-a² / 2) · t · p(t)` with `t = 1 / (1 + 0.3 a)`; `q` and `p` are minimax polynomials with
/// relative errors 9.2e-8 and 1.2e-7. Both results keep their relative accuracy far out, where `1 +
/// erf(x / √2)` would cancel: the error is at most `8 + x²` units in the last place.
#[allow(clippy::approx_constant)] // The last coefficient of `q` is near ln 2, and is not ln 2.
#[inline(always)]
pub(crate) fn normal_tail<A: Arithmetic>(x: f32) -> (f32, f32) {
    // The exponent of two. Beyond |x| = 13.2 the tail is under the smallest normal number.
    let exponent = x * x * (-0.5 * LOG2_E);
    let exponent = if exponent < -126.0 { -126.0 } else { exponent };
    let shifted = exponent + ROUND;
    let f = exponent - (shifted - ROUND);
    let q = A::mul_add(1.326_459_1e-3, f, 9.671_619e-3);
    let q = A::mul_add(q, f, 5.550_735e-2);
    let q = A::mul_add(q, f, 0.240_222_41);
    let q = A::mul_add(q, f, 0.693_147);
    let e = A::mul_add(q, f, 1.0);
    // Adding to the exponent's bits multiplies by 2^n.
    let bell = f32::from_bits(e.to_bits().wrapping_add(shifted.to_bits() << 23));
    let t = 1.0 / A::mul_add(x.abs(), 0.3, 1.0);
    let p = A::mul_add(3.603_621e-2, t, -0.158_713_25);
    let p = A::mul_add(p, t, 0.208_964_02);
    let p = A::mul_add(p, t, -5.609_539e-2);
    let p = A::mul_add(p, t, 0.129_843_18);
    let p = A::mul_add(p, t, 9.952_313_5e-2);
    let p = A::mul_add(p, t, 0.120_816_88);
    let p = A::mul_add(p, t, 0.119_625_166);
    (bell * t * p, bell)
}

/// The logistic function `s = 1 / (1 + e^-x)`, within 4 units in the last place, and `s · (1 - s)`,
/// its derivative, within 6.
///
/// The exponential is taken of `-|x|`, so nothing overflows and neither tail cancels.
#[inline(always)]
pub(crate) fn logistic<A: Arithmetic>(x: f32) -> (f32, f32) {
    let e = exp::<A>(-x.abs());
    let upper = 1.0 / (1.0 + e);
    let lower = e * upper;
    (if x < 0.0 { lower } else { upper }, lower * upper)
}

#[cfg(test)]
mod tests {
    use super::super::lanes::{Fused, Plain};
    use super::*;

    /// The distance of `got` from `want` in units in the last place of `want`.
    fn ulps(got: f32, want: f64) -> f64 {
        let exponent = (want.abs().max(f64::from(f32::MIN_POSITIVE))).log2().floor() as i32;
        (f64::from(got) - want).abs() / 2f64.powi(exponent - 23)
    }

    /// The largest error of `f` over the points of a grid from `low` to `high`.
    fn worst(low: f64, high: f64, f: impl Fn(f32) -> (f32, f64)) -> f64 {
        const STEPS: usize = 50_000;
        (0..=STEPS)
            .map(|i| {
                let x = (low + (high - low) * i as f64 / STEPS as f64) as f32;
                let (got, want) = f(x);
                ulps(got, want)
            })
            .fold(0.0, f64::max)
    }

    /// `erfc(z) / 2` at `z = a / √2`, by a series near zero and a continued fraction far away.
    fn lower_tail(a: f64) -> f64 {
        let bell = (-a * a / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
        if a < 3.0 {
            let (mut term, mut sum, mut n) = (a, a, 1.0);
            while term > 1e-18 * sum {
                n += 2.0;
                term *= a * a / n;
                sum += term;
            }
            0.5 - bell * sum
        } else {
            let tail = (1..=200).rev().fold(a, |tail, k| a + f64::from(k) / tail);
            bell / tail
        }
    }

    #[test]
    fn exp_is_within_two_units() {
        let check = |f: fn(f32) -> f32| {
            worst(-87.2, 88.0, |x| (f(x), f64::from(x).exp())) // The stated domain.
                .max(worst(-1.0, 1.0, |x| (f(x), f64::from(x).exp())))
        };
        assert!(check(exp::<Fused>) <= 2.0, "{}", check(exp::<Fused>));
        assert!(check(exp::<Plain>) <= 2.0, "{}", check(exp::<Plain>));
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp::<Plain>(0.0), 1.0);
        assert_eq!(exp::<Plain>(-0.0), 1.0);
        assert_eq!(exp::<Plain>(-88.0), 0.0);
        assert_eq!(exp::<Plain>(-1e30), 0.0);
        assert_eq!(exp::<Fused>(f32::NEG_INFINITY), 0.0);
        assert!(exp::<Fused>(f32::NAN).is_nan());
    }

    #[test]
    fn normal_tail_is_within_its_error() {
        let tail = |x: f32| lower_tail(f64::from(x));
        let bell = |x: f32| (-f64::from(x).powi(2) / 2.0).exp();
        for low in 0..13 {
            let (low, high) = (f64::from(low), f64::from(low + 1));
            let bound = 8.0 + high.powi(2);
            for error in [
                worst(low, high, |x| (normal_tail::<Fused>(x).0, tail(x))),
                worst(low, high, |x| (normal_tail::<Plain>(x).0, tail(x))),
                worst(low, high, |x| (normal_tail::<Fused>(x).1, bell(x))),
                worst(low, high, |x| (normal_tail::<Plain>(x).1, bell(x))),
            ] {
                assert!(error <= bound, "{error} units from {low} to {high}");
            }
        }
        assert!(normal_tail::<Fused>(1e20).0 < 1e-38);
        assert!(normal_tail::<Fused>(f32::NAN).0.is_nan());
    }

    #[test]
    fn logistic_and_its_derivative_are_within_their_errors() {
        let value = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
        let slope = |x: f32| value(x) * value(-x);
        for (low, high) in [(-80.0, 80.0), (-2.0, 2.0)] {
            let fused = worst(low, high, |x| (logistic::<Fused>(x).0, value(x)));
            let plain = worst(low, high, |x| (logistic::<Plain>(x).0, value(x)));
            assert!(fused.max(plain) <= 4.0, "{fused} {plain}");
            let fused = worst(low, high, |x| (logistic::<Fused>(x).1, slope(x)));
            let plain = worst(low, high, |x| (logistic::<Plain>(x).1, slope(x)));
            assert!(fused.max(plain) <= 6.0, "{fused} {plain}");
        }
        assert_eq!(logistic::<Fused>(f32::NEG_INFINITY), (0.0, 0.0));
        assert_eq!(logistic::<Fused>(f32::INFINITY), (1.0, 0.0));
    }
}
