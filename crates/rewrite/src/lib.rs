//! The rewriter of Remat: a plan becomes an ordinary graph.
