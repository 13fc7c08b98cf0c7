//! Moving data: permutation of axes, splitting and joining along the last axis.

use super::KernelError;
use super::tasks::rows_per_task;
use crate::dispatch::{Call, Kernel};
use rekindle_program::op::{Concat, Permute, Split};

/// Side of the tile in which a transposition goes: 16 × 4 bytes is a cache line, so each line that
/// is read or written is used whole while it is in the first-level cache.
const TILE: usize = 16;

impl Kernel for Permute {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let x: &[f32] = call.read(0);
        if x.is_empty() {
            return Ok(());
        }
        let mut x_strides = [1; 4];
        for axis in (0..3).rev() {
            x_strides[axis] = x_strides[axis + 1] * self.shape[axis + 1];
        }
        // Sizes of `y`'s axes, and the step in `x` that goes with each.
        let [_, sizes @ ..] = self.order.map(|axis| self.shape[axis]);
        let [step, steps @ ..] = self.order.map(|axis| x_strides[axis]);
        let slab = sizes.iter().product();
        call.threads.chunks_mut(call.write(0), slab, &|task, y| {
            permute_slab(&x[task * step..], sizes, steps, y);
        });
        Ok(())
    }
}

impl Kernel for Split {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let x: &[f32] = call.read(0);
        let width = self.width();
        let mut first = 0;
        for (i, &cols) in self.cols[..self.parts].iter().enumerate() {
            let rows = rows_per_task(cols);
            call.threads.chunks_mut(call.write(i), rows * cols.max(1), &|task, part| {
                let x = x[task * rows * width..].chunks_exact(width);
                for (part, x) in part.chunks_exact_mut(cols).zip(x) {
                    part.copy_from_slice(&x[first..first + cols]);
                }
            });
            first += cols;
        }
        Ok(())
    }
}

impl Kernel for Concat {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let Split { parts, cols, .. } = &self.0;
        let (parts, cols) = (*parts, &cols[..*parts]);
        let mut slices: [&[f32]; Split::MAX_PARTS] = Default::default();
        for (k, slice) in slices[..parts].iter_mut().enumerate() {
            *slice = call.read(k);
        }
        let width = self.0.width();
        let rows = rows_per_task(width);
        call.threads.chunks_mut(call.write(0), rows * width.max(1), &|task, y| {
            for (row, mut y) in y.chunks_exact_mut(width).enumerate() {
                for (part, &cols) in slices[..parts].iter().zip(cols) {
                    let (here, rest) = y.split_at_mut(cols);
                    here.copy_from_slice(&part[(task * rows + row) * cols..][..cols]);
                    y = rest;
                }
            }
        });
        Ok(())
    }
}

/// Writes one slab `y` of the given sizes, reading `x` in the given steps.
fn permute_slab(x: &[f32], sizes: [usize; 3], steps: [usize; 3], y: &mut [f32]) {
    if steps[2] == 1 {
        for (i, y) in y.chunks_exact_mut(sizes[2]).enumerate() {
            let start = i / sizes[1] * steps[0] + i % sizes[1] * steps[1];
            y.copy_from_slice(&x[start..start + sizes[2]]);
        }
    } else if steps[0] < steps[1] {
        // The tile takes the axis along which `x` is closest.
        for i in 0..sizes[1] {
            let (x, y) = (&x[i * steps[1]..], &mut y[i * sizes[2]..]);
            transpose(x, [sizes[0], sizes[2]], [steps[0], steps[2]], y, sizes[1] * sizes[2]);
        }
    } else {
        for i in 0..sizes[0] {
            let (x, y) = (&x[i * steps[0]..], &mut y[i * sizes[1] * sizes[2]..]);
            transpose(x, [sizes[1], sizes[2]], [steps[1], steps[2]], y, sizes[2]);
        }
    }
}

