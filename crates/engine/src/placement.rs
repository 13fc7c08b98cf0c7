//! Placement: lifetimes → offsets in one arena.
//!
//! In: blocks, each live over a half-open range of steps, perhaps with a gap in it. Out: an offset
//! for each, such that blocks that are live at the same step do not overlap, and the size of the
//! arena that holds them all.
//! The lower bound is the largest sum of live bytes at any step; no placement is smaller.
//!
//! Method: blocks are placed one after the other, each at the lowest offset that is free over its
//! whole life (first fit). Only the order decides. A few fixed orders are tried; then the best is
//! improved by hill climbing: the block at the top changes places with blocks that it lies above,
//! until the arena is within [`SLACK`] of the bound or the counted attempts are used up.
//!
//! The problem is NP-hard, so the bound is not always reached. Deterministic: no clock, no hash
//! map.

use std::cmp::Reverse;

use rekindle_graph::Bytes;

/// A block of memory that is live from step `start` up to, not including, step `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The size of the block.
    pub bytes: u64,
    /// Its offset is a multiple of this.
    pub align: u64,
    /// The first step at which the block is live.
    pub start: u32,
    /// The first step at which the block is not live any more.
    pub end: u32,
    /// The first step at which it is not live in between, and the first at which it is again, in
    /// the same place.
    pub gap: Option<[u32; 2]>,
}

impl Block {
    /// A block without a gap.
    pub fn new(bytes: u64, align: u64, start: u32, end: u32) -> Block {
        Block { bytes, align, start, end, gap: None }
    }

    /// The ranges of steps over which it is live.
    fn lives(&self) -> impl Iterator<Item = [u32; 2]> + use<> {
        let (first, second) = match self.gap {
            None => ([self.start, self.end], [0, 0]),
            Some([from, to]) => ([self.start, from], [to, self.end]),
        };
        [first, second].into_iter().filter(|[start, end]| start < end)
    }

    /// Whether both are live at some step.
    fn meets(&self, other: &Block) -> bool {
        if self.end <= other.start || other.end <= self.start {
            return false;
        }
        if self.gap.is_none() && other.gap.is_none() {
            return true;
        }
        self.lives().any(|[a, b]| other.lives().any(|[c, d]| a < d && c < b))
    }
}

/// Where every block lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The offset of each block, in the order given.
    pub offsets: Vec<u64>,
    /// The end of the highest block.
    pub size: Bytes,
    /// The largest sum of live bytes at any step.
    pub bound: Bytes,
}

/// Attempts stop when the arena is at most one part in this many above the bound.
const SLACK: u64 = 250;

/// Orders tried by the hill climbing. One takes about 2 ms on 5,000 blocks.
const ATTEMPTS: usize = 200;

/// Places all blocks.
pub fn place(blocks: &[Block]) -> Placement {
    let bound = bound(blocks);
    let mut search =
        Search { blocks, best: Vec::new(), best_size: u64::MAX, best_order: Vec::new() };
    for order in starting_orders(blocks) {
        search.attempt(order);
        if search.is_close(bound) {
            break;
        }
    }
    search.climb(bound);
    Placement { offsets: search.best, size: Bytes(search.best_size), bound: Bytes(bound) }
}

/// Places blocks of which some have their offsets, and no other may lie in `taken` (offset and
/// end of each range): each as low as it can go, the largest first.
pub(crate) fn place_around(
    blocks: &[Block],
    fixed: &[Option<u64>],
    taken: &[[u64; 2]],
) -> Placement {
    let mut shelf = Shelf::new(blocks);
    for &[offset, end] in taken {
        shelf.put(&Block::new(end - offset, 1, 0, u32::MAX), offset);
    }
    let mut offsets: Vec<u64> = fixed.iter().map(|offset| offset.unwrap_or(0)).collect();
    let mut free: Vec<usize> = (0..blocks.len()).filter(|&i| fixed[i].is_none()).collect();
    free.sort_by_key(|&i| (!is_permanent(&blocks[i]), Reverse(blocks[i].bytes), i));
    for i in free {
        let block = blocks[i];
        if block.start < block.end && block.bytes > 0 {
            offsets[i] = shelf.lowest(&block, 0);
            shelf.put(&block, offsets[i]);
        }
    }
    let ends = offsets.iter().zip(blocks).map(|(offset, block)| offset + block.bytes);
    let size = Bytes(ends.max().unwrap_or(0));
    Placement { offsets, size, bound: Bytes(bound(blocks)) }
}

