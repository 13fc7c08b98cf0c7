//! Matrix products for each head of an attention, each computed by one thread.

use rekindle_program::op::{HeadMatmul, Heads};

use super::KernelError;
use super::gemm::{Crew, LeftOperand, PRIVATE_PACK, Product, Shape, multiply, multiply_scratch};
use super::gemm_tile::Simd;
use super::matmul::Matrices;
use crate::dispatch::{Call, Kernel};
use crate::{SharedMut, Threads};

impl Kernel for HeadMatmul {
    fn scratch(&self, threads: usize) -> usize {
        // No threads are one thread, as in [`Threads::new`].
        threads.max(1) * share(self)
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (a, b) = (call.read(0), call.read(1));
        let (c, scratch) = (call.write(0), call.scratch());
        head_matmul(Simd::detect(), self, a, b, c, scratch, call.threads);
        Ok(())
    }
}

fn shape(dims: &HeadMatmul) -> Shape {
    Shape { rows: dims.m, cols: dims.n, segments: 1, depth: dims.k }
}

/// Floats of scratch of one thread.
fn share(dims: &HeadMatmul) -> usize {
    multiply_scratch(&shape(dims), dims.transpose_a, PRIVATE_PACK, 1)
}

/// For each batch and head, `c = alpha · op(a) · op(b)`.
fn head_matmul(
    simd: Simd,
    dims: &HeadMatmul,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    scratch: &mut [f32],
    threads: &Threads,
) {
    let &HeadMatmul { m, n, k, .. } = dims;
    // Where the matrix of a head starts, and the distance of its rows.
    let start = |layout, rows: usize, cols: usize, task: usize| match layout {
        Heads::Outer => task * rows * cols,
        Heads::Interleaved => (task / dims.heads * rows * dims.heads + task % dims.heads) * cols,
    };
    let pitch = |layout, cols: usize| match layout {
        Heads::Outer => cols,
        Heads::Interleaved => dims.heads * cols,
    };
    let (a_rows, a_cols) = if dims.transpose_a { (k, m) } else { (m, k) };
    let (b_rows, b_cols) = if dims.transpose_b { (n, k) } else { (k, n) };
    let share = share(dims);
    let scratch = SharedMut::new(scratch);
    let c = SharedMut::new(c);
    threads.run(dims.batch * dims.heads, &|thread, task| {
        let left = from(a, start(dims.a, a_rows, a_cols, task));
        let product = Product {
            simd,
            shape: shape(dims),
            layout: &Matrices {
                left,
                left_pitch: pitch(dims.a, a_cols),
                result_start: start(dims.c, m, n, task),
                result_pitch: pitch(dims.c, n),
            },
            left: match dims.transpose_a {
                true => LeftOperand::Columns { data: left, pitch: pitch(dims.a, a_cols) },
                false => LeftOperand::Rows,
            },
            right: from(b, start(dims.b, b_rows, b_cols, task)),
            right_pitch: pitch(dims.b, b_cols),
            right_transposed: dims.transpose_b,
            alpha: dims.alpha,
            bias: None,
        };
        // SAFETY: no two tasks run on the same thread at once.
        let scratch = unsafe { scratch.slice(thread * share..(thread + 1) * share) };
        multiply(&product, &c, PRIVATE_PACK, scratch, Crew::One);
    });
}

/// The operand from `start` on; an empty one has no start.
fn from(operand: &[f32], start: usize) -> &[f32] {
    operand.get(start..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::reference::{assert_sums, noise};

    #[test]
    fn heads_match_plain_products_in_every_layout() {
        let layouts = [Heads::Outer, Heads::Interleaved];
        for flags in 0..32 {
            let bit = |bit: usize| flags >> bit & 1;
            let dims = HeadMatmul {
                batch: 2,
                heads: 3,
                m: 13,
                n: 19,
                k: 8,
                a: layouts[bit(0)],
                b: layouts[bit(1)],
                c: layouts[bit(2)],
                transpose_a: bit(3) == 1,
                transpose_b: bit(4) == 1,
                alpha: 0.5,
            };
            check_heads(&dims);
        }
        let dims = HeadMatmul {
            batch: 1,
            heads: 2,
            m: 100,
            n: 300,
            k: 400,
            a: Heads::Outer,
            b: Heads::Interleaved,
            c: Heads::Interleaved,
            transpose_a: true,
            transpose_b: false,
            alpha: 1.0,
        };
        check_heads(&dims);
        check_heads(&HeadMatmul { m: 0, ..dims });
        check_heads(&HeadMatmul { k: 0, ..dims });
    }

    #[track_caller]
    fn check_heads(dims: &HeadMatmul) {
        let &HeadMatmul { batch, heads, m, n, k, .. } = dims;
        let (a, b) = (noise(batch * heads * m * k, 1), noise(batch * heads * k * n, 2));
        let run = |simd, count| {
            let mut c = vec![f32::NAN; batch * heads * m * n];
            let mut scratch = vec![f32::NAN; dims.scratch(count)];
            head_matmul(simd, dims, &a, &b, &mut c, &mut scratch, &Threads::new(count));
            c
        };
        let at =
            |layout, rows: usize, cols: usize, head: usize, row: usize, col: usize| match layout {
                Heads::Outer => (head * rows + row) * cols + col,
                Heads::Interleaved => {
                    ((head / heads * rows + row) * heads + head % heads) * cols + col
                }
            };
        let mut expected = vec![0.0; batch * heads * m * n];
        for (head, i, j, p) in (0..batch * heads * m * n * k)
            .map(|term| (term / k / n / m, term / k / n % m, term / k % n, term % k))
        {
            let left = match dims.transpose_a {
                true => at(dims.a, k, m, head, p, i),
                false => at(dims.a, m, k, head, i, p),
            };
            let right = match dims.transpose_b {
                true => at(dims.b, n, k, head, j, p),
                false => at(dims.b, k, n, head, p, j),
            };
            let term = f64::from(a[left]) * f64::from(b[right]);
            expected[at(dims.c, m, n, head, i, j)] += f64::from(dims.alpha) * term;
        }
        let what = format!("{dims:?}");
        let one = run(Simd::detect(), 1);
        assert_sums(&one, &expected, k + 1, &what);
        assert_sums(&run(Simd::Portable, 1), &expected, k + 1, &what);
        assert_eq!(one, run(Simd::detect(), 2), "{what}");
        assert_eq!(one, run(Simd::detect(), 3), "{what}");
    }
}
