//! The executable IR of Remat: typed ops, builder, autodiff, optimizers.

pub mod op;
mod program;

pub use program::{ALIGN, DType, Init, Node, Program, Tensor};
