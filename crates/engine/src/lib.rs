//! The CPU training engine of Remat: kernels, arena placement, executor.
