//! Moving data: permutation of axes, splitting and joining along the last axis.

use super::KernelError;
use super::tasks::rows_per_task;
use crate::Threads;
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
        permute(self, call.read(0), call.write(0), call.threads);
        Ok(())
    }
}

impl Kernel for Split {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let mut parts: [&mut [f32]; Split::MAX_PARTS] = Default::default();
        for (k, part) in parts[..self.parts].iter_mut().enumerate() {
            *part = call.write(k);
        }
        split(self, call.read(0), &mut parts[..self.parts], call.threads);
        Ok(())
    }
}

impl Kernel for Concat {
    fn scratch(&self, _: usize) -> usize {
        0
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let mut parts: [&[f32]; Split::MAX_PARTS] = Default::default();
        for (k, part) in parts[..self.0.parts].iter_mut().enumerate() {
            *part = call.read(k);
        }
        concat(&self.0, &parts[..self.0.parts], call.write(0), call.threads);
        Ok(())
    }
}

/// `permute`: `x → y`: `y`'s axis `i` is `x`'s axis `order[i]`.
///
/// # Panics
/// If `order` is no permutation.
fn permute(dims: &Permute, x: &[f32], y: &mut [f32], threads: &Threads) {
    let len = dims.shape.iter().product();
    assert_eq!((x.len(), y.len()), (len, len), "operand lengths");
    let mut sorted = dims.order;
    sorted.sort_unstable();
    assert_eq!(
        sorted,
        [0, 1, 2, 3],
        "the order of the axes is a permutation"
    );
    if len == 0 {
        return;
    }
    let mut x_strides = [1; 4];
    for axis in (0..3).rev() {
        x_strides[axis] = x_strides[axis + 1] * dims.shape[axis + 1];
    }
    // Sizes of `y`'s axes, and the step in `x` that goes with each.
    let sizes = dims.order.map(|axis| dims.shape[axis]);
    let steps = dims.order.map(|axis| x_strides[axis]);
    let slab = sizes[1] * sizes[2] * sizes[3];
    threads.chunks_mut(y, slab, &|task, y| {
        permute_slab(
            &x[task * steps[0]..],
            [sizes[1], sizes[2], sizes[3]],
            [steps[1], steps[2], steps[3]],
            y,
        );
    });
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
            transpose(
                x,
                [sizes[0], sizes[2]],
                [steps[0], steps[2]],
                y,
                sizes[1] * sizes[2],
            );
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

/// `split`: `x: [rows, parts · cols] → parts × [rows, cols]`.
fn split(dims: &Split, x: &[f32], parts: &mut [&mut [f32]], threads: &Threads) {
    assert_eq!(parts.len(), dims.parts, "number of parts");
    assert_eq!(
        x.len(),
        dims.rows * dims.parts * dims.cols,
        "operand lengths"
    );
    let (rows, width) = (rows_per_task(dims.cols), dims.parts * dims.cols);
    for (i, part) in parts.iter_mut().enumerate() {
        assert_eq!(part.len(), dims.rows * dims.cols, "operand lengths");
        threads.chunks_mut(part, rows * dims.cols.max(1), &|task, part| {
            let x = x[task * rows * width..].chunks_exact(width);
            for (part, x) in part.chunks_exact_mut(dims.cols).zip(x) {
                part.copy_from_slice(&x[i * dims.cols..][..dims.cols]);
            }
        });
    }
}

/// `concat`: `parts × [rows, cols] → y: [rows, parts · cols]`.
fn concat(dims: &Split, parts: &[&[f32]], y: &mut [f32], threads: &Threads) {
    assert_eq!(parts.len(), dims.parts, "number of parts");
    let width = dims.parts * dims.cols;
    assert_eq!(y.len(), dims.rows * width, "operand lengths");
    let rows = rows_per_task(width);
    threads.chunks_mut(y, rows * width.max(1), &|task, y| {
        for (row, y) in y.chunks_exact_mut(width).enumerate() {
            let start = (task * rows + row) * dims.cols;
            for (part, y) in parts.iter().zip(y.chunks_exact_mut(dims.cols)) {
                y.copy_from_slice(&part[start..start + dims.cols]);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::test_data::random;

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
        for shape in [
            [1, 1, 1, 1],
            [2, 3, 5, 7],
            [3, 17, 1, 33],
            [1, 40, 18, 20],
            [2, 0, 3, 4],
        ] {
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
                    let flat = from
                        .iter()
                        .zip(shape)
                        .fold(0, |flat, (&at, size)| flat * size + at);
                    want.push(x[flat]);
                }
                for count in [1, 3] {
                    let mut y = vec![f32::NAN; x.len()];
                    permute(&Permute { shape, order }, &x, &mut y, &Threads::new(count));
                    assert_eq!(y, want, "{shape:?} {order:?}");
                }
            }
        }
    }

    #[test]
    fn split_and_concat_are_inverse() {
        for (rows, parts, cols) in [(1, 1, 1), (5, 3, 7), (700, 3, 100), (3, 2, 40000)] {
            let dims = Split { rows, parts, cols };
            let x = random(rows * parts * cols, 1);
            for count in [1, 3] {
                let threads = Threads::new(count);
                let mut pieces = vec![vec![f32::NAN; rows * cols]; parts];
                let mut views: Vec<&mut [f32]> = pieces.iter_mut().map(|p| &mut p[..]).collect();
                split(&dims, &x, &mut views, &threads);
                for (i, piece) in pieces.iter().enumerate() {
                    for (row, piece) in piece.chunks(cols).enumerate() {
                        assert_eq!(piece, &x[(row * parts + i) * cols..][..cols]);
                    }
                }
                let views: Vec<&[f32]> = pieces.iter().map(|p| &p[..]).collect();
                let mut y = vec![f32::NAN; x.len()];
                concat(&dims, &views, &mut y, &threads);
                assert_eq!(y, x);
            }
        }
    }
}
