//! The operations a program is made of.
//!
//! An [`Op`] carries every dimension that its kernel needs; its operands are plain blocks of
//! memory. So a reshape is no operation, and a kernel never looks at a shape outside its own op.
//!
//! Layouts: images are `[n, h, w, c]`, convolution weights `[kh, kw, ci / groups, co]`, linear
//! weights `[out, in]`, token ids and labels `i64`. A "row" is everything but the last axis.
//! Each op documents its operands as `reads → writes`; what it updates in place is marked `*`.
//!
//! Each family has a file: the dimensions of its ops, its methods of the
//! [`Builder`](crate::Builder), which check what a caller gives, and the facts of each op (shape
//! rule, effect, updates, flops, derivative; see `facts.rs`). The engine's folder `kernels` has
//! the files of the same names, with the kernels.

mod activation;
mod batch_norm;
mod binary;
mod cast;
mod conv;
mod cross_entropy;
mod dropout;
mod elementwise;
mod embedding;
mod facts;
mod group_norm;
mod head_matmul;
mod layer_norm;
mod layout;
mod matmul;
mod optimizer;
mod pooling;
mod reduce;
mod resize;
mod rms_norm;
mod softmax;
mod source;
mod sum_rows;
mod transfer;
mod unary;
mod view;
mod window;

use rekindle_graph::Effect;

use crate::ProgramError;
use crate::autodiff::Rule;
use facts::Operation;

pub use activation::{Gelu, GeluDx, GeluKind, Relu, ReluDx};
pub use batch_norm::{
    BatchNorm, BatchNormDx, BatchNormState, BatchNormStats, BatchNormUpdate, Tail, Then,
};
pub use binary::{Binary, Pair};
pub use cast::Cast;
pub use conv::{Conv, ConvDw, ConvDx, ConvOptions};
pub use cross_entropy::{CrossEntropy, CrossEntropyDx};
pub use dropout::Dropout;
pub use elementwise::{Add, Scale};
pub use embedding::{Embedding, EmbeddingDw};
pub use facts::{Operand, Shapes};
pub use group_norm::{GroupNorm, GroupNormDx};
pub use head_matmul::{HeadMatmul, HeadOperand, Heads};
pub use layer_norm::{LayerNorm, LayerNormDx};
pub use layout::{Concat, Permute, Split};
pub use matmul::{Matmul, Transpose};
pub use optimizer::{Adam, AdamOptions, Optimizer, Sgd, SgdOptions};
pub use pooling::{AvgPool, AvgPoolDx, MaxPool, MaxPoolDx, PoolOptions, Pooling};
pub use reduce::{Reduce, Reduction};
pub use resize::{Between, Position, Resize, ResizeDx};
pub use rms_norm::{RmsNorm, RmsNormDx};
pub use softmax::{Mask, Softmax, SoftmaxDx};
pub use source::Source;
pub use sum_rows::SumRows;
pub use transfer::{Fetch, Offload, Transfer};
pub use unary::{Map, Unary, UnaryDx};
pub use view::{Axis, View};
pub use window::Window;

/// Makes [`Op`] of the list of all ops, and looks each fact up at the op that has it.
macro_rules! ops {
    ($($op:ident),* $(,)?) => {
        /// An operation with all its dimensions.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[allow(missing_docs)] // Each op is documented at its dimensions.
        pub enum Op { $($op($op)),* }

        $(impl From<$op> for Op {
            fn from(op: $op) -> Op {
                Op::$op(op)
            }
        })*

        impl Op {
            /// A short name, as reports show it.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$op(_) => $op::FACTS.name),* }
            }

            /// What it reads and writes.
            pub fn shapes(&self) -> Shapes {
                match self { $(Op::$op(op) => ($op::FACTS.shapes)(op)),* }
            }

            /// Whether it may run again.
            pub fn effect(&self) -> Effect {
                match self { $(Op::$op(_) => $op::FACTS.effect.of_graph()),* }
            }

            /// Which of its reads it overwrites in place.
            pub fn updates(&self) -> &'static [usize] {
                match self { $(Op::$op(op) => $op::FACTS.effect.updates(op)),* }
            }

            /// Multiplications and additions of one run; zero for what only moves or maps elements.
            pub fn flops(&self) -> u64 {
                match self { $(Op::$op(op) => ($op::FACTS.flops)(op)),* }
            }

            /// How many gradients of its first result its rule of differentiation takes; none where
            /// no gradient passes.
            pub(crate) fn gradients_taken(&self) -> usize {
                match self { $(Op::$op(_) => $op::FACTS.derivative.takes()),* }
            }

            /// Emits the backward nodes of the node that `rule` holds, whose op this is.
            pub(crate) fn differentiate(&self, rule: &mut Rule<'_>) -> Result<(), ProgramError> {
                match self { $(Op::$op(op) => $op::FACTS.derivative.apply(op, rule)),* }
            }
        }
    };
}

ops! {
    Source,
    Conv, ConvDx, ConvDw,
    MaxPool, MaxPoolDx, AvgPool, AvgPoolDx,
    Matmul, HeadMatmul, SumRows,
    BatchNormStats, BatchNorm, BatchNormUpdate, BatchNormDx,
    LayerNorm, LayerNormDx, RmsNorm, RmsNormDx, GroupNorm, GroupNormDx,
    Relu, ReluDx, Gelu, GeluDx,
    Softmax, SoftmaxDx,
    Embedding, EmbeddingDw,
    Dropout,
    CrossEntropy, CrossEntropyDx,
    Add, Scale, Unary, UnaryDx, Binary, Reduce, Cast,
    Permute, Split, Concat, View, Resize, ResizeDx,
    Sgd, Adam,
    Offload, Fetch,
}
