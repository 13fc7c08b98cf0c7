//! Sums and maxima over the middle of three axes.
//!
//! Sums go as in [`columns`](super::columns): blocks in `f32`, the blocks in `f64`. With nothing
//! behind the reduced axis, each sum is over neighbours, in lanes. Otherwise columns are summed
//! side by side; where there are few of them, the reduced axis is cut into tasks whose partial sums
//! are added in order. How it is cut follows from the shape alone.

use super::KernelError;
use super::columns::{self, CHUNK, Terms, sum_terms};
use super::lanes::{maximum, sums, vectorised};
use super::tasks::rows_per_task;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Reduce, Reduction};

/// Outer parts from which on each is a task of its own: enough for the threads of one machine.
const PARTS: usize = 16;
/// Neighbours that are summed in `f32`.
const RUN: usize = 4096;

/// Tasks into which the reduced axis of each outer part is cut.
fn cuts(op: &Reduce) -> usize {
    match op.inner > 1 && op.outer < PARTS && op.reduction == Reduction::Sum {
        true => columns::tasks(op.extent),
        false => 1,
    }
}

impl Kernel for Reduce {
    fn scratch(&self, _: usize) -> usize {
        match cuts(self) {
            1 => 0,
            cuts => self.outer * cuts * self.inner,
        }
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (x, z): (&[f32], _) = (call.read(0), call.read_if(self.product, 1));
        let y = call.write(0);
        let &Reduce { extent, inner, factor, .. } = self;
        let part = extent * inner;
        if inner == 1 {
            let rows = rows_per_task(extent);
            call.threads.chunks_mut(y, rows, &|task, y| {
                for (row, y) in y.iter_mut().enumerate() {
                    let range = (task * rows + row) * extent..(task * rows + row + 1) * extent;
                    *y = factor * reduce_run(self, &x[range.clone()], z.map(|z| &z[range.clone()]));
                }
            });
            return Ok(());
        }
        let cuts = cuts(self);
        if cuts == 1 {
            call.threads.chunks_mut(y, inner, &|task, y| {
                let range = task * part..(task + 1) * part;
                reduce_columns(self, &x[range.clone()], z.map(|z| &z[range.clone()]), y);
                y.iter_mut().for_each(|y| *y *= factor);
            });
            return Ok(());
        }
        let partials = &mut call.scratch()[..self.outer * cuts * inner];
        let share = columns::rows_per_task(extent) * inner;
        call.threads.chunks_mut(partials, inner, &|task, partial| {
            let start = task / cuts * part + task % cuts * share;
            let end = (start + share).min((task / cuts + 1) * part);
            reduce_columns(self, &x[start..end], z.map(|z| &z[start..end]), partial);
        });
        for (partials, y) in partials.chunks(cuts * inner).zip(y.chunks_mut(inner)) {
            columns::join(partials, inner, y, call.threads);
            y.iter_mut().for_each(|y| *y *= factor);
        }
        Ok(())
    }
}

vectorised! {
    /// The sum or the maximum of neighbours.
    fn reduce_run<A>(op: &Reduce, x: &[f32], z: Option<&[f32]>) -> f32 {
        match (op.reduction, z) {
            (Reduction::Max, _) => maximum(x),
            (Reduction::Sum, None) => {
                let runs = x.chunks(RUN).map(|x| f64::from(sums([x], |[sum], [x]| [sum + x])[0]));
                runs.sum::<f64>() as f32
            }
            (Reduction::Sum, Some(z)) => {
                let runs = x.chunks(RUN).zip(z.chunks(RUN));
                let dot = |(x, z)| sums([x, z], |[sum], [x, z]| [A::mul_add(x, z, sum)])[0];
                runs.map(|run| f64::from(dot(run))).sum::<f64>() as f32
            }
        }
    }
}

