//! One body, two instruction sets: how the memory-bound kernels are vectorised.
//!
//! A kernel's inner loops are written once, as plain loops that the compiler can vectorise, inside
//! [`vectorised!`]. The macro compiles the body twice, for AVX2 with FMA and for the target's base
//! instructions, and picks at run time. Only [`Arithmetic::mul_add`] differs: one rounding with FMA,
//! two without (a fused one would be a slow library call there). So results are the same bits on
//! one machine, whatever the thread count, and may differ in the last place between machines.
//!
//! Floating-point sums are never reordered by the compiler, so reductions name their order here:
//! [`fold`] and [`fold_pair`] keep [`WIDTH`] running values side by side and join them in a tree.

/// Running values of a reduction: four AVX2 registers, enough to hide the latency of an addition.
pub(crate) const WIDTH: usize = 32;

/// What differs between the instruction sets.
pub(crate) trait Arithmetic {
    /// `a · b + c`.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// For processors with fused multiply-add.
pub(crate) struct Fused;

/// For all others.
pub(crate) struct Plain;

impl Arithmetic for Fused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl Arithmetic for Plain {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// Declares a function whose body is compiled for AVX2 + FMA and for any processor; `$A` is the
/// [`Arithmetic`] of the one that runs.
macro_rules! vectorised {
    ($(#[$attribute:meta])* $vis:vis fn $name:ident<$A:ident>(
        $($argument:ident: $type:ty),* $(,)?
    ) $(-> $result:ty)? $body:block) => {
        $(#[$attribute])*
        #[allow(clippy::too_many_arguments)] // The operands of the kernel.
        $vis fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)] // As above.
            fn body<$A: $crate::kernels::lanes::Arithmetic>($($argument: $type),*) $(-> $result)?
                $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)] // As above.
            fn avx2($($argument: $type),*) $(-> $result)? {
                body::<$crate::kernels::lanes::Fused>($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            if $crate::kernels::lanes::has_avx2_and_fma() {
                // SAFETY: the processor has the features that the function is compiled for.
                return unsafe { avx2($($argument),*) };
            }
            body::<$crate::kernels::lanes::Plain>($($argument),*)
        }
    };
}
pub(crate) use vectorised;

/// Whether the fast version may run.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2_and_fma() -> bool {
    #[cfg(test)]
    if tests::PORTABLE.get() {
        return false;
    }
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// Folds `step` over `x` from `start`, in [`WIDTH`] interleaved runs joined in a tree by `join`.
#[inline(always)]
pub(crate) fn fold(
    x: &[f32],
    start: f32,
    step: impl Fn(f32, f32) -> f32,
    join: impl Fn(f32, f32) -> f32,
) -> f32 {
    let mut runs = [start; WIDTH];
    let mut chunks = x.chunks_exact(WIDTH);
    for chunk in &mut chunks {
        for (run, &value) in runs.iter_mut().zip(chunk) {
            *run = step(*run, value);
        }
    }
    for (run, &value) in runs.iter_mut().zip(chunks.remainder()) {
        *run = step(*run, value);
    }
    join_tree(runs, join)
}

/// [`fold`] over two slices of one length.
#[inline(always)]
pub(crate) fn fold_pair(x: &[f32], y: &[f32], step: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let mut runs = [0.0; WIDTH];
    let (mut xs, mut ys) = (x.chunks_exact(WIDTH), y.chunks_exact(WIDTH));
    for (x, y) in (&mut xs).zip(&mut ys) {
        for ((run, &x), &y) in runs.iter_mut().zip(x).zip(y) {
            *run = step(*run, x, y);
        }
    }
    for ((run, &x), &y) in runs.iter_mut().zip(xs.remainder()).zip(ys.remainder()) {
        *run = step(*run, x, y);
    }
    join_tree(runs, |a, b| a + b)
}

#[inline(always)]
fn join_tree(mut runs: [f32; WIDTH], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = WIDTH / 2;
    while half > 0 {
        for i in 0..half {
            runs[i] = join(runs[i], runs[i + half]);
        }
        half /= 2;
    }
    runs[0]
}

/// The sum of `x`.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f32 {
    fold(x, 0.0, |run, value| run + value, |a, b| a + b)
}

/// The largest element; a NaN is passed over.
#[inline(always)]
pub(crate) fn maximum(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    fold(x, f32::NEG_INFINITY, larger, larger)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// Set while a test asks for the version without AVX2 on its thread.
        pub(crate) static PORTABLE: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs `work` with the portable version of everything that runs on this thread.
    pub(crate) fn portable<R>(work: impl FnOnce() -> R) -> R {
        PORTABLE.set(true);
        let result = work();
        PORTABLE.set(false);
        result
    }

    #[test]
    fn folds_cover_every_length() {
        for len in [0, 1, 7, 31, 32, 33, 64, 100] {
            let x: Vec<f32> = (0..len).map(|i| ((i * 7) % 13) as f32).collect();
            // Small whole numbers: their sums are exact in any order.
            assert_eq!(sum(&x), x.iter().sum::<f32>());
            let squares = fold_pair(&x, &x, |run, a, b| run + a * b);
            assert_eq!(squares, x.iter().map(|v| v * v).sum::<f32>());
            assert_eq!(
                maximum(&x),
                x.iter().copied().fold(f32::NEG_INFINITY, f32::max)
            );
        }
    }

    vectorised! {
        fn uses_fused_arithmetic<A>() -> bool {
            // Rounded once, the small product survives; rounded twice, it is gone.
            A::mul_add(1.0 + f32::EPSILON, 1.0 - f32::EPSILON, -1.0) != 0.0
        }
    }

    #[test]
    fn tests_can_ask_for_the_portable_version() {
        assert!(!portable(uses_fused_arithmetic));
        #[cfg(target_arch = "x86_64")]
        assert_eq!(uses_fused_arithmetic(), has_avx2_and_fma());
    }
}
