//! PyTorch's caching allocator for CUDA, as arithmetic.
//!
//! The rules, which are those of `c10/cuda/CUDACachingAllocator.cpp` with its default settings, for
//! one device and one stream:
//! * *Round*: a request is rounded up to a multiple of 512 bytes.
//! * *Pools*: up to 1 MiB it belongs to the small pool, above to the large one. Blocks of the two
//!   never mix.
//! * *Best fit*: the smallest free block of the pool that is large enough serves it; of several the
//!   one with the lowest address.
//! * *Split*: what is left of that block becomes a free block if it has at least 512 bytes (small
//!   pool) or more than 1 MiB (large pool). Otherwise the request gets the whole block.
//! * *Segments*: where no block is large enough, a segment is taken from the device: 2 MiB for the
//!   small pool, 20 MiB for a request below 10 MiB, and the request rounded up to 2 MiB from there.
//! * *Merge*: a block that is given back joins its free neighbours in the segment. Segments are not
//!   given back to the device.
//!
//! With [`Segments::Expandable`] each pool has one segment that grows: memory is mapped to it in
//! pieces of 2 MiB (small pool) or 20 MiB (large pool) until the room at its end is large enough,
//! and every rest of 512 bytes is split off. The free block at the end, which can grow, counts as
//! the largest: it serves a request only where no other can.
//!
//! Where the device has a limit and a segment would go beyond it, every segment that is free as a
//! whole is given back to the device, and then the segment is taken or the request fails.
//!
//! Limits: no second stream, no setting of `PYTORCH_CUDA_ALLOC_CONF` but expandable segments. The
//! device may place segments in another order than at rising addresses, which decides between free
//! blocks of the same size. At a limit PyTorch gives back free parts of an expandable segment, too;
//! here the request fails, which is never too little.

use rekindle_graph::Bytes;

use crate::free_blocks::FreeBlocks;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Every block is a multiple of this.
const LEAST_BLOCK: u64 = 512;
/// The largest request of the small pool.
const SMALL: u64 = MIB;
/// The segments of the small pool.
const SMALL_SEGMENT: u64 = 2 * MIB;
/// The segments of the large pool, for requests below [`LARGE_REQUEST`].
const LARGE_SEGMENT: u64 = 20 * MIB;
/// From here on a segment is made for the request.
const LARGE_REQUEST: u64 = 10 * MIB;
/// Such a segment is a multiple of this.
const LARGE_ROUNDING: u64 = 2 * MIB;
/// The addresses of an expandable segment: far more than any device has.
const RESERVED_ADDRESSES: u64 = KIB.pow(4) * KIB;

/// How memory is taken from the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Segments {
    /// Segments of a fixed size, PyTorch's default.
    #[default]
    Fixed,
    /// One segment for each pool that grows (`expandable_segments:True`).
    Expandable,
}

/// A request for which the device has no room, even after all that is cached was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the device is out of memory: {requested} are asked for while {allocated} are handed out and \
     {reserved} are reserved of {limit}"
)]
pub struct OutOfMemory {
    /// What was asked for.
    pub requested: Bytes,
    /// What was handed out then.
    pub allocated: Bytes,
    /// What was reserved then.
    pub reserved: Bytes,
    /// What may be reserved.
    pub limit: Bytes,
}

/// Names a block that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block(u32);

/// A segment that is there before the first request, with the blocks of it that are handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentThere {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub size: Bytes,
    /// Whether it belongs to the small pool.
    pub is_small: bool,
    /// Addresses and bytes of blocks, by rising address; they do not overlap and lie inside.
    pub used: Vec<(u64, Bytes)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Used,
    Free,
    /// Addresses of an expandable segment without memory behind them.
    Unmapped,
    /// Joined with a neighbour; the number is used again.
    Gone,
}

/// A piece of a segment. Its neighbours are those with the next lower and higher addresses.
#[derive(Clone, Copy, Debug)]
struct Piece {
    address: u64,
    size: u64,
    state: State,
    pool: usize,
    before: Option<u32>,
    after: Option<u32>,
}

impl Piece {
    /// Whether it is its whole segment.
    fn is_whole(&self) -> bool {
        self.before.is_none() && self.after.is_none()
    }
}

