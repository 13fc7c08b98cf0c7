//! Windows on a tensor: a copy, row by row of the last axis.
//!
//! Where a row lies outside in any other axis it is filled; else its last axis is copied, repeated
//! or picked element by element.

use super::KernelError;
use super::tasks::{TASK_ELEMENTS, rows_per_task};
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Axis, View};

const AXES: usize = View::AXES;

impl Kernel for View {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let x: &[f32] = call.read(0);
        let last = &self.axes[AXES - 1];
        let outer = &self.axes[..AXES - 1];
        let cols = last.extent;
        let rows = rows_per_task(cols);
        // Rows that are longer than a task are cut.
        let pieces = if rows == 1 { cols.div_ceil(TASK_ELEMENTS) } else { 1 };
        let piece = cols.div_ceil(pieces.max(1)).max(1);
        if outer.iter().all(|axis| axis.extent == 1) {
            call.threads.chunks_mut(call.write(0), piece, &|task, y| {
                self.row(x, 0, task * piece, y);
            });
            return Ok(());
        }
        call.threads.chunks_mut(call.write(0), rows * cols.max(1), &|task, y| {
            for (row, y) in y.chunks_exact_mut(cols).enumerate() {
                self.row(x, task * rows + row, 0, y);
            }
        });
        Ok(())
    }
}

trait Rows {
    fn row(&self, x: &[f32], row: usize, first: usize, y: &mut [f32]);
}

impl Rows for View {
    /// Elements of row `row`, from the one at `first` on.
    fn row(&self, x: &[f32], row: usize, first: usize, y: &mut [f32]) {
        let last = &self.axes[AXES - 1];
        let (mut rest, mut start, mut step) = (row, 0, last.size);
        for axis in self.axes[..AXES - 1].iter().rev() {
            let Some(at) = axis.source(rest % axis.extent) else {
                return y.fill(self.fill);
            };
            start += at * step;
            rest /= axis.extent;
            step *= axis.size;
        }
        let x = &x[start..start + last.size];
        match *last {
            Axis { step: 0, .. } => y.fill(x[0]),
            Axis { step: 1, dilation: 1, start, .. } => {
                // What lies before `x`, in it, and behind it.
                let from = start + first as isize;
                let before = y.len().min(from.min(0).unsigned_abs());
                let from = from.max(0) as usize;
                let inside = (y.len() - before).min(x.len().saturating_sub(from));
                y[..before].fill(self.fill);
                if inside > 0 {
                    y[before..before + inside].copy_from_slice(&x[from..from + inside]);
                }
                y[before + inside..].fill(self.fill);
            }
            axis => {
                for (i, y) in (first..).zip(y) {
                    *y = axis.source(i).map_or(self.fill, |at| x[at]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;
    use crate::kernels::test_data::{compute, random};

    fn view(axes: &[Axis], fill: f32) -> View {
        let mut all = [Axis::whole(1); AXES];
        all[AXES - axes.len()..].copy_from_slice(axes);
        View { axes: all, fill }
    }

    fn check(op: View) {
        let x = random(op.axes.iter().map(|axis| axis.size).product(), 1);
        let mut want = vec![];
        for flat in 0..op.axes.iter().map(|axis| axis.extent).product() {
            let (mut rest, mut at, mut step): (usize, _, _) = (flat, Some(0), 1);
            for axis in op.axes.iter().rev() {
                let source = axis.source(rest % axis.extent);
                at = at.zip(source).map(|(at, source)| at + source * step);
                rest /= axis.extent;
                step *= axis.size;
            }
            want.push(at.map_or(op.fill, |at: usize| x[at]));
        }
        for count in [1, 2, 3] {
            assert_eq!(compute(op, &[&x], &Threads::new(count)).unwrap(), [&want[..]], "{op:?}");
        }
    }

    #[test]
    fn windows_match_plain_loops() {
        let (whole, repeated, window) = (Axis::whole, Axis::repeated, Axis::window);
        let steps = |size, start, step, extent| Axis { step, ..window(size, start, extent) };
        let apart =
            |size, start, dilation, extent| Axis { dilation, ..window(size, start, extent) };
        check(view(&[window(10, 3, 4)], 0.0));
        check(view(&[window(10, -3, 20)], 7.0));
        check(view(&[window(4, 9, 5)], 7.0));
        check(view(&[window(50_000, -100, 50_200)], 1.0));
        check(view(&[window(5, -1, 7), window(6, 2, 3), whole(4)], 0.0));
        check(view(&[whole(3), repeated(5), whole(70)], 0.0));
        check(view(&[repeated(300), whole(3), repeated(200)], 0.0));
        check(view(&[steps(10, 1, 3, 3), steps(9, 8, -1, 9)], 0.0));
        check(view(&[apart(4, -2, 3, 14), apart(5, 0, 2, 9)], 0.0));
        check(view(&[whole(2), steps(9, 1, 2, 4), whole(3), window(5, -2, 6), repeated(2)], 0.5));
    }
}
