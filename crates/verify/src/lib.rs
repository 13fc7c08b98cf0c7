//! The independent checker: replays a plan on its graph and trusts nothing that the plan says.
//!
//! In: a [`Graph`](rekindle_graph::Graph) and a [`Plan`](rekindle_graph::Plan). Out: an [`Audit`]
//! with what the replay measured, or *all* [`Violation`]s, in schedule order.
//!
//! Method. Three replays of the same steps that share nothing:
//! * *values*: each storage holds nothing, what its writer made, or what its updater left. Every
//!   read must see what the plain step's read sees, which is what the writer made: in a checked
//!   graph nobody reads a storage after its updater. Since a node is a function of what it reads,
//!   every run then writes what the plain step writes.
//!   A store holds copies: each is of what the writer made or of what the updater left, and is
//!   stale once the updater has run on what the writer made.
//! * *bytes*: what is live before, during and after each step, scratch included, and what the store
//!   holds.
//! * *times*: when the last run and the last transfer are over, every hazard being a wait.
//!
//! [`verify_rewritten`] also takes the graph that a plan was rewritten to, and checks run by run
//! that it is the same work, wired the same way, in no more bytes than the plan promises.
//!
//! Invariants: this crate depends on `rekindle-graph` alone and does not use its replay; a step
//! with a violation is replayed as if it were right, so that one fault is reported once.
//!
//! Limits: it does not judge whether the plan is good, and takes the graph's sizes and times as
//! given.

mod audit;
mod bytes;
mod rewritten;
mod times;
mod values;
mod versions;
mod violation;

pub use audit::{Audit, times_agree, verify};
pub use rekindle_graph::Origins;
pub use rewritten::verify_rewritten;
pub use violation::{Violation, Violations};