/// The allocator's state; [`Default`] is [`Caching::new`] with segments of a fixed size.
#[derive(Clone, Debug)]
pub struct Caching {
    segments: Segments,
    pieces: Vec<Piece>,
    /// Numbers of pieces that are gone.
    spare: Vec<u32>,
    /// Of the small pool and of the large pool.
    free: [FreeBlocks; 2],
    /// The piece without memory at the end of each pool's expandable segment.
    unmapped: [Option<u32>; 2],
    next_address: u64,
    /// Where the device puts the next segment, if it is known.
    next_segment: Option<u64>,
    allocated: u64,
    reserved: u64,
    highest_allocated: u64,
    highest_reserved: u64,
    limit: u64,
    /// How often cached segments were given back at the limit.
    given_back: u32,
}

impl Default for Caching {
    fn default() -> Caching {
        Caching::new(Segments::Fixed)
    }
}

impl Caching {
    /// An allocator that has nothing yet.
    pub fn new(segments: Segments) -> Caching {
        Caching {
            segments,
            pieces: Vec::new(),
            spare: Vec::new(),
            free: [FreeBlocks::default(), FreeBlocks::default()],
            unmapped: [None; 2],
            next_address: 0,
            next_segment: None,
            allocated: 0,
            reserved: 0,
            highest_allocated: 0,
            highest_reserved: 0,
            limit: u64::MAX,
            given_back: 0,
        }
    }

    /// The same on a device that has so many bytes.
    pub fn with_limit(self, limit: Bytes) -> Caching {
        Caching { limit: limit.get(), ..self }
    }

    /// Adds a segment that is there; gives its blocks that are handed out, in their order. For
    /// segments of a fixed size.
    pub fn add_segment(&mut self, there: &SegmentThere) -> Vec<Block> {
        self.next_segment = Some(there.address);
        let pool = usize::from(!there.is_small);
        let mut rest = self.add_addresses(pool, there.size.get());
        self.reserved += there.size.get();
        let mut blocks = Vec::new();
        for &(address, size) in &there.used {
            let begin = self.pieces[rest as usize].address;
            if address > begin {
                let block = self.split(rest, address - begin);
                self.put_back(rest);
                rest = block;
            }
            let block = rest;
            if size.get() < self.pieces[rest as usize].size {
                rest = self.split(rest, size.get());
            }
            self.pieces[block as usize].state = State::Used;
            self.allocated += size.get();
            blocks.push(Block(block));
        }
        if self.pieces[rest as usize].state == State::Unmapped {
            self.put_back(rest);
        }
        self.highest_allocated = self.highest_allocated.max(self.allocated);
        self.highest_reserved = self.highest_reserved.max(self.reserved);
        blocks
    }

    /// Says where the device will put the next segment; None for wherever it likes.
    pub fn place_next_segment(&mut self, address: Option<u64>) {
        self.next_segment = address;
    }

    /// Gives the segment at an address back to the device. Says whether there is one that is free
    /// as a whole.
    pub fn give_back(&mut self, address: u64) -> bool {
        let is_it = |p: &Piece| p.address == address && p.state == State::Free && p.is_whole();
        match self.pieces.iter().position(is_it) {
            Some(number) => {
                self.give_back_segment(number as u32);
                true
            }
            None => false,
        }
    }

    /// Where a block is.
    pub fn address(&self, block: Block) -> u64 {
        self.pieces[block.0 as usize].address
    }

    /// The bytes that are handed out, as the allocator counts them: whole blocks.
    pub fn allocated(&self) -> Bytes {
        Bytes(self.allocated)
    }

    /// The most that was handed out at any time.
    pub fn highest_allocated(&self) -> Bytes {
        Bytes(self.highest_allocated)
    }

    /// The bytes taken from the device.
    pub fn reserved(&self) -> Bytes {
        Bytes(self.reserved)
    }

    /// The most that was taken from the device at any time. Without a limit nothing is given back.
    pub fn highest_reserved(&self) -> Bytes {
        Bytes(self.highest_reserved)
    }

