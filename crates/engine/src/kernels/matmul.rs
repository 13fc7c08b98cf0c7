//! Matrix products: one large one, shared out among the threads, or one per attention head, each
//! computed by one thread.

use std::ops::Range;

use rekindle_program::op::{HeadMatmul, Heads, Matmul};

use super::gemm::{
    Crew, Layout, LeftOperand, PRIVATE_PACK, Product, SHARED_PACK, Shape, multiply,
    multiply_scratch,
};
use super::gemm_tile::Simd;
use crate::{SharedMut, Threads};

/// Plain matrices: rows at a fixed distance.
struct Matrices<'a> {
    left: &'a [f32],
    left_pitch: usize,
    result_start: usize,
    result_pitch: usize,
}

// SAFETY: `left` finds slices of the left operand; rows of the result are a row or more apart.
unsafe impl Layout for Matrices<'_> {
    fn left(&self, _: usize, depth: Range<usize>, rows: Range<usize>, starts: &mut [*const f32]) {
        for (row, start) in rows.zip(starts) {
            *start = self.left[row * self.left_pitch..][depth.clone()].as_ptr();
        }
    }

    fn right(&self, _: usize) -> usize {
        0
    }

    fn result(&self, rows: Range<usize>, starts: &mut [usize]) {
        for (row, start) in rows.zip(starts) {
            *start = self.result_start + row * self.result_pitch;
        }
    }
}

/// Scratch of [`matmul`], in `f32`.
pub fn matmul_scratch(dims: &Matmul, threads: usize) -> usize {
    let shape = Shape {
        rows: dims.m,
        cols: dims.n,
        segments: 1,
        depth: dims.k,
    };
    multiply_scratch(&shape, dims.transpose_a, SHARED_PACK, threads)
}

/// `c[m, n] = op(a) · op(b) (+ bias[n])`.
pub fn matmul(
    dims: &Matmul,
    a: &[f32],
    b: &[f32],
    bias: Option<&[f32]>,
    c: &mut [f32],
    scratch: &mut [f32],
    threads: &Threads,
) {
    matmul_by(Simd::detect(), dims, a, b, bias, c, scratch, threads);
}

#[allow(clippy::too_many_arguments)] // The op's operands, and how to compute it.
fn matmul_by(
    simd: Simd,
    dims: &Matmul,
    a: &[f32],
    b: &[f32],
    bias: Option<&[f32]>,
    c: &mut [f32],
    scratch: &mut [f32],
    threads: &Threads,
) {
    let product = Product {
        simd,
        shape: Shape {
            rows: dims.m,
            cols: dims.n,
            segments: 1,
            depth: dims.k,
        },
        layout: &Matrices {
            left: a,
            left_pitch: dims.k,
            result_start: 0,
            result_pitch: dims.n,
        },
        left: match dims.transpose_a {
            true => LeftOperand::Columns {
                data: a,
                pitch: dims.m,
            },
            false => LeftOperand::Rows,
        },
        right: b,
        right_pitch: if dims.transpose_b { dims.k } else { dims.n },
        right_transposed: dims.transpose_b,
        alpha: 1.0,
        bias,
    };
    multiply(
        &product,
        &SharedMut::new(c),
        SHARED_PACK,
        scratch,
        Crew::All(threads),
    );
}

fn head_shape(dims: &HeadMatmul) -> Shape {
    Shape {
        rows: dims.m,
        cols: dims.n,
        segments: 1,
        depth: dims.k,
    }
}

/// Scratch of [`head_matmul`], in `f32`. No threads are one thread, as in [`Threads::new`].
pub fn head_matmul_scratch(dims: &HeadMatmul, threads: usize) -> usize {
    threads.max(1) * multiply_scratch(&head_shape(dims), dims.transpose_a, PRIVATE_PACK, 1)
}

/// For each batch and head, `c = alpha · op(a) · op(b)`.
pub fn head_matmul(
    dims: &HeadMatmul,
    a: &[f32],
    b: &[f32],
    c: &mut [f32],
    scratch: &mut [f32],
    threads: &Threads,
) {
    head_matmul_by(Simd::detect(), dims, a, b, c, scratch, threads);
}

