//! Sums over rows, one or more per column of a `[rows, cols]` matrix: the reductions of the norms.
//!
//! Rows are cut into at most [`TASKS`] tasks; each leaves its partial sums in scratch, and these
//! are added in `f64` in the order of the tasks. Within a task, [`BLOCK`] rows at a time are added
//! in `f32`, a few columns side by side, and the blocks in `f64`: so the rounding error is that of
//! `BLOCK` additions, however many rows there are.

use super::lanes::vectorised;
use crate::Threads;

/// Most tasks of a reduction over rows: enough for the threads of one machine to share evenly, few
/// enough that the partial sums stay small against the matrix.
const TASKS: usize = 64;

/// Fewest rows of a task, where there are so many.
const ROWS: usize = 32;

/// Rows added in `f32` before the sum goes over to `f64`.
pub(crate) const BLOCK: usize = 64;

/// Columns of a task of [`join`]; a multiple of [`WIDE`].
const JOINED: usize = 256;

/// Columns summed side by side: four AVX2 registers per sum.
const WIDE: usize = 32;
/// The same for what is left of the columns.
const NARROW: usize = 8;

/// Rows of each task of a reduction over `rows` rows.
pub(crate) fn rows_per_task(rows: usize) -> usize {
    rows.div_ceil(TASKS).max(ROWS)
}

/// Tasks of a reduction over `rows` rows.
pub(crate) fn tasks(rows: usize) -> usize {
    rows.div_ceil(rows_per_task(rows))
}

/// What is summed: `S` sums for each column.
pub(crate) trait Terms<const S: usize> {
    /// Adds the terms of the `W` elements from offset `at`, in columns from `column`, to `sums`.
    fn add<const W: usize>(&mut self, at: usize, column: usize, sums: &mut [[f32; W]; S]);
}

/// Sums `terms` over `rows` rows into `out: [S, cols]`. The body of a task.
#[inline(always)]
pub(crate) fn sum_terms<const S: usize>(
    terms: &mut impl Terms<S>,
    rows: usize,
    cols: usize,
    out: &mut [f32],
) {
    let mut column = 0;
    while column + WIDE <= cols {
        sum_chunk::<WIDE, S>(terms, rows, cols, column, out);
        column += WIDE;
    }
    while column + NARROW <= cols {
        sum_chunk::<NARROW, S>(terms, rows, cols, column, out);
        column += NARROW;
    }
    while column < cols {
        sum_chunk::<1, S>(terms, rows, cols, column, out);
        column += 1;
    }
}

#[inline(always)]
fn sum_chunk<const W: usize, const S: usize>(
    terms: &mut impl Terms<S>,
    rows: usize,
    cols: usize,
    column: usize,
    out: &mut [f32],
) {
    let mut totals = [[0.0f64; W]; S];
    for block in (0..rows).step_by(BLOCK) {
        let mut sums = [[0.0f32; W]; S];
        for row in block..rows.min(block + BLOCK) {
            terms.add(row * cols + column, column, &mut sums);
        }
        for (totals, sums) in totals.iter_mut().zip(&sums) {
            for (total, &sum) in totals.iter_mut().zip(sums) {
                *total += f64::from(sum);
            }
        }
    }
    for (s, totals) in totals.iter().enumerate() {
        let out = &mut out[s * cols + column..][..W];
        for (out, &total) in out.iter_mut().zip(totals) {
            *out = total as f32;
        }
    }
}

/// `W` elements from `at`.
#[inline(always)]
pub(crate) fn window<const W: usize>(x: &[f32], at: usize) -> &[f32; W] {
    x[at..at + W].try_into().expect("a slice of that length")
}

/// Adds the tasks' `partials: [tasks, cols]` in their order into `out`. `stride` is the distance
/// of one task's partials from the next's.
pub(crate) fn join(partials: &[f32], stride: usize, out: &mut [f32], threads: &Threads) {
    threads.chunks_mut(out, JOINED, &|task, out| {
        join_columns(&partials[task * JOINED..], stride, out);
    });
}

vectorised! {
    fn join_columns<A>(partials: &[f32], stride: usize, out: &mut [f32]) {
        for (chunk, out) in out.chunks_mut(WIDE).enumerate() {
            let mut totals = [0.0f64; WIDE];
            for row in partials[chunk * WIDE..].chunks(stride) {
                for (total, &x) in totals.iter_mut().zip(&row[..out.len()]) {
                    *total += f64::from(x);
                }
            }
            for (out, total) in out.iter_mut().zip(totals) {
                *out = total as f32;
            }
        }
    }
}
