//! The operations a program is made of.
//!
//! An [`Op`] carries every dimension that its kernel needs; its operands are plain blocks of
//! memory. So a reshape is no operation, and a kernel never looks at a shape outside its own op.
//!
//! Layouts: images are `[n, h, w, c]`, convolution weights `[kh, kw, ci / groups, co]`, linear
//! weights `[out, in]`, token ids and labels `i64`. A "row" is everything but the last axis.
//! Each op documents its operands as `reads → writes`; what it updates in place is marked `*`.
//!
//! Each family has a file: its dimensions, its methods of the [`Builder`](crate::Builder), which
//! infer and check shapes, and its rules of differentiation.

mod batch_norm;
mod conv;
mod embedding;
mod head_matmul;
mod layer_norm;
mod layout;
mod matmul;
mod pointwise;
mod pool;
mod softmax;
mod transfer;
mod update;
mod window;

use rekindle_graph::Effect;

pub use batch_norm::{BatchNorm, BatchNormState, Tail, Then};
pub use conv::{Conv, ConvOptions};
pub use embedding::Embedding;
pub use head_matmul::{HeadMatmul, HeadOperand, Heads};
pub use layer_norm::LayerNorm;
pub use layout::{Permute, Split};
pub use matmul::{Matmul, Transpose};
pub use pointwise::{Dropout, Gelu};
pub(crate) use pointwise::{add_gradient, gelu_gradient, relu_gradient, scale_gradient};
pub use pool::{PoolOptions, Pooling};
pub use softmax::{CrossEntropy, Mask, Softmax};
pub use transfer::Transfer;
pub use update::{Adam, Sgd};
pub use window::Window;

/// An operation with all its dimensions.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // Each variant is documented at its dimensions, or is plain.
pub enum Op {
    /// Never runs: its write is there from the start.
    Source,
    Conv(Conv),
    ConvDx(Conv),
    ConvDw(Conv),
    MaxPool(Pooling),
    MaxPoolDx(Pooling),
    AvgPool(Pooling),
    AvgPoolDx(Pooling),
    Matmul(Matmul),
    HeadMatmul(HeadMatmul),
    /// `x: [rows, cols] → sum over rows: [cols]`; the gradient of a bias.
    SumRows {
        rows: usize,
        cols: usize,
    },
    BatchNormStats(BatchNorm),
    BatchNorm(BatchNorm),
    /// The momentum is PyTorch's: `running = (1 - momentum) · running + momentum · batch`.
    BatchNormUpdate {
        norm: BatchNorm,
        momentum: f32,
    },
    BatchNormDx(BatchNorm),
    LayerNorm(LayerNorm),
    LayerNormDx(LayerNorm),
    /// `x → y`
    Relu {
        len: usize,
    },
    /// `y, dy → dx`
    ReluDx {
        len: usize,
    },
    /// `x → y`
    Gelu {
        len: usize,
        kind: Gelu,
    },
    /// `x, dy → dx`
    GeluDx {
        len: usize,
        kind: Gelu,
    },
    Softmax(Softmax),
    SoftmaxDx(Softmax),
    Embedding(Embedding),
    EmbeddingDw(Embedding),
    Dropout(Dropout),
    CrossEntropy(CrossEntropy),
    CrossEntropyDx(CrossEntropy),
    /// `a, b → a + b`
    Add {
        len: usize,
    },
    /// `x → factor · x`
    Scale {
        len: usize,
        factor: f32,
    },
    Permute(Permute),
    Split(Split),
    Concat(Split),
    Sgd(Sgd),
    Adam(Adam),
    Offload(Transfer),
    Fetch(Transfer),
}

impl Op {
    /// A short name, as reports show it.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Source => "source",
            Op::Conv(_) => "conv",
            Op::ConvDx(_) => "conv_dx",
            Op::ConvDw(_) => "conv_dw",
            Op::MaxPool(_) => "max_pool",
            Op::MaxPoolDx(_) => "max_pool_dx",
            Op::AvgPool(_) => "avg_pool",
            Op::AvgPoolDx(_) => "avg_pool_dx",
            Op::Matmul(_) => "matmul",
            Op::HeadMatmul(_) => "head_matmul",
            Op::SumRows { .. } => "sum_rows",
            Op::BatchNormStats(_) => "batch_norm_stats",
            Op::BatchNorm(_) => "batch_norm",
            Op::BatchNormUpdate { .. } => "batch_norm_update",
            Op::BatchNormDx(_) => "batch_norm_dx",
            Op::LayerNorm(_) => "layer_norm",
            Op::LayerNormDx(_) => "layer_norm_dx",
            Op::Relu { .. } => "relu",
            Op::ReluDx { .. } => "relu_dx",
            Op::Gelu { .. } => "gelu",
            Op::GeluDx { .. } => "gelu_dx",
            Op::Softmax(_) => "softmax",
            Op::SoftmaxDx(_) => "softmax_dx",
            Op::Embedding(_) => "embedding",
            Op::EmbeddingDw(_) => "embedding_dw",
            Op::Dropout(_) => "dropout",
            Op::CrossEntropy(_) => "cross_entropy",
            Op::CrossEntropyDx(_) => "cross_entropy_dx",
            Op::Add { .. } => "add",
            Op::Scale { .. } => "scale",
            Op::Permute(_) => "permute",
            Op::Split(_) => "split",
            Op::Concat(_) => "concat",
            Op::Sgd(_) => "sgd",
            Op::Adam(_) => "adam",
            Op::Offload(_) => "offload",
            Op::Fetch(_) => "fetch",
        }
    }

    /// Whether it may run again.
    pub fn effect(&self) -> Effect {
        match self {
            Op::BatchNormUpdate { .. } | Op::Sgd(_) | Op::Adam(_) => Effect::Once,
            Op::Offload(_) | Op::Fetch(_) => Effect::Once,
            Op::Dropout(_) => Effect::Random,
            _ => Effect::Pure,
        }
    }

    /// Which of its reads it overwrites in place.
    pub fn updates(&self) -> &'static [usize] {
        match self {
            Op::BatchNormUpdate { .. } => &[1, 2, 3],
            Op::Sgd(sgd) if sgd.momentum != 0.0 => &[0, 2],
            Op::Sgd(_) => &[0],
            Op::Adam(_) => &[0, 2, 3],
            _ => &[],
        }
    }

    /// Multiplications and additions of one run; zero for what only moves or maps elements.
    pub fn flops(&self) -> u64 {
        let product = |sizes: &[usize]| 2 * sizes.iter().map(|&s| s as u64).product::<u64>();
        match self {
            Op::Conv(c) | Op::ConvDx(c) | Op::ConvDw(c) => product(&[
                c.window.out_pixels(),
                c.window.kernel[0] * c.window.kernel[1],
                c.in_channels / c.groups,
                c.out_channels,
            ]),
            Op::Matmul(g) => product(&[g.m, g.n, g.k]),
            Op::HeadMatmul(g) => product(&[g.batch, g.heads, g.m, g.n, g.k]),
            _ => 0,
        }
    }
}
