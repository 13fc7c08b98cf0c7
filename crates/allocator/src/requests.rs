//! A recorded history of requests, replayed.
//!
//! A recording says where each block was handed out, and where each segment was taken from the
//! device. Where segments lie is the device's choice, so it is taken over; everything else is
//! decided by [`Caching`] and compared: a block at another address than the recorded one, a segment
//! of another size, or one that was taken or given back at another time, is counted.

use std::collections::BTreeMap;

use rekindle_graph::Bytes;

use crate::{Block, Caching, Footprint, OutOfMemory, SegmentThere};

/// One event of a history. Addresses name blocks and segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// So many bytes were handed out at an address.
    Allocate(u64, Bytes),
    /// What was handed out there was given back.
    Free(u64),
    /// A segment was taken from the device, for the request that follows.
    Take(u64, Bytes),
    /// A segment was given back to the device.
    GiveBack(u64),
}

/// A history as our allocator has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// What was handed out and taken at most.
    pub footprint: Footprint,
    /// Blocks that were handed out.
    pub blocks: usize,
    /// Those of them that are not at their recorded address.
    pub elsewhere: usize,
    /// Segments that were taken or given back in another way than the recorded one.
    pub otherwise: usize,
}

/// Why a history cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// An address is handed out that is in use.
    #[error("event {event}: the address {address:#x} is handed out twice")]
    Twice {
        /// Its place in the history.
        event: usize,
        /// The address.
        address: u64,
    },
    /// An address is given back that is not in use. A history that begins in the middle has such.
    #[error("event {event}: the address {address:#x} is given back and was not handed out")]
    Unknown {
        /// Its place in the history.
        event: usize,
        /// The address.
        address: u64,
    },
    /// A segment that is there has a block outside of it, or two that overlap.
    #[error("the segment at {address:#x} has a block that does not lie in it, or overlaps another")]
    Segment {
        /// Where the segment begins.
        address: u64,
    },
    /// The device has no room.
    #[error("event {event}: {why}")]
    OutOfMemory {
        /// Its place in the history.
        event: usize,
        /// What was asked for.
        why: OutOfMemory,
    },
}

/// What the allocator hands out and reserves for a history that begins with these segments.
///
/// # Errors
/// The first event that cannot be.
pub fn replay_requests(
    allocator: Caching,
    there: &[SegmentThere],
    history: &[Request],
) -> Result<Replayed, RequestError> {
    let mut replay = Replay { allocator, ..Replay::default() };
    for segment in there {
        replay.begin_with(segment)?;
    }
    for (event, request) in history.iter().enumerate() {
        match *request {
            Request::Allocate(address, bytes) => replay.allocate(event, address, bytes)?,
            Request::Free(address) => replay.free(event, address)?,
            Request::Take(address, size) => {
                // The one before was taken, and our allocator has not needed it.
                replay.otherwise += usize::from(replay.taken.is_some());
                replay.taken = Some((address, size));
            }
            Request::GiveBack(address) => {
                replay.otherwise += usize::from(!replay.allocator.give_back(address));
            }
        }
    }
    let allocator = replay.allocator;
    let footprint = Footprint {
        allocated: allocator.highest_allocated(),
        reserved: allocator.highest_reserved(),
        given_back: allocator.given_back(),
    };
    let otherwise = replay.otherwise + usize::from(replay.taken.is_some());
    Ok(Replayed { footprint, blocks: replay.count, elsewhere: replay.elsewhere, otherwise })
}

#[derive(Default)]
struct Replay {
    allocator: Caching,
    /// By their recorded addresses; None for no bytes.
    blocks: BTreeMap<u64, Option<Block>>,
    /// The segment that was taken last, if no request has followed.
    taken: Option<(u64, Bytes)>,
    count: usize,
    elsewhere: usize,
    otherwise: usize,
}

impl Replay {
    fn begin_with(&mut self, segment: &SegmentThere) -> Result<(), RequestError> {
        let mut free_from = Some(segment.address);
        for &(address, size) in &segment.used {
            let is_behind = free_from.is_some_and(|from| address >= from) && size > Bytes::ZERO;
            free_from = address.checked_add(size.get()).filter(|_| is_behind);
        }
        let end = segment.address.checked_add(segment.size.get());
        if free_from.is_none() || free_from > end {
            return Err(RequestError::Segment { address: segment.address });
        }
        let blocks = self.allocator.add_segment(segment);
        let named = segment.used.iter().map(|&(address, _)| address).zip(blocks);
        self.blocks.extend(named.map(|(address, block)| (address, Some(block))));
        Ok(())
    }

