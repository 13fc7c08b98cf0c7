//! The allocator of the device: what it reserves for a plan's allocations and frees.
//!
//! In: a graph and a schedule. Out: a [`Footprint`]: the bytes that PyTorch's caching allocator for
//! CUDA has handed out at most (`max_memory_allocated`), and those that it has taken from the
//! device (`max_memory_reserved`).
//!
//! A plan's peak is the sum of the bytes that are live. The allocator rounds every request up,
//! serves it from segments of 2 and 20 MiB and more, and keeps what is given back; so the device
//! must have more than the peak. All of it follows from the order of the requests: [`Caching`]
//! replays the rules, [`footprint`] feeds it what the one replay of a schedule tells, and
//! [`plan_reserved`] plans so that what is reserved is within a budget; [`fit_reserved`] says
//! whether that is possible.
//!
//! Everything here is a prediction: nothing is allocated and no device is asked.

mod caching;
mod footprint;
mod free_blocks;
mod requests;
mod reserve;

pub use caching::{Block, Caching, OutOfMemory, SegmentThere, Segments};
pub use footprint::{Footprint, FootprintError, footprint, footprint_within};
pub use requests::{Replayed, Request, RequestError, replay_requests};
pub use reserve::{ReserveError, fit_reserved, plan_reserved};
