//! Images in another size, forward and backward.
//!
//! Each pixel of the result mixes up to four pixels of the image. The backward gathers: a row of
//! `dx` looks at the rows of `dy` that it went into, in order, so rows are independent tasks.

use super::KernelError;
use super::lanes::vectorised;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Resize, ResizeDx};

impl Kernel for Resize {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let x = call.read(0);
        let row = self.to[1] * self.channels;
        call.threads.chunks_mut(call.write(0), row.max(1), &|task, y| resize_row(self, task, x, y));
        Ok(())
    }
}

impl Kernel for ResizeDx {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let dy = call.read(0);
        let row = self.0.from[1] * self.0.channels;
        call.threads.chunks_mut(call.write(0), row.max(1), &|task, dx| {
            resize_dx_row(&self.0, task, dy, dx);
        });
        Ok(())
    }
}

vectorised! {
    /// One row of the result; `row` counts over all images.
    fn resize_row<A>(op: &Resize, row: usize, x: &[f32], y: &mut [f32]) {
        let (image, oh) = (row / op.to[0], row % op.to[0]);
        let (rows, low) = op.taps(0, oh);
        let width = op.from[1] * op.channels;
        let rows = rows.map(|row| &x[(image * op.from[0] + row) * width..][..width]);
        for (ow, y) in y.chunks_exact_mut(op.channels).enumerate() {
            let (cols, right) = op.taps(1, ow);
            let [a, b] = cols.map(|col| col * op.channels);
            for c in 0..op.channels {
                let mix = |row: &[f32]| A::mul_add(right, row[b + c] - row[a + c], row[a + c]);
                let (top, bottom) = (mix(rows[0]), mix(rows[1]));
                y[c] = A::mul_add(low, bottom - top, top);
            }
        }
    }
}

vectorised! {
    /// One row of `dx`; `row` counts over all images.
    fn resize_dx_row<A>(op: &Resize, row: usize, dy: &[f32], dx: &mut [f32]) {
        let (image, h) = (row / op.from[0], row % op.from[0]);
        let width = op.to[1] * op.channels;
        dx.fill(0.0);
        for oh in 0..op.to[0] {
            let (rows, low) = op.taps(0, oh);
            let upper = if rows[0] == h { 1.0 - low } else { 0.0 };
            let share = upper + if rows[1] == h { low } else { 0.0 };
            if share == 0.0 {
                continue;
            }
            let dy = &dy[(image * op.to[0] + oh) * width..][..width];
            for (ow, dy) in dy.chunks_exact(op.channels).enumerate() {
                let (cols, right) = op.taps(1, ow);
                for (col, part) in cols.into_iter().zip([1.0 - right, right]) {
                    let share = share * part;
                    if share != 0.0 {
                        let dx = &mut dx[col * op.channels..][..op.channels];
                        for (dx, &dy) in dx.iter_mut().zip(dy) {
                            *dx = A::mul_add(share, dy, *dx);
                        }
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
    use crate::kernels::test_data::{assert_close, assert_same_bits, compute, random};
    use rekindle_program::op::{Between, Position};

    fn case(from: [usize; 2], to: [usize; 2], between: Between, position: Position) -> Resize {
        Resize { batch: 2, from, to, channels: 5, between, position }
    }

    fn cases() -> Vec<Resize> {
        let mut cases = vec![];
        for (from, to) in [([3, 4], [6, 8]), ([7, 5], [3, 9]), ([1, 1], [4, 2])] {
            for between in [Between::Nearest, Between::Linear] {
                for position in [Position::HalfPixel, Position::Asymmetric, Position::AlignCorners]
                {
                    cases.push(case(from, to, between, position));
                }
            }
        }
        cases
    }

    #[test]
    fn known_rows() {
        let x = [0.0, 1.0, 2.0, 3.0];
        let row = |to, between, position| {
            let op = Resize { batch: 1, channels: 1, ..case([1, 4], [1, to], between, position) };
            compute(op, &[&x], &Threads::new(1)).unwrap().remove(0)
        };
        let linear = Between::Linear;
        let nearest = Between::Nearest;
        // As PyTorch's `interpolate` gives them.
        assert_eq!(row(8, nearest, Position::Asymmetric), [0., 0., 1., 1., 2., 2., 3., 3.]);
        let half = row(8, linear, Position::HalfPixel);
        assert_eq!(half, [0., 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.]);
        assert_eq!(row(7, linear, Position::AlignCorners), [0., 0.5, 1., 1.5, 2., 2.5, 3.]);
        assert_eq!(row(2, linear, Position::HalfPixel), [0.5, 2.5]);
    }

    /// `⟨resize(x), dy⟩ = ⟨x, resize_dx(dy)⟩`, for each `x` of a single one.
    #[test]
    fn the_backward_is_the_transposed_forward() {
        for op in cases() {
            let (from, to) = (op.from.iter().product::<usize>(), op.to.iter().product::<usize>());
            let dy = random(2 * to * 5, 1);
            let dx = compute(ResizeDx(op), &[&dy], &Threads::new(2)).unwrap().remove(0);
            let mut want = vec![];
            for i in 0..2 * from * 5 {
                let mut x = vec![0.0; 2 * from * 5];
                x[i] = 1.0;
                let y = compute(op, &[&x], &Threads::new(1)).unwrap().remove(0);
                let terms = y.iter().zip(&dy).map(|(&y, &dy)| f64::from(y) * f64::from(dy));
                want.push(terms.sum::<f64>());
            }
            // A handful of products near one.
            assert_close(&dx, &want, 1e-6, 2e-6);
        }
    }

    #[test]
    fn thread_counts_do_not_change_a_bit() {
        for op in cases() {
            let x = random(2 * op.from.iter().product::<usize>() * 5, 1);
            assert_same_bits(|threads| compute(op, &[&x], threads).unwrap());
        }
    }
}
