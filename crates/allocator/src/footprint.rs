//! What a schedule makes the allocator reserve.
//!
//! A training step is repeated, and the blocks of one step lie where the step before left room for
//! them. So the schedule is replayed until a step reserves nothing more, which the second step
//! usually does not.

use rekindle_graph::{Bytes, Graph, Moment, Schedule, ScheduleError, Step, StorageId, replay};

use crate::{Block, Caching, Segments};

/// What the allocator has handed out and taken at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// The most bytes that were handed out: rounded, and with what was left of their blocks
    /// (`max_memory_allocated`).
    pub allocated: Bytes,
    /// The most bytes that were taken from the device (`max_memory_reserved`).
    pub reserved: Bytes,
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
    let mut device = Device::new(graph, segments);
    for source in graph.sources().filter(|s| !schedule.stored_at_start.contains(s)) {
        device.claim(source);
    }
    let at_start = device.blocks.clone();
    let mut reserved = Bytes::ZERO;
    for _ in 0..MOST_STEPS {
        replay(graph, schedule, |moment| device.follow(moment))?;
        if device.allocator.reserved() == reserved {
            break;
        }
        reserved = device.allocator.reserved();
        device.begin_anew(&at_start);
    }
    Ok(Footprint {
        allocated: device.allocator.highest_allocated(),
        reserved: device.allocator.reserved(),
    })
}

/// The allocator, and the block of each storage.
struct Device<'g> {
    graph: &'g Graph,
    allocator: Caching,
    blocks: Vec<Option<Block>>,
}

impl<'g> Device<'g> {
    fn new(graph: &'g Graph, segments: Segments) -> Device<'g> {
        let blocks = vec![None; graph.storages().len()];
        Device { graph, allocator: Caching::new(segments), blocks }
    }

    fn claim(&mut self, storage: StorageId) {
        let bytes = self.graph.storage(storage).bytes;
        self.blocks[storage.index()] = self.allocator.allocate(bytes);
    }

    fn release(&mut self, storage: StorageId) {
        if let Some(block) = self.blocks[storage.index()].take() {
            self.allocator.free(block);
        }
    }

    fn follow(&mut self, moment: &Moment<'_>) {
        moment.claimed.iter().for_each(|&s| self.claim(s));
        if let Some(scratch) = self.allocator.allocate(moment.scratch) {
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
}
