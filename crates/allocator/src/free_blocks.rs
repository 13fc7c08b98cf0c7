//! The free blocks of a pool, by size and then by address: best fit, lowest address first.

use std::collections::BTreeSet;

/// Free blocks, each by its size, its address and its number.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeBlocks(BTreeSet<(u64, u64, u32)>);

impl FreeBlocks {
    pub(crate) fn insert(&mut self, size: u64, address: u64, block: u32) {
        self.0.insert((size, address, block));
    }

    pub(crate) fn remove(&mut self, size: u64, address: u64, block: u32) {
        let was_there = self.0.remove(&(size, address, block));
        debug_assert!(was_there, "block {block} is free");
    }

    /// The blocks of at least `size` bytes, the smallest first.
    pub(crate) fn from(&self, size: u64) -> impl Iterator<Item = u32> + '_ {
        self.0.range((size, 0, 0)..).map(|&(_, _, block)| block)
    }
}
