//! Inputs and comparisons that the kernels' tests share.

use crate::Threads;

/// Lengths around the widths of vectors and tasks.
pub(crate) const AWKWARD_LENGTHS: [usize; 7] = [0, 1, 7, 33, 1000, 16 * 1024, 3 * 16 * 1024 + 5];

/// `len` numbers spread like a normal distribution's middle, within ±3; the same for a seed.
pub(crate) fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678_9ABC_DEF1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..len)
        .map(|_| (0..6).map(|_| uniform()).sum::<f32>())
        .collect()
}

/// Asserts `|got - want| ≤ relative · |want| + absolute` for every element.
#[track_caller]
pub(crate) fn assert_close(got: &[f32], want: &[f64], relative: f64, absolute: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(
            error <= relative * want.abs() + absolute,
            "element {i}: {got}, expected {want}, error {error:e}"
        );
    }
}

/// Asserts that `run` gives the same bits with 1, 2 and 3 threads.
#[track_caller]
pub(crate) fn assert_same_bits(run: impl Fn(&Threads) -> Vec<Vec<f32>>) {
    let bits = |outputs: Vec<Vec<f32>>| -> Vec<Vec<u32>> {
        let bits = |output: Vec<f32>| output.into_iter().map(f32::to_bits).collect();
        outputs.into_iter().map(bits).collect()
    };
    let one = bits(run(&Threads::new(1)));
    for count in [2, 3] {
        assert!(one == bits(run(&Threads::new(count))), "{count} threads");
    }
}

/// `x` as `f64`.
pub(crate) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}