/// The largest sum of live bytes at any step.
fn bound(blocks: &[Block]) -> u64 {
    let mut changes: Vec<(u32, bool, u64)> = Vec::with_capacity(2 * blocks.len());
    for block in blocks {
        for [start, end] in block.lives() {
            changes.push((start, true, block.bytes));
            changes.push((end, false, block.bytes));
        }
    }
    // At the same step, what ends goes before what starts (`false < true`).
    changes.sort_unstable();
    let (mut now, mut highest) = (0, 0);
    for (_, starts, bytes) in changes {
        now = if starts { now + bytes } else { now - bytes };
        highest = highest.max(now);
    }
    highest
}

/// The orders that hill climbing starts from. Ties go to the larger block, then to the index.
///
/// By size; by life; by the product of both; by start; and, for long lives that nest like those of
/// a training step's activations and gradients, the long ones by start and then the rest by size.
fn starting_orders(blocks: &[Block]) -> impl Iterator<Item = Vec<usize>> {
    let end = blocks.iter().map(|b| b.start).max().unwrap_or(0) + 1;
    let life = move |b: &Block| u64::from(b.end.min(end) - b.start);
    let by_start_if_longer_than =
        move |share: u64, b: &Block| match life(b) * share > u64::from(end) {
            true => (1 << 64) + u128::from(u32::MAX - b.start),
            false => u128::from(b.bytes),
        };
    let keys: [&dyn Fn(&Block) -> u128; 7] = [
        &|b| u128::from(b.bytes),
        &|b| u128::from(life(b)),
        &|b| u128::from(life(b)) * u128::from(b.bytes),
        &|b| u128::from(u32::MAX - b.start),
        &|b| by_start_if_longer_than(4, b),
        &|b| by_start_if_longer_than(16, b),
        &|b| by_start_if_longer_than(64, b),
    ];
    let order = |key: &dyn Fn(&Block) -> u128| {
        let mut order: Vec<usize> = (0..blocks.len()).collect();
        // What lives through the whole step lies at the bottom in any case.
        order.sort_by_key(|&i| {
            let block = &blocks[i];
            (!is_permanent(block), Reverse(key(block)), Reverse(block.bytes), i)
        });
        order
    };
    keys.map(order).into_iter()
}

fn is_permanent(block: &Block) -> bool {
    block.start == 0 && block.end == u32::MAX && block.gap.is_none()
}

struct Search<'b> {
    blocks: &'b [Block],
    best: Vec<u64>,
    best_size: u64,
    best_order: Vec<usize>,
}

impl Search<'_> {
    fn is_close(&self, bound: u64) -> bool {
        self.best_size - bound <= bound / SLACK
    }

    /// Places the blocks in `order`; keeps the result unless it is larger than the best.
    fn attempt(&mut self, order: Vec<usize>) {
        if let Some((offsets, size)) = first_fit(self.blocks, &order, self.best_size) {
            self.best = offsets;
            self.best_size = size;
            self.best_order = order;
        }
    }

    /// Moves a block that ends at the top of the arena before one that it lies above, or that one
    /// behind it. A move stays unless the arena grows, so that plateaus can be crossed.
    fn climb(&mut self, bound: u64) {
        let mut random = Random(1);
        for _ in 0..ATTEMPTS {
            if self.is_close(bound) {
                return;
            }
            let top = self.top();
            let below = self.below(self.best_order[top], top);
            if below.is_empty() {
                return;
            }
            let other = below[random.below(below.len())];
            let mut order = self.best_order.clone();
            if random.below(2) == 0 {
                order[other..=top].rotate_right(1);
            } else {
                order[other..=top].rotate_left(1);
            }
            self.attempt(order);
        }
    }

    /// Where the first block that ends at the top of the arena stands in the order.
    fn top(&self) -> usize {
        let end = |i: usize| self.best[i] + self.blocks[i].bytes;
        let found = self.best_order.iter().position(|&i| end(i) == self.best_size);
        found.expect("some block ends at the top of the arena")
    }

    /// Where the blocks stand that come before `position` and are live together with `block`.
    fn below(&self, block: usize, position: usize) -> Vec<usize> {
        let block = self.blocks[block];
        let before = self.best_order[..position].iter().enumerate();
        before
            .filter(|&(_, &i)| block.meets(&self.blocks[i]) && !is_permanent(&self.blocks[i]))
            .map(|(at, _)| at)
            .collect()
    }
}