fn head_matmul_by(
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
    let share = head_matmul_scratch(dims, 1);
    let scratch = SharedMut::new(scratch);
    let c = SharedMut::new(c);
    threads.run(dims.batch * dims.heads, &|thread, task| {
        let left = from(a, start(dims.a, a_rows, a_cols, task));
        let product = Product {
            simd,
            shape: head_shape(dims),
            layout: &Matrices {
                left,
                left_pitch: pitch(dims.a, a_cols),
                result_start: start(dims.c, m, n, task),
                result_pitch: pitch(dims.c, n),
            },
            left: match dims.transpose_a {
                true => LeftOperand::Columns {
                    data: left,
                    pitch: pitch(dims.a, a_cols),
                },
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

    fn plain(dims: &Matmul, a: &[f32], b: &[f32], bias: Option<&[f32]>) -> Vec<f64> {
        let &Matmul { m, n, k, .. } = dims;
        let left = |i, p| {
            a[if dims.transpose_a {
                p * m + i
            } else {
                i * k + p
            }]
        };
        let right = |p, j| {
            b[if dims.transpose_b {
                j * k + p
            } else {
                p * n + j
            }]
        };
        let mut c = vec![0.0; m * n];
        for (i, c) in c.iter_mut().enumerate() {
            *c = bias.map_or(0.0, |bias| f64::from(bias[i % n]));
            for p in 0..k {
                *c += f64::from(left(i / n, p)) * f64::from(right(p, i % n));
            }
        }
        c
    }

    /// All ways to run the product; scratch is poisoned, and all thread counts must agree.
    #[track_caller]
    fn check(dims: &Matmul) {
        let (a, b) = (noise(dims.m * dims.k, 1), noise(dims.k * dims.n, 2));
        let bias = noise(dims.n, 3);
        let bias = dims.bias.then_some(&bias[..]);
        let run = |simd, count| {
            let mut c = vec![f32::NAN; dims.m * dims.n];
            let mut scratch = vec![f32::NAN; matmul_scratch(dims, count)];
            let threads = Threads::new(count);
            matmul_by(simd, dims, &a, &b, bias, &mut c, &mut scratch, &threads);
            c
        };
        let expected = plain(dims, &a, &b, bias);
        let what = format!("{dims:?}");
        let one = run(Simd::detect(), 1);
        assert_sums(&one, &expected, dims.k + 1, &what);
        assert_sums(&run(Simd::Portable, 2), &expected, dims.k + 1, &what);
        assert_eq!(one, run(Simd::detect(), 2), "{what}");
        assert_eq!(one, run(Simd::detect(), 3), "{what}");
    }

    #[test]
    fn products_match_plain_loops() {
        let sizes = [
            (0, 3, 2),
            (3, 0, 2),
            (2, 3, 0),
            (1, 1, 1),
            (1, 17, 300),
            (5, 16, 7),
            (6, 15, 256),
            (7, 33, 257),
            (13, 8, 600),
            (97, 31, 11),
            (200, 130, 67),
        ];
        for (m, n, k) in sizes {
            for flags in 0..8 {
                let [transpose_a, transpose_b, bias] = [1, 2, 4].map(|bit| flags & bit != 0);
                check(&Matmul {
                    m,
                    n,
                    k,
                    transpose_a,
                    transpose_b,
                    bias,
                });
            }
        }
    }

    #[test]
    fn a_right_operand_larger_than_the_packing_buffer_is_taken_in_parts() {
        for transpose_a in [false, true] {
            check(&Matmul {
                m: 5,
                n: 500,
                k: 5000,
                transpose_a,
                transpose_b: true,
                bias: true,
            });
        }
    }

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
        let &HeadMatmul {
            batch,
            heads,
            m,
            n,
            k,
            ..
        } = dims;
        let (a, b) = (
            noise(batch * heads * m * k, 1),
            noise(batch * heads * k * n, 2),
        );
        let run = |simd, count| {
            let mut c = vec![f32::NAN; batch * heads * m * n];
            let mut scratch = vec![f32::NAN; head_matmul_scratch(dims, count)];
            head_matmul_by(
                simd,
                dims,
                &a,
                &b,
                &mut c,
                &mut scratch,
                &Threads::new(count),
            );
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
