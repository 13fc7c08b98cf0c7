//! The profiler of Remat: time, bytes and liveness of every tensor of a step.