    /// How often the limit was met, and cached segments were given back; the device waits then.
    pub fn given_back(&self) -> u32 {
        self.given_back
    }

    /// Hands out a block of at least `bytes`; none for no bytes.
    ///
    /// # Errors
    /// [`OutOfMemory`] at the limit.
    pub fn allocate(&mut self, bytes: Bytes) -> Result<Option<Block>, OutOfMemory> {
        if bytes == Bytes::ZERO {
            return Ok(None);
        }
        let size = bytes.get().next_multiple_of(LEAST_BLOCK);
        let pool = usize::from(size > SMALL);
        let found = match self.best_fit(pool, size) {
            Some(block) => block,
            None => self.take_from_device(pool, size, bytes)?,
        };
        self.take_out(found);
        if self.is_split(pool, self.pieces[found as usize].size - size) {
            self.split(found, size);
        }
        let piece = &mut self.pieces[found as usize];
        piece.state = State::Used;
        self.allocated += piece.size;
        self.highest_allocated = self.highest_allocated.max(self.allocated);
        Ok(Some(Block(found)))
    }

    /// Takes a block back.
    ///
    /// # Panics
    /// If it is not handed out.
    pub fn free(&mut self, block: Block) {
        let piece = &self.pieces[block.0 as usize];
        assert_eq!(piece.state, State::Used, "{block:?} is handed out");
        self.allocated -= piece.size;
        self.put_back(block.0);
    }

    /// The free block that serves `size` bytes: the smallest, where one that can grow is the
    /// largest.
    fn best_fit(&self, pool: usize, size: u64) -> Option<u32> {
        let mut fitting = self.free[pool].from(size);
        let first = fitting.next()?;
        let after = self.pieces[first as usize].after;
        let grows = after.is_some_and(|n| self.pieces[n as usize].state == State::Unmapped);
        match grows {
            true => fitting.next().or(Some(first)),
            false => Some(first),
        }
    }

    /// Whether the rest of a block becomes a block of its own.
    fn is_split(&self, pool: usize, rest: u64) -> bool {
        match self.segments {
            Segments::Fixed if pool == 1 => rest > SMALL,
            Segments::Fixed | Segments::Expandable => rest >= LEAST_BLOCK,
        }
    }

    /// A free block of at least `size` bytes with memory that is new from the device.
    fn take_from_device(
        &mut self,
        pool: usize,
        size: u64,
        requested: Bytes,
    ) -> Result<u32, OutOfMemory> {
        let more = match self.segments {
            Segments::Fixed => segment_for(pool, size),
            Segments::Expandable => self.missing(pool, size),
        };
        if more > self.limit.saturating_sub(self.reserved) {
            self.give_back_segments();
        }
        if more > self.limit.saturating_sub(self.reserved) {
            return Err(OutOfMemory {
                requested,
                allocated: Bytes(self.allocated),
                reserved: Bytes(self.reserved),
                limit: Bytes(self.limit),
            });
        }
        self.reserved += more;
        self.highest_reserved = self.highest_reserved.max(self.reserved);
        Ok(match self.segments {
            Segments::Fixed => {
                let piece = self.add_addresses(pool, more);
                self.put_back(piece)
            }
            Segments::Expandable => self.expand(pool, more),
        })
    }

    /// Gives segments that are free as a whole back to the device.
    fn give_back_segments(&mut self) {
        if self.segments == Segments::Expandable {
            return;
        }
        self.given_back += 1;
        for number in 0..self.pieces.len() as u32 {
            let piece = &self.pieces[number as usize];
            if piece.state == State::Free && piece.is_whole() {
                self.give_back_segment(number);
            }
        }
    }

    /// Gives a segment that is one free piece back to the device.
    fn give_back_segment(&mut self, number: u32) {
        self.take_out(number);
        let piece = &mut self.pieces[number as usize];
        self.reserved -= piece.size;
        piece.state = State::Gone;
        self.spare.push(number);
    }

    /// What must be mapped so that the pool's segment ends with a free block of at least `size`.
    fn missing(&self, pool: usize, size: u64) -> u64 {
        let before = self.unmapped[pool].and_then(|end| self.pieces[end as usize].before);
        let room = match before.map(|b| &self.pieces[b as usize]) {
            Some(piece) if piece.state == State::Free => piece.size,
            _ => 0,
        };
        (size - room).next_multiple_of([SMALL_SEGMENT, LARGE_SEGMENT][pool])
    }

