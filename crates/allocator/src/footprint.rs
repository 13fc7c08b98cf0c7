//! What a schedule makes the allocator reserve.
//!
//! A training step is repeated, and the blocks of one step lie where the step before left room for
//! them. So the schedule is replayed until a step reserves nothing more, which the second step
//! usually does not.

use rekindle_graph::{Bytes, Graph, Moment, Schedule, ScheduleError, Step, StorageId, replay};

use crate::{Block, Caching, OutOfMemory, Segments};

/// What the allocator has handed out and taken at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// The most bytes that were handed out: rounded, and with what was left of their blocks
    /// (`max_memory_allocated`).
    pub allocated: Bytes,
    /// The most bytes that were taken from the device (`max_memory_reserved`).
    pub reserved: Bytes,
    /// How often cached segments were given back at the limit, in the last step.
    pub given_back: u32,
}

/// Why a schedule has no footprint.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FootprintError {
    /// The schedule cannot be followed.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The device's limit is met.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
}

/// Steps after which the allocator has had time to settle. Fragments of one step are room for the
/// next; no graph was seen to need more than three.
const MOST_STEPS: usize = 8;

/// The footprint of a training step that is repeated, with sources, outputs and scratch.
///
/// A run's writes are allocated in their order, then its scratch as one block, which is given back
/// when the run is over. What is live at the end of a step and was not at its start (gradients that
/// are outputs) is given back before the next one.
///
/// # Errors
/// The first step of the schedule that cannot be done.
pub fn footprint(
    graph: &Graph,
    schedule: &Schedule,
    segments: Segments,
) -> Result<Footprint, ScheduleError> {
    match footprint_within(graph, schedule, segments, Bytes(u64::MAX)) {
        Ok(found) => Ok(found),
        Err(FootprintError::Schedule(error)) => Err(error),
        Err(FootprintError::OutOfMemory(error)) => unreachable!("without a limit: {error}"),
    }
}

/// The same on a device that has `limit` bytes for the allocator.
///
/// # Errors
/// Likewise, and the first request that the device has no room for.
pub fn footprint_within(
    graph: &Graph,
    schedule: &Schedule,
    segments: Segments,
    limit: Bytes,
) -> Result<Footprint, FootprintError> {
    let mut device = Device::new(graph, Caching::new(segments).with_limit(limit));
    for source in graph.sources().filter(|s| !schedule.stored_at_start.contains(s)) {
        device.claim(source);
    }
    let at_start = device.blocks.clone();
    let (mut reserved, mut given_back) = (Bytes::ZERO, 0);
    for _ in 0..MOST_STEPS {
        let before = device.allocator.given_back();
        replay(graph, schedule, |moment| device.follow(moment))?;
        given_back = device.allocator.given_back() - before;
        if let Some(error) = device.refused {
            return Err(error.into());
        }
        if device.allocator.highest_reserved() == reserved {
            break;
        }
        reserved = device.allocator.highest_reserved();
        device.begin_anew(&at_start);
    }
    let allocator = device.allocator;
    Ok(Footprint {
        allocated: allocator.highest_allocated(),
        reserved: allocator.highest_reserved(),
        given_back,
    })
}

/// The allocator, and the block of each storage.
struct Device<'g> {
    graph: &'g Graph,
    allocator: Caching,
    blocks: Vec<Option<Block>>,
    /// The first request that there was no room for.
    refused: Option<OutOfMemory>,
}

impl<'g> Device<'g> {
    fn new(graph: &'g Graph, allocator: Caching) -> Device<'g> {
        let blocks = vec![None; graph.storages().len()];
        Device { graph, allocator, blocks, refused: None }
    }

    fn claim(&mut self, storage: StorageId) {
        let bytes = self.graph.storage(storage).bytes;
        self.blocks[storage.index()] = self.allocate(bytes);
    }

    fn allocate(&mut self, bytes: Bytes) -> Option<Block> {
        match self.allocator.allocate(bytes) {
            Ok(block) => block,
            Err(error) => {
                self.refused.get_or_insert(error);
                None
            }
        }
    }

    fn release(&mut self, storage: StorageId) {
        if let Some(block) = self.blocks[storage.index()].take() {
            self.allocator.free(block);
        }
    }

    fn follow(&mut self, moment: &Moment<'_>) {
        moment.claimed.iter().for_each(|&s| self.claim(s));
        if let Some(scratch) = self.allocate(moment.scratch) {
            self.allocator.free(scratch);
        }
        match moment.step {
            Step::Free(storage) => self.release(storage),
            Step::Run(_) | Step::Offload(_) | Step::Fetch(_) => {}
        }
    }

    /// What the step has left in memory goes, and what it has moved away is there again.
    fn begin_anew(&mut self, at_start: &[Option<Block>]) {
        for storage in self.graph.storage_ids() {
            match (at_start[storage.index()].is_some(), self.blocks[storage.index()].is_some()) {
                (true, false) => self.claim(storage),
                (false, true) => self.release(storage),
                (true, true) | (false, false) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle_graph::{GraphParts, Node, Phase, Role, Storage};

    const MIB: u64 = 1 << 20;

    /// A parameter of 3 MiB, `a` of 15 and `b` of 15 with 12 MiB of scratch.
    fn graph() -> Graph {
        let of = |mib: u64, role| Storage { bytes: Bytes(mib * MIB), role };
        let storages = vec![
            of(3, Role::Parameter),
            of(15, Role::Activation),
            of(15, Role::Activation),
            Storage { bytes: Bytes(4), role: Role::Other },
        ];
        let mut nodes = vec![
            Node::new("w", Phase::Input, 0.0, &[], &[0]),
            Node::new("a", Phase::Forward, 1.0, &[0], &[1]),
            Node::new("b", Phase::Forward, 1.0, &[1], &[2]),
            Node::new("loss", Phase::Forward, 1.0, &[2], &[3]),
        ];
        nodes[2].workspace = Bytes(12 * MIB);
        let outputs = vec![StorageId(3)];
        Graph::new(GraphParts { storages, nodes, outputs, ..GraphParts::default() }).expect("valid")
    }

    #[test]
    fn a_step_is_rounded_cached_and_repeated() {
        let graph = graph();
        let found = footprint(&graph, &Schedule::plain(&graph), Segments::Fixed).expect("valid");
        // The parameter in a segment of 20 MiB of which 17 stay free; then `a` fits there, `b`
        // takes 16 MiB (its rest of 1 MiB stays with it) and the scratch 12.
        assert_eq!(found.reserved, Bytes((20 + 16 + 12 + 2) * MIB));
        assert_eq!(found.allocated, Bytes((3 + 15 + 16 + 12) * MIB));
        let grown = footprint(&graph, &Schedule::plain(&graph), Segments::Expandable);
        assert_eq!(grown.expect("valid").reserved, Bytes((60 + 2) * MIB));
    }

    #[test]
    fn a_limit_is_met_or_named() {
        let graph = graph();
        let plain = Schedule::plain(&graph);
        let within = |mib| footprint_within(&graph, &plain, Segments::Fixed, Bytes(mib * MIB));
        assert_eq!(within(50), Ok(footprint(&graph, &plain, Segments::Fixed).expect("valid")));
        // The scratch of the step before is given back for what comes next.
        let Err(FootprintError::OutOfMemory(refused)) = within(47) else {
            panic!("{:?}", within(47));
        };
        assert_eq!((refused.requested, refused.limit), (Bytes(12 * MIB), Bytes(47 * MIB)));
    }
}
