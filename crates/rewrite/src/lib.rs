//! The rewriter: a plan becomes an ordinary graph.
//!
//! In: a [`Graph`](rekindle_graph::Graph) and a [`Plan`](rekindle_graph::Plan) that is valid for
//! it. Out: [`Rewritten`]: a graph whose own order is the plan's order of runs and transfers, in
//! which nothing is written twice and any executor that frees after last use stays within the
//! plan's peak; what each node stands for; and, for each activation that is made again, the
//! sub-graph that rebuilds it.
//!
//! Method: static single assignment. The plan's runs are walked in order. The first run of a node
//! is the node itself; each further run is a clone (`conv3@1`) that writes storages of its own. A
//! read sees the latest copy of a storage that is live at that point. An output of a clone whose
//! original is still live goes to a storage that nobody reads, so it lives for that one run.
//!
//! Transfers are nodes ([`Transfer`](rekindle_graph::Transfer)). A copy in the store is a token, a
//! storage of no bytes: an `offload` reads the storage and writes the token, a `fetch` reads the
//! token and writes a storage of its own. A storage that has been offloaded has its last use where
//! the plan frees it: there a `wait` reads it and the token, so that it is held until then, and the
//! copy is complete. What is stored at the start is a token that an input writes; what the plan
//! leaves in the store is a token among the outputs. Of the copies of a persistent storage only the
//! one that the plan leaves in memory is persistent.
//!
//! Invariants: nodes are found by id, never by name. A node that may run once is never cloned,
//! since a valid plan never runs it again; a random node's clone draws the same numbers, because
//! its randomness belongs to the node that it stands for ([`Rewritten::node_origin`]).
//!
//! Limits: bytes that a plan holds longer than it uses them are not held by the rewritten graph,
//! whose peak is then lower than the plan's.

mod dot;
mod extract;
mod rewrite;

pub use dot::dot;
pub use extract::Extraction;
pub use rewrite::{RewriteError, Rewritten, rewrite};
