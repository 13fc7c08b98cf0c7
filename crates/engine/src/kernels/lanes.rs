//! One body, two instruction sets: how the memory-bound kernels are vectorised.
//!
//! A kernel's inner loops are written once, as plain loops that the compiler can vectorise, inside
//! [`vectorised!`]. The macro compiles the body twice, for AVX2 with FMA and for the target's base
//! instructions, and picks at run time. Only [`Arithmetic::mul_add`] differs: one rounding with
//! FMA, two without (a fused one would be a slow library call there). So results are the same bits
//! on one machine, whatever the thread count, and may differ in the last place between machines.
//!
//! Floating-point sums are never reordered by the compiler, so reductions name their order here:
//! [`sums`] keeps [`WIDTH`] running values side by side and joins them in a tree.

/// Running values of a reduction: four AVX2 registers, enough to hide the latency of an addition.
const WIDTH: usize = 32;
/// The same for what is left over: one register.
const NARROW: usize = 8;

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

/// `S` sums over `K` slices of one length: `add(sums, values)` gives the sums with one more
/// element.
///
/// Whole chunks of [`WIDTH`] elements first, then of [`NARROW`], then single elements; each kind
/// has its own running sums, which are joined in a tree and added in this order.
#[inline(always)]
pub(crate) fn sums<const S: usize, const K: usize>(
    slices: [&[f32]; K],
    add: impl Fn([f32; S], [f32; K]) -> [f32; S],
) -> [f32; S] {
    let len = slices[0].len();
    let narrow = len - len % WIDTH;
    let single = len - len % NARROW;
    let mut totals = [0.0; S];
    if narrow > 0 {
        totals = chunk_sums::<S, K, WIDTH>(slices.map(|x| &x[..narrow]), &add);
    }
    if single > narrow {
        let rest = chunk_sums::<S, K, NARROW>(slices.map(|x| &x[narrow..single]), &add);
        totals = std::array::from_fn(|s| totals[s] + rest[s]);
    }
    for i in single..len {
        totals = add(totals, slices.map(|x| x[i]));
    }
    totals
}

/// [`sums`] in chunks of `W`, of which the length is a multiple.
#[inline(always)]
fn chunk_sums<const S: usize, const K: usize, const W: usize>(
    slices: [&[f32]; K],
    add: &impl Fn([f32; S], [f32; K]) -> [f32; S],
) -> [f32; S] {
    let mut runs = [[0.0; W]; S];
    let chunks = slices.map(|x| x.as_chunks::<W>().0);
    for i in 0..chunks[0].len() {
        let chunk = chunks.map(|chunks| &chunks[i]);
        for lane in 0..W {
            let run = std::array::from_fn(|s| runs[s][lane]);
            let run = add(run, chunk.map(|x| x[lane]));
            for s in 0..S {
                runs[s][lane] = run[s];
            }
        }
    }
    runs.map(|runs| join(runs, |a, b| a + b))
}

/// The largest element; a NaN is passed over.
#[inline(always)]
pub(crate) fn maximum(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut runs = [f32::NEG_INFINITY; WIDTH];
    let (chunks, rest) = x.as_chunks::<WIDTH>();
    for chunk in chunks {
        for lane in 0..WIDTH {
            runs[lane] = larger(runs[lane], chunk[lane]);
        }
    }
    rest.iter().fold(join(runs, larger), |run, &x| larger(run, x))
}

/// Joins running values in a tree.
#[inline(always)]
fn join<const W: usize>(mut runs: [f32; W], pair: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = W / 2;
    while half > 0 {
        for i in 0..half {
            runs[i] = pair(runs[i], runs[i + half]);
        }
        half /= 2;
    }
    runs[0]
}

/// The sum of `x`.
#[inline(always)]
pub(crate) fn sum(x: &[f32]) -> f32 {
    sums([x], |[sum], [x]| [sum + x])[0]
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
    fn reductions_cover_every_length() {
        for len in [0, 1, 7, 8, 31, 32, 33, 64, 100] {
            let x: Vec<f32> = (0..len).map(|i| ((i * 7) % 13) as f32).collect();
            // Small whole numbers: their sums are exact in any order.
            assert_eq!(sum(&x), x.iter().sum::<f32>());
            let both = sums([&x, &x], |[sum, squares], [a, b]| [sum + a, squares + a * b]);
            assert_eq!(both, [sum(&x), x.iter().map(|v| v * v).sum::<f32>()]);
            assert_eq!(maximum(&x), x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
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
