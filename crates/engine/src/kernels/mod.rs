//! Kernels: plain functions from slices to slices, one file per family of ops, named as the
//! family's file in the program's folder `op`. Each op's [`Kernel`](crate::dispatch::Kernel) says
//! how much scratch it needs and hands the operands over.
//!
//! A kernel gets its dimensions, its operands, that scratch, and the threads. It allocates nothing,
//! splits its work by shape alone and reduces in a fixed order, so that its result is the same bits
//! at any thread count.

mod activation;
mod batch_norm;
mod batch_norm_dx;
mod binary;
mod cast;
mod columns;
mod conv;
mod conv_depthwise;
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
mod group_norm;
mod head_matmul;
mod lanes;
mod layer_norm;
mod layout;
mod math;
mod matmul;
mod optimizer;
mod pooling;
mod reduce;
#[cfg(test)]
mod reference;
mod resize;
mod rms_norm;
mod softmax;
mod source;
mod sum_rows;
mod tasks;
#[cfg(test)]
mod test_data;
mod transfer;
mod unary;
mod view;

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