    fn allocate(&mut self, event: usize, address: u64, bytes: Bytes) -> Result<(), RequestError> {
        let before = self.allocator.reserved();
        let taken = self.taken.take();
        self.allocator.place_next_segment(taken.map(|(address, _)| address));
        let block = self.allocator.allocate(bytes);
        self.allocator.place_next_segment(None);
        let block = block.map_err(|why| RequestError::OutOfMemory { event, why })?;
        let size = taken.map_or(Bytes::ZERO, |(_, size)| size);
        self.otherwise += usize::from(self.allocator.reserved() != before + size);
        if let Some(block) = block {
            self.count += 1;
            self.elsewhere += usize::from(self.allocator.address(block) != address);
        }
        match self.blocks.insert(address, block) {
            Some(_) => Err(RequestError::Twice { event, address }),
            None => Ok(()),
        }
    }

    fn free(&mut self, event: usize, address: u64) -> Result<(), RequestError> {
        match self.blocks.remove(&address) {
            None => return Err(RequestError::Unknown { event, address }),
            Some(None) => {}
            Some(Some(block)) => self.allocator.free(block),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segments;

    fn mib(n: u64) -> Bytes {
        Bytes(n << 20)
    }

    #[test]
    fn a_history_is_followed_or_refused_at_its_event() {
        let history = [
            Request::Allocate(0x10, mib(12)),
            Request::Allocate(0x20, Bytes(100)),
            Request::Free(0x10),
            Request::Allocate(0x10, mib(11)),
        ];
        let found = replay_requests(Caching::new(Segments::Fixed), &[], &history).expect("valid");
        let Footprint { allocated, reserved, .. } = found.footprint;
        assert_eq!((allocated, reserved), (mib(12) + Bytes(512), mib(14)));
        assert_eq!((found.blocks, found.elsewhere, found.otherwise), (3, 3, 2));
        let twice = [history[0], history[0]];
        let unknown = [history[0], Request::Free(0x30)];
        let fails = |history| replay_requests(Caching::new(Segments::Fixed), &[], history);
        assert_eq!(fails(&twice), Err(RequestError::Twice { event: 1, address: 0x10 }));
        assert_eq!(fails(&unknown), Err(RequestError::Unknown { event: 1, address: 0x30 }));
        let small = Caching::new(Segments::Fixed).with_limit(mib(13));
        let refused = replay_requests(small, &[], &history);
        assert!(matches!(refused, Err(RequestError::OutOfMemory { event: 1, .. })), "{refused:?}");
    }

    /// A segment of 20 MiB with 4 free at its start and 6 at its end, and what a device did then.
    #[test]
    fn a_history_that_begins_in_the_middle_has_its_addresses() {
        const AT: u64 = 1 << 30;
        const FAR: u64 = 1 << 20;
        let used = vec![(AT + mib(4).get(), mib(5)), (AT + mib(9).get(), mib(5))];
        let there = SegmentThere { address: AT, size: mib(20), is_small: false, used };
        let history = [
            Request::Allocate(AT, mib(4)),
            Request::Allocate(AT + mib(14).get(), mib(2)),
            // 4 MiB are left at the end; the next segment lies below the first.
            Request::Take(FAR, mib(20)),
            Request::Allocate(FAR, mib(5)),
            Request::Free(AT + mib(4).get()),
            Request::Allocate(AT + mib(4).get(), mib(5)),
            Request::Free(FAR),
            Request::GiveBack(FAR),
        ];
        let replay = |history: &[_]| {
            replay_requests(Caching::default(), std::slice::from_ref(&there), history)
        };
        let found = replay(&history).expect("valid");
        assert_eq!((found.blocks, found.elsewhere, found.otherwise), (4, 0, 0));
        assert_eq!(found.footprint.reserved, mib(40));
        assert_eq!(found.footprint.allocated, mib(21));
        // Another place, a segment that nobody needs, one that is in use or not there.
        let elsewhere = replay(&[Request::Allocate(AT + mib(14).get(), mib(4))]).expect("valid");
        assert_eq!((elsewhere.elsewhere, elsewhere.otherwise), (1, 0));
        let taken = [Request::Take(FAR, mib(20)), Request::Allocate(AT, mib(4))];
        assert_eq!(replay(&taken).expect("valid").otherwise, 1);
        let given_back = [Request::GiveBack(AT), Request::GiveBack(FAR)];
        assert_eq!(replay(&given_back).expect("valid").otherwise, 2);
        for used in [vec![(AT - 1, mib(1))], vec![(AT, mib(2)), (AT + 1, mib(1))]] {
            let wrong = SegmentThere { used, ..there.clone() };
            let refused = replay_requests(Caching::default(), &[wrong], &[]);
            assert_eq!(refused, Err(RequestError::Segment { address: AT }));
        }
    }
}