    /// Maps so much memory at the end of the pool's segment, and gives the free block there.
    fn expand(&mut self, pool: usize, mapped: u64) -> u32 {
        let end = match self.unmapped[pool] {
            Some(end) => end,
            None => self.add_addresses(pool, RESERVED_ADDRESSES),
        };
        self.unmapped[pool] = Some(self.split(end, mapped));
        self.put_back(end)
    }

    /// Addresses that nothing else has, as one piece without memory.
    fn add_addresses(&mut self, pool: usize, size: u64) -> u32 {
        let address = self.next_segment.take().unwrap_or(self.next_address);
        self.next_address = self.next_address.max(address + size);
        let state = State::Unmapped;
        self.add_piece(Piece { address, size, state, pool, before: None, after: None })
    }

    fn add_piece(&mut self, piece: Piece) -> u32 {
        match self.spare.pop() {
            Some(number) => {
                self.pieces[number as usize] = piece;
                number
            }
            None => {
                self.pieces.push(piece);
                (self.pieces.len() - 1) as u32
            }
        }
    }

    /// Leaves `size` bytes to a piece and makes another of its rest, which it gives: free if the
    /// piece has memory.
    fn split(&mut self, piece: u32, size: u64) -> u32 {
        let Piece { address, size: whole, state, pool, after, .. } = self.pieces[piece as usize];
        let rest = self.add_piece(Piece {
            address: address + size,
            size: whole - size,
            state,
            pool,
            before: Some(piece),
            after,
        });
        if let Some(after) = after {
            self.pieces[after as usize].before = Some(rest);
        }
        let piece = &mut self.pieces[piece as usize];
        (piece.size, piece.after) = (size, Some(rest));
        if state != State::Unmapped {
            self.free[pool].insert(whole - size, address + size, rest);
        }
        rest
    }

    /// Makes a piece free, joined with its free neighbours. Gives the whole.
    fn put_back(&mut self, number: u32) -> u32 {
        let mut number = number;
        let is_free = |this: &Caching, n: &u32| this.pieces[*n as usize].state == State::Free;
        if let Some(after) = self.pieces[number as usize].after.filter(|n| is_free(self, n)) {
            self.take_out(after);
            self.join(number, after);
        }
        if let Some(before) = self.pieces[number as usize].before.filter(|n| is_free(self, n)) {
            self.take_out(before);
            self.join(before, number);
            number = before;
        }
        let piece = &mut self.pieces[number as usize];
        piece.state = State::Free;
        self.free[piece.pool].insert(piece.size, piece.address, number);
        number
    }

    /// A free block is no longer to be found.
    fn take_out(&mut self, number: u32) {
        let piece = &self.pieces[number as usize];
        self.free[piece.pool].remove(piece.size, piece.address, number);
    }

    /// Gives the addresses of `second`, which follow those of `first`, to `first`.
    fn join(&mut self, first: u32, second: u32) {
        let Piece { size, after, .. } = self.pieces[second as usize];
        let piece = &mut self.pieces[first as usize];
        piece.size += size;
        piece.after = after;
        if let Some(after) = after {
            self.pieces[after as usize].before = Some(first);
        }
        self.pieces[second as usize].state = State::Gone;
        self.spare.push(second);
    }
}

