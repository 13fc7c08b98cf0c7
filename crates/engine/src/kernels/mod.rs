//! Kernels: plain functions from slices to slices, one file per family of ops.
//!
//! A kernel gets its dimensions, its operands, scratch of the size that its own `*_scratch`
//! function states, and the threads. It allocates nothing, splits its work by shape alone and
//! reduces in a fixed order, so that its result is the same bits at any thread count.

mod activation;
mod batch_norm;
mod batch_norm_dx;
mod columns;
mod conv;
mod conv_dw;
#[cfg(test)]
mod conv_tests;
mod conv_winograd;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embedding;
mod gemm;
mod gemm_pack;
mod gemm_tile;
mod lanes;
mod layer_norm;
mod layout;
mod math;
mod matmul;
mod optimizer;
mod pooling;
#[cfg(test)]
mod reference;
mod softmax;
mod sum_rows;
mod tasks;
#[cfg(test)]
mod test_data;

pub use activation::{gelu, gelu_dx, relu, relu_dx};
pub use batch_norm::{
    batch_norm, batch_norm_scratch, batch_norm_stats, batch_norm_stats_scratch, batch_norm_update,
};
pub use batch_norm_dx::{
    BatchNormDxReads, BatchNormDxWrites, batch_norm_dx, batch_norm_dx_scratch,
};
pub use conv::{conv, conv_dx, conv_dx_scratch, conv_scratch};
pub use conv_dw::{conv_dw, conv_dw_scratch};
pub use cross_entropy::{cross_entropy, cross_entropy_dx};
pub use dropout::dropout;
pub use elementwise::{add, scale};
pub use embedding::{embedding, embedding_dw};
pub use layer_norm::{layer_norm, layer_norm_dx, layer_norm_dx_scratch};
pub use layout::{concat, permute, split};
pub use matmul::{head_matmul, head_matmul_scratch, matmul, matmul_scratch};
pub use optimizer::{adam, sgd};
pub use pooling::{avg_pool, avg_pool_dx, max_pool, max_pool_dx};
pub use softmax::{softmax, softmax_dx};
pub use sum_rows::{sum_rows, sum_rows_scratch};

/// Data that a kernel refuses, or what stopped it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A tensor could not be moved out of the arena or back.
    #[error(transparent)]
    Spill(#[from] crate::SpillError),
    /// An id is not a row of an embedding's table.
    #[error(
        "id {id} at position {position} is outside the embedding's table of {vocab} rows; \
         check that the data was made with this model's vocabulary"
    )]
    IdOutOfRange {
        /// Which of the ids.
        position: usize,
        /// The id.
        id: i64,
        /// Rows of the table.
        vocab: usize,
    },
    /// A label is neither a class nor the label that is ignored.
    #[error(
        "label {label} of row {row} is none of {classes} classes (-100 marks a row that does not \
         count); check the labels of the data"
    )]
    LabelOutOfRange {
        /// Which row.
        row: usize,
        /// Its label.
        label: i64,
        /// Number of classes.
        classes: usize,
    },
}
