//! The planner of Remat: which activations to keep and which to recompute.
