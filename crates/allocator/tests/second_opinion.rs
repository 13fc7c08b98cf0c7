//! The allocator against a second implementation that keeps plain lists and looks at everything.

use rekindle_allocator::{Caching, Segments};
use rekindle_graph::Bytes;

const MIB: u64 = 1 << 20;

/// A segment: its pool, and its pieces in the order of their addresses, each with its size and the
/// request that holds it.
struct Segment {
    is_small: bool,
    pieces: Vec<(u64, Option<usize>)>,
}

/// Segments in the order in which they were taken, which is that of their addresses.
struct Lists {
    grows: bool,
    segments: Vec<Segment>,
    highest: u64,
    /// The most that may be reserved, and the most that was.
    limit: u64,
    most: u64,
}

impl Lists {
    fn allocated(&self) -> u64 {
        let pieces = self.segments.iter().flat_map(|s| &s.pieces);
        pieces.filter(|(_, holder)| holder.is_some()).map(|(size, _)| size).sum()
    }

    fn reserved(&self) -> u64 {
        self.segments.iter().flat_map(|s| &s.pieces).map(|(size, _)| size).sum()
    }

    /// Where the request goes: a segment and a piece of it.
    fn find(&self, is_small: bool, size: u64) -> Option<(usize, usize)> {
        let mut best: Option<(u64, usize, usize)> = None;
        for (s, segment) in self.segments.iter().enumerate() {
            for (p, &(bytes, holder)) in segment.pieces.iter().enumerate() {
                // A piece that can grow is as large as can be.
                let can_grow = self.grows && p + 1 == segment.pieces.len();
                let rank = if can_grow { u64::MAX } else { bytes };
                let fits = segment.is_small == is_small && holder.is_none() && bytes >= size;
                if fits && best.is_none_or(|(least, _, _)| rank < least) {
                    best = Some((rank, s, p));
                }
            }
        }
        best.map(|(_, s, p)| (s, p))
    }

    /// Where the new memory is; None where the device has no more.
    fn take_from_the_device(&mut self, is_small: bool, size: u64) -> Option<(usize, usize)> {
        let round = |bytes: u64, unit: u64| bytes.div_ceil(unit) * unit;
        if !self.grows {
            let bytes = match size {
                _ if is_small => 2 * MIB,
                ..10_485_760 => 20 * MIB,
                _ => round(size, 2 * MIB),
            };
            if self.reserved() + bytes > self.limit {
                self.segments.retain(|s| s.pieces.len() > 1 || s.pieces[0].1.is_some());
            }
            if self.reserved() + bytes > self.limit {
                return None;
            }
            self.segments.push(Segment { is_small, pieces: vec![(bytes, None)] });
            return Some((self.segments.len() - 1, 0));
        }
        let at = self.segments.iter().position(|s| s.is_small == is_small).unwrap_or_else(|| {
            self.segments.push(Segment { is_small, pieces: Vec::new() });
            self.segments.len() - 1
        });
        let pieces = &mut self.segments[at].pieces;
        let there = match pieces.last() {
            Some(&(bytes, None)) => {
                pieces.pop();
                bytes
            }
            _ => 0,
        };
        let unit = if is_small { 2 * MIB } else { 20 * MIB };
        let more = round(size - there, unit);
        if self.segments.iter().flat_map(|s| &s.pieces).map(|p| p.0).sum::<u64>() + there + more
            > self.limit
        {
            if there > 0 {
                self.segments[at].pieces.push((there, None));
            }
            return None;
        }
        let pieces = &mut self.segments[at].pieces;
        pieces.push((there + more, None));
        Some((at, pieces.len() - 1))
    }

    /// Whether there was room.
    fn allocate(&mut self, request: usize, bytes: u64) -> bool {
        let size = bytes.div_ceil(512) * 512;
        let is_small = size <= MIB;
        let (s, p) = match self.find(is_small, size) {
            Some(found) => found,
            None => match self.take_from_the_device(is_small, size) {
                Some(found) => found,
                None => return false,
            },
        };
        self.most = self.most.max(self.reserved());
        let pieces = &mut self.segments[s].pieces;
        let rest = pieces[p].0 - size;
        let is_split = if is_small || self.grows { rest >= 512 } else { rest > MIB };
        if is_split {
            pieces[p].0 = size;
            pieces.insert(p + 1, (rest, None));
        }
        pieces[p].1 = Some(request);
        self.highest = self.highest.max(self.allocated());
        true
    }

    fn free(&mut self, request: usize) {
        for segment in &mut self.segments {
            let mut joined: Vec<(u64, Option<usize>)> = Vec::new();
            for &(size, holder) in &segment.pieces {
                let holder = holder.filter(|&r| r != request);
                match joined.last_mut() {
                    Some((before, None)) if holder.is_none() => *before += size,
                    _ => joined.push((size, holder)),
                }
            }
            segment.pieces = joined;
        }
    }
}

/// Mostly small, sometimes at an edge of the rules, now and then large.
fn size(random: &mut fastrand::Rng) -> u64 {
    let edges = [512, MIB, 2 * MIB, 10 * MIB, 20 * MIB];
    match random.u32(0..10) {
        0..4 => random.u64(1..64 << 10),
        4..7 => random.u64(1..12 * MIB),
        7..9 => edges[random.usize(0..edges.len())] + random.u64(0..3) - 1,
        _ => random.u64(1..80 * MIB),
    }
}

#[test]
fn ten_thousand_random_sequences_give_the_same_bytes() {
    let mut refused = 0;
    for seed in 0..10_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let grows = seed % 2 == 1;
        let segments = if grows { Segments::Expandable } else { Segments::Fixed };
        // A third of the devices is too small for most histories.
        let limit = if seed % 3 == 0 { random.u64(4..200) * MIB } else { u64::MAX };
        let mut allocator = Caching::new(segments).with_limit(Bytes(limit));
        let mut lists = Lists { grows, segments: Vec::new(), highest: 0, limit, most: 0 };
        let mut held = Vec::new();
        for request in 0..random.usize(1..60) {
            if !held.is_empty() && random.u32(0..5) < 2 {
                let (number, block) = held.swap_remove(random.usize(0..held.len()));
                allocator.free(block);
                lists.free(number);
            } else {
                let bytes = size(&mut random);
                let block = allocator.allocate(Bytes(bytes));
                let is_there = lists.allocate(request, bytes);
                assert_eq!(block.is_ok(), is_there, "seed {seed}, request {request}");
                refused += usize::from(!is_there);
                if let Ok(block) = block {
                    held.push((request, block.expect("some bytes")));
                }
            }
            let found = [
                allocator.allocated(),
                allocator.reserved(),
                allocator.highest_allocated(),
                allocator.highest_reserved(),
            ];
            let wanted =
                [lists.allocated(), lists.reserved(), lists.highest, lists.most].map(Bytes);
            assert_eq!(found, wanted, "seed {seed}, request {request}");
        }
    }
    assert!(refused > 1000, "limits were met: {refused}");
}
