//! Kernels: plain functions from slices to slices, one file per family of ops.
//!
//! A kernel gets its dimensions, its operands, scratch of the size that its own `*_scratch`
//! function states, and the threads. It allocates nothing, splits its work by shape alone and
//! reduces in a fixed order, so that its result is the same bits at any thread count.

mod conv;
mod conv_dw;
#[cfg(test)]
mod conv_tests;
mod gemm;
mod gemm_pack;
mod gemm_tile;
mod matmul;
#[cfg(test)]
mod reference;
mod sum_rows;

pub use conv::{conv, conv_dx, conv_dx_scratch, conv_scratch};
pub use conv_dw::{conv_dw, conv_dw_scratch};
pub use matmul::{head_matmul, head_matmul_scratch, matmul, matmul_scratch};
pub use sum_rows::{sum_rows, sum_rows_scratch};
