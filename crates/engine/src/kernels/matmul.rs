//! Matrix products, shared out among the threads.

use std::ops::Range;

use rekindle_program::op::Matmul;

use super::KernelError;
use super::gemm::{
    Crew, LeftOperand, OperandLayout, Product, SHARED_PACK, Shape, multiply, multiply_scratch,
};
use super::gemm_tile::Simd;
use crate::dispatch::{Call, Kernel};
use crate::{SharedMut, Threads};

/// Plain matrices: rows at a fixed distance.
pub(super) struct Matrices<'a> {
    pub(super) left: &'a [f32],
    pub(super) left_pitch: usize,
    pub(super) result_start: usize,
    pub(super) result_pitch: usize,
}

// SAFETY: `left` finds slices of the left operand; rows of the result are a row or more apart.
unsafe impl OperandLayout for Matrices<'_> {
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

impl Kernel for Matmul {
    fn scratch(&self, threads: usize) -> usize {
        multiply_scratch(&shape(self), self.transpose_a, SHARED_PACK, threads)
    }

    fn run(&self, call: &mut Call<'_>) -> Result<(), KernelError> {
        let (a, b, bias) = (call.read(0), call.read(1), call.read_if(self.bias, 2));
        let (c, scratch) = (call.write(0), call.scratch());
        matmul(Simd::detect(), self, a, b, bias, c, scratch, call.threads);
        Ok(())
    }
}

fn shape(dims: &Matmul) -> Shape {
    Shape { rows: dims.m, cols: dims.n, segments: 1, depth: dims.k }
}

/// `c[m, n] = op(a) · op(b) (+ bias[n])`.
#[allow(clippy::too_many_arguments)] // The op's operands, and how to compute it.
fn matmul(
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
        shape: shape(dims),
        layout: &Matrices { left: a, left_pitch: dims.k, result_start: 0, result_pitch: dims.n },
        left: match dims.transpose_a {
            true => LeftOperand::Columns { data: a, pitch: dims.m },
            false => LeftOperand::Rows,
        },
        right: b,
        right_pitch: if dims.transpose_b { dims.k } else { dims.n },
        right_transposed: dims.transpose_b,
        alpha: 1.0,
        bias,
    };
    multiply(&product, &SharedMut::new(c), SHARED_PACK, scratch, Crew::All(threads));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::reference::{assert_sums, noise};

    fn plain(dims: &Matmul, a: &[f32], b: &[f32], bias: Option<&[f32]>) -> Vec<f64> {
        let &Matmul { m, n, k, .. } = dims;
        let left = |i, p| a[if dims.transpose_a { p * m + i } else { i * k + p }];
        let right = |p, j| b[if dims.transpose_b { j * k + p } else { p * n + j }];
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
            let mut scratch = vec![f32::NAN; dims.scratch(count)];
            let threads = Threads::new(count);
            matmul(simd, dims, &a, &b, bias, &mut c, &mut scratch, &threads);
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
                check(&Matmul { m, n, k, transpose_a, transpose_b, bias });
            }
        }
    }

    #[test]
    fn a_right_operand_larger_than_the_packing_buffer_is_taken_in_parts() {
        for transpose_a in [false, true] {
            check(&Matmul { m: 5, n: 500, k: 5000, transpose_a, transpose_b: true, bias: true });
        }
    }
}