/// A linear congruential generator (Knuth's constants); its high bits are random enough here.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

/// Places in `order`, each block as low as it can go; `None` as soon as one ends above `limit`.
fn first_fit(blocks: &[Block], order: &[usize], limit: u64) -> Option<(Vec<u64>, u64)> {
    let mut offsets = vec![0; blocks.len()];
    // What lives through the whole step comes first, and is a floor that no other block looks
    // under.
    let permanent = order.iter().take_while(|&&i| is_permanent(&blocks[i]));
    let permanent = permanent.count();
    let mut floor: u64 = 0;
    for &i in &order[..permanent] {
        offsets[i] = floor.next_multiple_of(blocks[i].align);
        floor = offsets[i] + blocks[i].bytes;
    }
    if floor > limit {
        return None;
    }
    let mut size = floor;
    let mut shelf = Shelf::new(blocks);
    for &i in &order[permanent..] {
        let block = blocks[i];
        if block.start >= block.end || block.bytes == 0 {
            continue;
        }
        let offset = shelf.lowest(&block, floor);
        let end = offset + block.bytes;
        if end > limit {
            return None;
        }
        offsets[i] = offset;
        size = size.max(end);
        shelf.put(&block, offset);
    }
    Some((offsets, size))
}

/// One life of a block that has its place.
#[derive(Clone, Copy)]
struct Placed {
    offset: u64,
    end: u64,
    from: u32,
    until: u32,
}

impl Placed {
    fn meets(&self, [start, end]: [u32; 2]) -> bool {
        self.from < end && start < self.until
    }
}

/// Blocks that have their places, ascending by offset.
struct Shelf {
    all: Vec<Placed>,
    /// The blocks that are live in each window of [`WINDOW`] steps. Most blocks live for a few
    /// steps, in one window, and have to look at no other.
    windows: Vec<Vec<Placed>>,
}

/// Steps in a window: some hundred blocks are live in one, of thousands in all.
const WINDOW: u32 = 64;

impl Shelf {
    fn new(blocks: &[Block]) -> Shelf {
        let last = blocks.iter().map(|b| b.start).max().unwrap_or(0);
        Shelf {
            all: Vec::with_capacity(blocks.len()),
            windows: vec![Vec::new(); (last / WINDOW + 1) as usize],
        }
    }

    /// The windows in which `block` is live.
    fn windows(&self, block: &Block) -> std::ops::RangeInclusive<usize> {
        let end = self.windows.len() - 1;
        let window = |step: u32| ((step / WINDOW) as usize).min(end);
        window(block.start)..=window(block.end - 1)
    }

    /// The lowest offset, at least `floor`, at which `block` meets nothing.
    fn lowest(&self, block: &Block, floor: u64) -> u64 {
        let windows = self.windows(block);
        let placed = match windows.start() == windows.end() {
            true => &self.windows[*windows.start()],
            false => &self.all,
        };
        let mut offset = floor.next_multiple_of(block.align);
        let whole = [block.start, block.end];
        for other in placed {
            if !other.meets(whole) {
                continue;
            }
            if block.gap.is_some() && !block.lives().any(|life| other.meets(life)) {
                continue;
            }
            if other.offset >= offset + block.bytes {
                break;
            }
            offset = offset.max(other.end.next_multiple_of(block.align));
        }
        offset
    }

