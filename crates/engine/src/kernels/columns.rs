//! Sums over rows, one or more per column of a `[rows, cols]` matrix: the reductions of the norms.
//!
//! Rows are cut into at most [`TASKS`] tasks; each leaves its partial sums in scratch, and these
//! are added in `f64` in the order of the tasks. Within a task, [`BLOCK`] rows at a time are added
//! in `f32` and the blocks in `f64`: so the rounding error is that of `BLOCK` additions, however
//! many rows there are. A task goes through up to [`CHUNK`] columns of its rows at a time: the sums
//! of a chunk stay in the first-level cache, and each row is read in runs that the hardware
//! prefetches.

use super::lanes::vectorised;
use crate::Threads;

/// Most tasks of a reduction over rows: enough for the threads of one machine to share evenly, few
/// enough that the partial sums stay small against the matrix.
const TASKS: usize = 64;

/// Fewest rows of a task, where there are so many.
const ROWS: usize = 32;

/// Rows added in `f32` before the sum goes over to `f64`.
pub(crate) const BLOCK: usize = 64;

/// Columns summed at a time: two sums of 1 KiB, and 1 KiB of each row.
pub(crate) const CHUNK: usize = 256;

/// Columns joined side by side.
const JOINED: usize = 64;

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
    /// Adds the terms of the `width` elements from offset `at`, in columns from `column`, to the
    /// first `width` of each of `sums`.
    fn add(&mut self, at: usize, column: usize, width: usize, sums: &mut [[f32; CHUNK]; S]);
}

/// Sums `terms` over `rows` rows into `out: [S, cols]`. The body of a task.
#[inline(always)]
pub(crate) fn sum_terms<const S: usize>(
    terms: &mut impl Terms<S>,
    rows: usize,
    cols: usize,
    out: &mut [f32],
) {
    for column in (0..cols).step_by(CHUNK) {
        let width = CHUNK.min(cols - column);
        let mut totals = [[0.0f64; CHUNK]; S];
        for block in (0..rows).step_by(BLOCK) {
            let mut sums = [[0.0f32; CHUNK]; S];
            for row in block..rows.min(block + BLOCK) {
                terms.add(row * cols + column, column, width, &mut sums);
            }
            for (totals, sums) in totals.iter_mut().zip(&sums) {
                for (total, &sum) in totals[..width].iter_mut().zip(sums) {
                    *total += f64::from(sum);
                }
            }
        }
        for (s, totals) in totals.iter().enumerate() {
            let out = &mut out[s * cols + column..][..width];
            for (out, &total) in out.iter_mut().zip(totals) {
                *out = total as f32;
            }
        }
    }
}

/// Adds the tasks' `partials: [tasks, cols]` in their order into `out`. `stride` is the distance
/// of one task's partials from the next's.
pub(crate) fn join(partials: &[f32], stride: usize, out: &mut [f32], threads: &Threads) {
    threads.chunks_mut(out, CHUNK, &|task, out| {
        join_columns(&partials[task * CHUNK..], stride, out);
    });
}

vectorised! {
    fn join_columns<A>(partials: &[f32], stride: usize, out: &mut [f32]) {
        for (chunk, out) in out.chunks_mut(JOINED).enumerate() {
            let mut totals = [0.0f64; JOINED];
            for row in partials[chunk * JOINED..].chunks(stride) {
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