/// `y[i · y_steps[0] + j] = x[i · x_steps[0] + j · x_steps[1]]`, in tiles.
///
/// A tile is gathered before it is written, a line at a time: steps of a power of two would
/// otherwise put its lines into the same few places of the cache.
fn transpose(x: &[f32], sizes: [usize; 2], x_steps: [usize; 2], y: &mut [f32], y_step: usize) {
    if sizes[1] < TILE {
        // Few enough lines are written at a time, as when an image's three colours are joined.
        for j in 0..sizes[1] {
            for i in 0..sizes[0] {
                y[i * y_step + j] = x[i * x_steps[0] + j * x_steps[1]];
            }
        }
        return;
    }
    for i0 in (0..sizes[0]).step_by(TILE) {
        let height = TILE.min(sizes[0] - i0);
        for j0 in (0..sizes[1]).step_by(TILE) {
            let width = TILE.min(sizes[1] - j0);
            let mut tile = [[0.0; TILE]; TILE];
            for j in 0..width {
                let x = &x[i0 * x_steps[0] + (j0 + j) * x_steps[1]..];
                if x_steps[0] == 1 && height == TILE {
                    for (tile, &x) in tile.iter_mut().zip(&x[..TILE]) {
                        tile[j] = x;
                    }
                } else {
                    for (i, tile) in tile[..height].iter_mut().enumerate() {
                        tile[j] = x[i * x_steps[0]];
                    }
                }
            }
            for (i, tile) in tile[..height].iter().enumerate() {
                y[(i0 + i) * y_step + j0..][..width].copy_from_slice(&tile[..width]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;
    use crate::kernels::test_data::{compute, random};

    fn orders() -> Vec<[usize; 4]> {
        let mut orders = vec![];
        for code in 0..256 {
            let order = [code / 64, code / 16 % 4, code / 4 % 4, code % 4];
            if (0..4).all(|axis| order.contains(&axis)) {
                orders.push(order);
            }
        }
        assert_eq!(orders.len(), 24);
        orders
    }

    #[test]
    fn every_order_of_the_axes() {
        for shape in [[1, 1, 1, 1], [2, 3, 5, 7], [3, 17, 1, 33], [1, 40, 18, 20], [2, 0, 3, 4]] {
            let x = random(shape.iter().product(), 1);
            for order in orders() {
                let [a, b, c, d] = order.map(|axis| shape[axis]);
                let mut want = vec![];
                for at in
                    (0..a * b * c * d).map(|i| [i / d / c / b, i / d / c % b, i / d % c, i % d])
                {
                    let mut from = [0; 4];
                    for i in 0..4 {
                        from[order[i]] = at[i];
                    }
                    let flat = from.iter().zip(shape).fold(0, |flat, (&at, size)| flat * size + at);
                    want.push(x[flat]);
                }
                for count in [1, 3] {
                    let y = compute(Permute { shape, order }, &[&x], &Threads::new(count));
                    assert_eq!(y.unwrap(), [&want[..]], "{shape:?} {order:?}");
                }
            }
        }
    }

    #[test]
    fn parts_of_different_widths() {
        let mut dims = Split::even(300, 3, 0);
        dims.cols[..3].copy_from_slice(&[5, 1, 70]);
        let x = random(300 * 76, 1);
        for count in [1, 3] {
            let threads = Threads::new(count);
            let pieces = compute(dims, &[&x], &threads).unwrap();
            assert_eq!(pieces[1][7], x[7 * 76 + 5]);
            assert_eq!(pieces[2][70..75], x[76 + 6..76 + 11]);
            let views: Vec<&[f32]> = pieces.iter().map(|p| &p[..]).collect();
            assert_eq!(compute(Concat(dims), &views, &threads).unwrap(), [&x[..]]);
        }
    }

    #[test]
    fn split_and_concat_are_inverse() {
        for (rows, parts, cols) in [(1, 1, 1), (5, 3, 7), (700, 3, 100), (3, 2, 40000)] {
            let dims = Split::even(rows, parts, cols);
            let x = random(rows * parts * cols, 1);
            for count in [1, 3] {
                let threads = Threads::new(count);
                let pieces = compute(dims, &[&x], &threads).unwrap();
                for (i, piece) in pieces.iter().enumerate() {
                    for (row, piece) in piece.chunks(cols).enumerate() {
                        assert_eq!(piece, &x[(row * parts + i) * cols..][..cols]);
                    }
                }
                let views: Vec<&[f32]> = pieces.iter().map(|p| &p[..]).collect();
                let y = compute(Concat(dims), &views, &threads).unwrap();
                assert_eq!(y, [&x[..]]);
            }
        }
    }
}