    fn put(&mut self, block: &Block, offset: u64) {
        for [from, until] in block.lives() {
            let placed = Placed { offset, end: offset + block.bytes, from, until };
            let windows = self.windows(&Block { start: from, end: until, gap: None, ..*block });
            let lists = self.windows[windows].iter_mut();
            for list in lists.chain([&mut self.all]) {
                let at = list.partition_point(|p| p.offset <= offset);
                list.insert(at, placed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(bytes: u64, start: u32, end: u32) -> Block {
        Block::new(bytes, 64, start, end)
    }

    /// No two blocks that are live together overlap, and the size is the highest end.
    #[track_caller]
    fn check(blocks: &[Block], placement: &Placement) {
        for (i, a) in blocks.iter().enumerate() {
            let a_range = placement.offsets[i]..placement.offsets[i] + a.bytes;
            assert!(a_range.end <= placement.size.get());
            assert_eq!(a_range.start % a.align, 0);
            for (j, b) in blocks.iter().enumerate().skip(i + 1) {
                let b_range = placement.offsets[j]..placement.offsets[j] + b.bytes;
                let live = |b: &Block, step| b.lives().any(|[from, to]| from <= step && step < to);
                let together = (0..200).any(|step| live(a, step) && live(b, step));
                let overlap = a_range.start < b_range.end && b_range.start < a_range.end;
                assert!(!(together && overlap), "blocks {i} and {j} overlap");
            }
        }
        let ends = blocks.iter().zip(&placement.offsets).map(|(b, o)| b.bytes + o);
        assert_eq!(ends.max().unwrap_or(0), placement.size.get());
    }

    #[test]
    fn nested_lives_stack_without_waste() {
        let blocks: Vec<Block> =
            (0..50).map(|i| block(64 * (i + 1), i as u32, 100 - i as u32)).collect();
        let placement = place(&blocks);
        check(&blocks, &placement);
        assert_eq!(placement.size, placement.bound);
    }

    #[test]
    fn space_is_reused_after_the_end() {
        let blocks = [block(64, 0, 1), block(64, 1, 2), block(64, 2, 3)];
        let placement = place(&blocks);
        check(&blocks, &placement);
        assert_eq!(placement.size, Bytes(64));
    }

    #[test]
    fn a_gap_is_room_for_others_and_alignment_is_kept() {
        let mut home = block(128, 0, u32::MAX);
        home.gap = Some([2, 5]);
        let placement = place(&[home, block(128, 2, 5), block(64, 0, 3)]);
        assert_eq!(placement.size, Bytes(192));
        let mut generator = Random(3);
        let mut random = |below: usize| generator.below(below) as u64;
        for _ in 0..200 {
            let blocks: Vec<Block> = (0..8)
                .map(|_| {
                    let start = random(8) as u32;
                    let end = start + 3 + random(9) as u32;
                    let gap = (random(2) == 0).then_some([start + 1, end - 1]);
                    let align = [64, 256][random(2) as usize];
                    Block { gap, align, ..block(64 * (1 + random(9)), start, end) }
                })
                .collect();
            check(&blocks, &place(&blocks));
        }
    }

    #[test]
    fn nothing_needs_nothing() {
        assert_eq!(place(&[]).size, Bytes(0));
        assert_eq!(place(&[block(0, 0, 5)]).size, Bytes(0));
    }

    /// The smallest arena over all orders of first fit, by trying every permutation.
    fn brute_force(blocks: &[Block]) -> u64 {
        fn go(blocks: &[Block], order: &mut Vec<usize>, best: &mut u64) {
            if order.len() == blocks.len() {
                if let Some((_, size)) = first_fit(blocks, order, u64::MAX) {
                    *best = size.min(*best);
                }
                return;
            }
            for i in 0..blocks.len() {
                if !order.contains(&i) {
                    order.push(i);
                    go(blocks, order, best);
                    order.pop();
                }
            }
        }
        let mut best = u64::MAX;
        go(blocks, &mut Vec::new(), &mut best);
        best
    }

    #[test]
    fn random_blocks_are_placed_validly_and_close_to_the_best_order() {
        let mut generator = Random(1);
        let mut random = |below: usize| generator.below(below) as u64;
        for case in 0..200 {
            let blocks: Vec<Block> = (0..6)
                .map(|_| {
                    let start = random(8) as u32;
                    block(64 * (1 + random(9)), start, start + 1 + random(5) as u32)
                })
                .collect();
            let placement = place(&blocks);
            check(&blocks, &placement);
            assert!(placement.size >= placement.bound);
            // Hill climbing is no proof of the best, so one block's worth of slack is allowed.
            assert!(placement.size.get() <= brute_force(&blocks) + 9 * 64, "case {case}");
        }
    }
}
