//! Matrix products: plain, and batched over attention heads; and the sum over rows.

use remat_program::op::{HeadMatmul, Heads, Matmul};

use crate::Threads;

/// Scratch of [`matmul`], in `f32`.
pub fn matmul_scratch(_dims: &Matmul, _threads: usize) -> usize {
    0
}

/// `c[m, n] = op(a) · op(b) (+ bias[n])`.
pub fn matmul(
    dims: &Matmul,
    a: &[f32],
    b: &[f32],
    bias: Option<&[f32]>,
    c: &mut [f32],
    _scratch: &mut [f32],
    threads: &Threads,
) {
    let &Matmul {
        m,
        n,
        k,
        transpose_a,
        transpose_b,
        ..
    } = dims;
    threads.chunks_mut(&mut c[..m * n], n.max(1), &|i, row| {
        for (j, out) in row.iter_mut().enumerate() {
            let mut sum = 0.0;
            for p in 0..k {
                let left = if transpose_a {
                    a[p * m + i]
                } else {
                    a[i * k + p]
                };
                let right = if transpose_b {
                    b[j * k + p]
                } else {
                    b[p * n + j]
                };
                sum += left * right;
            }
            *out = sum + bias.map_or(0.0, |bias| bias[j]);
        }
    });
}

/// Scratch of [`head_matmul`], in `f32`.
pub fn head_matmul_scratch(_dims: &HeadMatmul, _threads: usize) -> usize {
    0
}

/// For each batch and head, `c = alpha · op(a) · op(b)`.
pub fn head_matmul(
    dims: &HeadMatmul,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    _scratch: &mut [f32],
    _threads: &Threads,
) {
    let &HeadMatmul {
        batch,
        heads,
        m,
        n,
        k,
        transpose_a,
        transpose_b,
        alpha,
        ..
    } = dims;
    let at = |layout, rows: usize, cols: usize, batch: usize, head: usize, row, col| match layout {
        Heads::Outer => ((batch * heads + head) * rows + row) * cols + col,
        Heads::Interleaved => ((batch * rows + row) * heads + head) * cols + col,
    };
    for (batch, head) in (0..batch).flat_map(|batch| (0..heads).map(move |head| (batch, head))) {
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let mut sum = 0.0;
            for p in 0..k {
                let left = match transpose_a {
                    true => at(dims.a, k, m, batch, head, p, i),
                    false => at(dims.a, m, k, batch, head, i, p),
                };
                let right = match transpose_b {
                    true => at(dims.b, n, k, batch, head, j, p),
                    false => at(dims.b, k, n, batch, head, p, j),
                };
                sum += a[left] * b[right];
            }
            c[at(dims.c, m, n, batch, head, i, j)] = alpha * sum;
        }
    }
}

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
    _threads: &Threads,
) {
    sums.fill(0.0);
    for row in x.chunks_exact(cols.max(1)).take(rows) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
}
