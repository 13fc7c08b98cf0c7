//! The sum over rows: the gradient of a bias.
//!
//! A task sums a strip of columns, over a few rows at a time and then over those sums, so that the
//! rounding error grows with the square root of the number of rows and the order is fixed.

use crate::Threads;

/// Columns of a task: four cache lines of each row.
const STRIP: usize = 64;

/// Scratch of [`sum_rows`], in `f32`.
pub fn sum_rows_scratch(_rows: usize, _cols: usize, _threads: usize) -> usize {
    0
}

/// `sums[c] = Σ x[r, c]` over the rows.
pub fn sum_rows(
    rows: usize,
    cols: usize,
    x: &[f32],
    sums: &mut [f32],
    _scratch: &mut [f32],
    threads: &Threads,
) {
    let few = rows.isqrt().max(1);
    threads.chunks_mut(&mut sums[..cols], STRIP, &|task, sums| {
        sums.fill(0.0);
        for first in (0..rows).step_by(few) {
            let mut part = [0.0f32; STRIP];
            for row in first..(first + few).min(rows) {
                let row = &x[row * cols + task * STRIP..][..sums.len()];
                part.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
            }
            sums.iter_mut()
                .zip(&part)
                .for_each(|(sum, part)| *sum += part);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::reference::{assert_close, noise};

    #[test]
    fn sums_match_a_plain_loop_at_any_thread_count() {
        for (rows, cols) in [(0, 5), (1, 1), (7, 64), (130, 65), (1000, 200)] {
            let x = noise(rows * cols, 1);
            let mut expected = vec![0.0f64; cols];
            for (i, x) in x.iter().enumerate() {
                expected[i % cols] += f64::from(*x);
            }
            let run = |count| {
                let mut sums = vec![f32::NAN; cols];
                sum_rows(rows, cols, &x, &mut sums, &mut [], &Threads::new(count));
                sums
            };
            let sums = run(1);
            assert_close(&sums, &expected, rows, &format!("{rows} × {cols}"));
            assert_eq!(sums, run(2));
            assert_eq!(sums, run(3));
        }
    }
}
