//! Softmax over the last axis, forward and backward, with an optional causal mask.
//!
//! Each row is shifted by its maximum, so no exponential overflows. A row stays in the first-level
//! cache for its three passes. A row of `-∞` alone gives NaN, as in PyTorch.

use super::KernelError;
use super::lanes::{maximum, sum, sums, vectorised};
use super::math::exp;
use super::tasks::rows_per_task;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Mask, Softmax, SoftmaxDx};

impl Kernel for Softmax {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let x = call.read(0);
        let rows = rows_per_task(self.cols);
        let elements = rows * self.cols.max(1);
        call.threads.chunks_mut(call.write(0), elements, &|task, y| {
            let start = task * rows * self.cols;
            softmax_rows(self, task * rows, &x[start..start + y.len()], y);
        });
        Ok(())
    }
}

/// `dx = y · (dy - Σ y · dy)`.
impl Kernel for SoftmaxDx {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (y, dy) = (call.read(0), call.read(1));
        let rows = rows_per_task(self.0.cols);
        let elements = rows * self.0.cols.max(1);
        call.threads.chunks_mut(call.write(0), elements, &|task, dx| {
            let range = task * elements..task * elements + dx.len();
            softmax_dx_rows(&self.0, task * rows, &y[range.clone()], &dy[range], dx);
        });
        Ok(())
    }
}

/// How many columns row `row` sees.
#[inline(always)]
fn seen(dims: &Softmax, row: usize) -> usize {
    match dims.mask {
        Mask::Full => dims.cols,
        Mask::Causal => row % dims.cols + 1,
    }
}

vectorised! {
    fn softmax_rows<A>(dims: &Softmax, first_row: usize, x: &[f32], y: &mut [f32]) {
        let rows = x.chunks_exact(dims.cols).zip(y.chunks_exact_mut(dims.cols));
        for (row, (x, y)) in rows.enumerate() {
            let (y, masked) = y.split_at_mut(seen(dims, first_row + row));
            let x = &x[..y.len()];
            let shift = maximum(x);
            for (y, &x) in y.iter_mut().zip(x) {
                *y = exp::<A>(x - shift);
            }
            let scale = 1.0 / sum(y);
            for y in y {
                *y *= scale;
            }
            masked.fill(0.0);
        }
    }
}

vectorised! {
    fn softmax_dx_rows<A>(
        dims: &Softmax, first_row: usize, y: &[f32], dy: &[f32], dx: &mut [f32],
    ) {
        let rows = y
            .chunks_exact(dims.cols)
            .zip(dy.chunks_exact(dims.cols))
            .zip(dx.chunks_exact_mut(dims.cols));
        for (row, ((y, dy), dx)) in rows.enumerate() {
            let (dx, masked) = dx.split_at_mut(seen(dims, first_row + row));
            let (y, dy) = (&y[..dx.len()], &dy[..dx.len()]);
            let [dot] = sums([y, dy], |[dot], [y, dy]| [A::mul_add(y, dy, dot)]);
            for ((dx, &y), &dy) in dx.iter_mut().zip(y).zip(dy) {
                *dx = y * (dy - dot);
            }
            masked.fill(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;
    use crate::kernels::lanes::tests::portable;
    use crate::kernels::test_data::{assert_close, assert_same_bits, compute, random, wide};

    const SHAPES: [(usize, usize); 6] =
        [(1, 1), (3, 7), (5, 33), (256, 128), (2, 4099), (9, 20000)];

    fn cases() -> impl Iterator<Item = Softmax> {
        SHAPES.into_iter().flat_map(|(rows, cols)| {
            [Mask::Full, Mask::Causal].map(|mask| Softmax { rows, cols, mask })
        })
    }

    fn reference(dims: &Softmax, x: &[f64]) -> Vec<f64> {
        let mut y = vec![0.0; x.len()];
        for row in 0..dims.rows {
            let end = row * dims.cols + seen(dims, row);
            let x = &x[row * dims.cols..end];
            let shift = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = x.iter().map(|x| (x - shift).exp()).sum();
            for (y, x) in y[row * dims.cols..end].iter_mut().zip(x) {
                *y = (x - shift).exp() / total;
            }
        }
        y
    }

    fn reference_dx(dims: &Softmax, y: &[f64], dy: &[f64]) -> Vec<f64> {
        let rows = y.chunks(dims.cols).zip(dy.chunks(dims.cols));
        rows.flat_map(|(y, dy)| {
            let dot: f64 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
            y.iter().zip(dy).map(|(y, dy)| y * (dy - dot)).collect::<Vec<_>>()
        })
        .collect()
    }

    #[test]
    fn both_directions_match_the_definition() {
        let threads = Threads::new(1);
        for dims in cases() {
            let len = dims.rows * dims.cols;
            // A large common offset must not matter.
            let x: Vec<f32> = random(len, 1).iter().map(|x| 3.0 * x + 50.0).collect();
            let dy = random(len, 2);
            let check = || {
                let y = compute(dims, &[&x], &threads).unwrap().remove(0);
                let dx = compute(SoftmaxDx(dims), &[&y, &dy], &threads).unwrap().remove(0);
                // `x - max` is exact to half a unit of 50, 2e-6; the sum adds a few roundings.
                assert_close(&y, &reference(&dims, &wide(&x)), 5e-6, 0.0);
                // The dot product of terms up to 3 is good to a few units; `y` scales it.
                assert_close(&dx, &reference_dx(&dims, &wide(&y), &wide(&dy)), 2e-6, 2e-6);
            };
            check();
            portable(check);
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for dims in cases() {
            let len = dims.rows * dims.cols;
            let (x, dy) = (random(len, 3), random(len, 4));
            assert_same_bits(|threads| {
                let mut outputs = compute(dims, &[&x], threads).unwrap();
                outputs.extend(compute(SoftmaxDx(dims), &[&outputs[0], &dy], threads).unwrap());
                outputs
            });
        }
    }

    #[test]
    fn masked_scores_get_no_weight() {
        let dims = Softmax { rows: 2, cols: 3, mask: Mask::Full };
        let minus = f32::NEG_INFINITY;
        let x = [1.0, minus, 1.0, minus, minus, minus];
        let y = compute(dims, &[&x], &Threads::new(1)).unwrap().remove(0);
        assert_eq!(y[..3], [0.5, 0.0, 0.5]);
        assert!(y[3..].iter().all(|y| y.is_nan()), "{y:?}");
    }
}
