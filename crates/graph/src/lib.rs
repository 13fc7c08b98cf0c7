//! The planning IR: what a training step is, seen as bytes and time.
//!
//! A [`Graph`] holds *storages* (blocks of bytes with a role) and *nodes* (pieces of work that read
//! and write storages). A [`Schedule`] is a list of [`Step`]s on a graph: run a node, free a
//! storage, offload it to a [`Store`], fetch it back. A node that runs again is a recomputation. A
//! [`Plan`] is a schedule with what it promises. [`replay()`] walks a schedule, with bytes and a
//! clock, and tells what each step does; its [`Timeline`] says how many bytes are live at each step
//! and when all is done. [`Liveness`] says when each storage is made and used.
//!
//! In: `remat.graph/1`, `remat.plan/1` and `remat.plan/2` text, or parts built in memory. Out:
//! checked values.
//! A `Graph` that exists is valid: every id is in range, every storage has exactly one writer, the
//! order of the nodes is a valid order, and all bytes together are fewer than 2^61.
//!
//! This crate reads no clock, does no IO beyond files of the two formats and how files are read
//! and replaced, and depends on no other crate of the workspace.

mod budget;
mod check;
mod clock;
mod digest;
mod error;
mod graph;
mod id;
mod json;
mod liveness;
mod origins;
mod plan;
mod read;
mod replace;
mod replay;
mod schedule;
mod store;
mod unit;

pub use budget::{Budget, parse_budget, parse_share, typed_bytes};
pub use clock::Span;
pub use digest::Digest;
pub use error::{FileError, GraphError, PlanFileError, ScheduleError};
pub use graph::{Effect, Graph, GraphParts, Node, Phase, Role, Storage, Transfer, one_line};
pub use id::{NodeId, StepId, StorageId};
pub use json::{read_graph, read_plan};
pub use liveness::{Liveness, Uses};
pub use origins::Origins;
pub use plan::{Plan, WrongGraph};
pub use read::{open_file, read_file, read_text};
pub use replace::{
    Discarded, check_writable, destination, discard_partial_files, replace_file, write_atomically,
};
pub use replay::{Moment, Timeline, replay};
pub use schedule::{Schedule, Step};
pub use store::{Store, parse_store};
pub use unit::{Bytes, Micros, Rate};
