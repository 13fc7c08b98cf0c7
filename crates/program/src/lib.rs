//! The executable IR of Remat: typed ops, builder, autodiff, optimizers.
