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
/// `x = n · ln 2 + r` with `|r| ≤ ln 2 / 2`; `e^r = 1 + r + r² · q(r)`, `q` a minimax polynomial with
/// relative error 3e-9; the factor `2^n` is put together from its bits.
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

/// The standard normal distribution `Φ(x)` and `exp(-x² / 2)`.
///
/// `Φ(-a) = exp(-a² / 2) · t · p(t)` with `t = 1 / (1 + 0.35 · a)` for `a ≥ 0`, `p` a minimax polynomial
/// with relative error 3.2e-8; so the lower tail keeps its relative accuracy (about `a²` units in
/// the last place), where `1 + erf(x / √2)` would cancel. For `x > -1` the error is at most 6 units.
#[inline(always)]
pub(crate) fn normal_cdf<A: Arithmetic>(x: f32) -> (f32, f32) {
    let bell = exp::<A>(x * x * -0.5);
    let t = 1.0 / A::mul_add(x.abs(), 0.35, 1.0);
    let p = A::mul_add(-0.029_115_012, t, 0.143_818_41);
    let p = A::mul_add(p, t, -0.255_391);
    let p = A::mul_add(p, t, 0.158_796_56);
    let p = A::mul_add(p, t, -0.022_843_43);
    let p = A::mul_add(p, t, 0.105_392_15);
    let p = A::mul_add(p, t, 0.119_863_085);
    let p = A::mul_add(p, t, 0.139_857_56);
    let p = A::mul_add(p, t, 0.139_621_66);
    let lower = bell * t * p;
    (if x > 0.0 { 1.0 - lower } else { lower }, bell)
}

/// The logistic function `s = 1 / (1 + e^-x)`, within 4 units in the last place, and `s · (1 - s)`, its
/// derivative, within 6.
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
        let exponent = (want.abs().max(f64::from(f32::MIN_POSITIVE)))
            .log2()
            .floor() as i32;
        (f64::from(got) - want).abs() / 2f64.powi(exponent - 23)
    }

    /// The largest error of `f` over `steps` points from `low` to `high`.
    fn worst(low: f64, high: f64, f: impl Fn(f32) -> (f32, f64)) -> f64 {
        const STEPS: usize = 400_000;
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
    fn normal_cdf_is_within_its_error() {
        let want = |x: f32| {
            let tail = lower_tail(f64::from(x).abs());
            if x > 0.0 { 1.0 - tail } else { tail }
        };
        let body = worst(-1.0, 20.0, |x| (normal_cdf::<Fused>(x).0, want(x)));
        assert!(body <= 6.0, "{body}");
        let plain = worst(-1.0, 20.0, |x| (normal_cdf::<Plain>(x).0, want(x)));
        assert!(plain <= 6.0, "{plain}");
        for low in [-2.0, -4.0, -8.0, -12.0] {
            let tail = worst(low, low + 1.0, |x| (normal_cdf::<Fused>(x).0, want(x)));
            assert!(tail <= 6.0 + low * low, "{tail} units at {low}");
        }
        assert_eq!(normal_cdf::<Fused>(f32::NEG_INFINITY).0, 0.0);
        assert_eq!(normal_cdf::<Fused>(f32::INFINITY).0, 1.0);
        assert!(normal_cdf::<Fused>(f32::NAN).0.is_nan());
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