/// The segment that is taken for a request.
fn segment_for(pool: usize, size: u64) -> u64 {
    match pool {
        0 => SMALL_SEGMENT,
        _ if size < LARGE_REQUEST => LARGE_SEGMENT,
        _ => size.next_multiple_of(LARGE_ROUNDING),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Caching {
        fn hand_out(&mut self, bytes: Bytes) -> Option<Block> {
            self.allocate(bytes).expect("there is no limit")
        }
    }

    fn kib(n: u64) -> Bytes {
        Bytes(n * KIB)
    }

    fn mib(n: u64) -> Bytes {
        Bytes(n * MIB)
    }

    #[test]
    fn requests_are_rounded_and_share_segments() {
        let mut allocator = Caching::new(Segments::Fixed);
        assert_eq!(allocator.hand_out(Bytes::ZERO), None);
        allocator.hand_out(Bytes(1));
        allocator.hand_out(Bytes(513));
        assert_eq!(allocator.allocated(), Bytes(512 + 1024));
        assert_eq!(allocator.reserved(), mib(2));
        // 1 MiB is small, a byte more is large.
        allocator.hand_out(mib(1));
        assert_eq!(allocator.reserved(), mib(2));
        allocator.hand_out(mib(1));
        assert_eq!(allocator.reserved(), mib(2) + mib(2));
        allocator.hand_out(mib(1) + Bytes(1));
        assert_eq!(allocator.reserved(), mib(4) + mib(20));
        // Below 10 MiB from a segment of 20, from there on from one of its own.
        allocator.hand_out(mib(10));
        allocator.hand_out(mib(11) + Bytes(1));
        assert_eq!(allocator.reserved(), mib(24) + mib(12));
    }

    #[test]
    fn a_rest_of_up_to_a_mebibyte_stays_with_its_large_block() {
        let mut allocator = Caching::new(Segments::Fixed);
        let block = allocator.hand_out(mib(30)).expect("a block");
        allocator.free(block);
        allocator.hand_out(mib(29));
        assert_eq!(allocator.allocated(), mib(30));
        let mut allocator = Caching::new(Segments::Fixed);
        let block = allocator.hand_out(mib(30)).expect("a block");
        allocator.free(block);
        allocator.hand_out(mib(29) - Bytes(512));
        assert_eq!(allocator.allocated(), mib(29) - Bytes(512));
    }

    #[test]
    fn neighbours_join_again() {
        let mut allocator = Caching::new(Segments::Fixed);
        let blocks: Vec<_> = (0..4).filter_map(|_| allocator.hand_out(kib(512))).collect();
        for k in [1, 3, 0, 2] {
            allocator.free(blocks[k]);
        }
        assert_eq!((allocator.allocated(), allocator.reserved()), (Bytes::ZERO, mib(2)));
        allocator.hand_out(mib(1));
        allocator.hand_out(mib(1));
        assert_eq!(allocator.reserved(), mib(2));
        assert_eq!(allocator.highest_allocated(), mib(2));
    }

    /// Two blocks of 12 MiB that are free in segments of their own serve no block of 24; one
    /// segment that grows does with twice 20.
    #[test]
    fn segments_that_grow_are_not_fragmented() {
        let reserved = |segments| {
            let mut allocator = Caching::new(segments);
            let blocks: Vec<_> = (0..2).filter_map(|_| allocator.hand_out(mib(12))).collect();
            blocks.into_iter().for_each(|block| allocator.free(block));
            allocator.hand_out(mib(24));
            allocator.reserved()
        };
        assert_eq!(reserved(Segments::Fixed), mib(12) + mib(12) + mib(24));
        assert_eq!(reserved(Segments::Expandable), mib(40));
    }

    /// At the limit two free segments of 12 MiB make room for one of 24; one in use does not.
    #[test]
    fn at_the_limit_free_segments_are_given_back() {
        let mut allocator = Caching::new(Segments::Fixed).with_limit(mib(36));
        let blocks: Vec<_> = (0..3).filter_map(|_| allocator.hand_out(mib(12))).collect();
        let refused = allocator.allocate(mib(12)).expect_err("no room");
        assert_eq!((refused.allocated, refused.limit), (mib(36), mib(36)));
        blocks[1..].iter().for_each(|&block| allocator.free(block));
        allocator.hand_out(mib(24));
        assert_eq!(allocator.reserved(), mib(36));
        assert_eq!((allocator.highest_reserved(), allocator.given_back()), (mib(36), 2));
        assert!(allocator.allocate(mib(2)).is_err());
        let mut grown = Caching::new(Segments::Expandable).with_limit(mib(39));
        assert_eq!(grown.hand_out(mib(20)).map(|_| grown.reserved()), Some(mib(20)));
        assert!(grown.allocate(mib(2)).is_err());
    }
}