vectorised! {
    /// The sum or the maximum of each column of `x: [rows, y.len()]`.
    fn reduce_columns<A>(op: &Reduce, x: &[f32], z: Option<&[f32]>, y: &mut [f32]) {
        struct Plain<'a>(&'a [f32]);
        impl Terms<1> for Plain<'_> {
            #[inline(always)]
            fn add(&mut self, at: usize, _: usize, width: usize, sums: &mut [[f32; CHUNK]; 1]) {
                for (sum, x) in sums[0].iter_mut().zip(&self.0[at..at + width]) {
                    *sum += x;
                }
            }
        }
        struct Products<'a>(&'a [f32], &'a [f32]);
        impl Terms<1> for Products<'_> {
            #[inline(always)]
            fn add(&mut self, at: usize, _: usize, width: usize, sums: &mut [[f32; CHUNK]; 1]) {
                let (x, z) = (&self.0[at..at + width], &self.1[at..at + width]);
                for ((sum, x), z) in sums[0].iter_mut().zip(x).zip(z) {
                    *sum += x * z;
                }
            }
        }
        let cols = y.len();
        match (op.reduction, z) {
            (Reduction::Sum, None) => sum_terms(&mut Plain(x), x.len() / cols, cols, y),
            (Reduction::Sum, Some(z)) => sum_terms(&mut Products(x, z), x.len() / cols, cols, y),
            (Reduction::Max, _) => {
                y.fill(f32::NEG_INFINITY);
                for row in x.chunks_exact(cols) {
                    for (y, &x) in y.iter_mut().zip(row) {
                        *y = if x > *y { x } else { *y };
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;
    use crate::kernels::lanes::tests::portable;
    use crate::kernels::test_data::{assert_close, assert_same_bits, compute, random};

    const SHAPES: [[usize; 3]; 9] = [
        [1, 1, 1],
        [1, 70_000, 1],
        [300, 33, 1],
        [5, 9000, 1],
        [1, 5000, 7],
        [2, 49, 300],
        [40, 49, 20],
        [3, 1, 600],
        [1, 2, 20_000],
    ];

    fn cases() -> impl Iterator<Item = Reduce> {
        SHAPES.into_iter().flat_map(|[outer, extent, inner]| {
            let op = |reduction, product, factor| Reduce {
                outer,
                extent,
                inner,
                reduction,
                product,
                factor,
            };
            [
                op(Reduction::Sum, false, 0.3),
                op(Reduction::Sum, true, 1.0),
                op(Reduction::Max, false, 1.0),
            ]
        })
    }

    fn run(op: &Reduce, threads: &Threads) -> Vec<Vec<f32>> {
        let len = op.outer * op.extent * op.inner;
        let (x, z) = (random(len, 1), random(len, 2));
        match op.product {
            true => compute(*op, &[&x, &z], threads).unwrap(),
            false => compute(*op, &[&x], threads).unwrap(),
        }
    }

    #[test]
    fn reductions_match_plain_loops() {
        for op in cases() {
            let len = op.outer * op.extent * op.inner;
            let (x, z) = (random(len, 1), random(len, 2));
            let mut want = vec![];
            for outer in 0..op.outer {
                for inner in 0..op.inner {
                    let terms = (0..op.extent).map(|i| {
                        let at = (outer * op.extent + i) * op.inner + inner;
                        f64::from(x[at]) * if op.product { f64::from(z[at]) } else { 1.0 }
                    });
                    want.push(match op.reduction {
                        Reduction::Sum => f64::from(op.factor) * terms.sum::<f64>(),
                        Reduction::Max => terms.fold(f64::NEG_INFINITY, f64::max),
                    });
                }
            }
            // A run or a block of terms up to 9 in `f32`, each rounded to 2^-24 of a sum that stays
            // near 100; every further one adds to the error.
            let error = 1e-6 * (10.0 + op.extent.div_ceil(64) as f64);
            assert_close(&run(&op, &Threads::new(1))[0], &want, 2e-6, error);
            assert_close(&portable(|| run(&op, &Threads::new(1)))[0], &want, 2e-6, error);
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for op in cases() {
            assert_same_bits(|threads| run(&op, threads));
        }
    }
}
