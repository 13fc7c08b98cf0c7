//! A recorded history of requests, replayed.

use std::collections::BTreeMap;

use rekindle_graph::Bytes;

use crate::{Block, Caching, Footprint, OutOfMemory};

/// One event of a history. Addresses name blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// So many bytes were handed out at an address.
    Allocate(u64, Bytes),
    /// What was handed out there was given back.
    Free(u64),
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
    /// The device has no room.
    #[error("event {event}: {why}")]
    OutOfMemory {
        /// Its place in the history.
        event: usize,
        /// What was asked for.
        why: OutOfMemory,
    },
}

/// What the allocator hands out and reserves for a history.
///
/// # Errors
/// The first event that cannot be.
pub fn replay_requests(
    mut allocator: Caching,
    history: &[Request],
) -> Result<Footprint, RequestError> {
    let mut blocks: BTreeMap<u64, Option<Block>> = BTreeMap::new();
    for (event, request) in history.iter().enumerate() {
        match *request {
            Request::Allocate(address, bytes) => {
                let block = allocator.allocate(bytes);
                let block = block.map_err(|why| RequestError::OutOfMemory { event, why })?;
                if blocks.insert(address, block).is_some() {
                    return Err(RequestError::Twice { event, address });
                }
            }
            Request::Free(address) => match blocks.remove(&address) {
                None => return Err(RequestError::Unknown { event, address }),
                Some(None) => {}
                Some(Some(block)) => allocator.free(block),
            },
        }
    }
    Ok(Footprint {
        allocated: allocator.highest_allocated(),
        reserved: allocator.highest_reserved(),
        given_back: allocator.given_back(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Segments;

    #[test]
    fn a_history_is_followed_or_refused_at_its_event() {
        let mib = |n: u64| Bytes(n << 20);
        let history = [
            Request::Allocate(0x10, mib(12)),
            Request::Allocate(0x20, Bytes(100)),
            Request::Free(0x10),
            Request::Allocate(0x10, mib(11)),
        ];
        let found = replay_requests(Caching::new(Segments::Fixed), &history).expect("valid");
        assert_eq!((found.allocated, found.reserved), (mib(12) + Bytes(512), mib(14)));
        let twice = [history[0], history[0]];
        let unknown = [history[0], Request::Free(0x30)];
        let fails = |history| replay_requests(Caching::new(Segments::Fixed), history);
        assert_eq!(fails(&twice), Err(RequestError::Twice { event: 1, address: 0x10 }));
        assert_eq!(fails(&unknown), Err(RequestError::Unknown { event: 1, address: 0x30 }));
        let small = Caching::new(Segments::Fixed).with_limit(mib(13));
        let refused = replay_requests(small, &history);
        assert!(matches!(refused, Err(RequestError::OutOfMemory { event: 1, .. })), "{refused:?}");
    }
}
