//! Memory that a transaction has allocated, volatile or durable. No other thread can reach it.
//!
//! Stores to it happen at once. This is faster. It is also necessary: libstdc++ fills its
//! exceptions partly by instrumented calls and partly by stores of its own, which must stay in
//! order. Stores to durable memory then need no log, and are written back before the commit.

use std::cell::Cell;
use std::collections::BTreeMap;

/// Blocks that a transaction has allocated.
#[derive(Default)]
pub(crate) struct Fresh {
    /// By first address: the length, and the number of blocks added before.
    blocks: BTreeMap<u64, (u64, u64)>,
    /// The number of blocks that were added.
    count: u64,
    /// The range that contains all blocks: its first address, and its length.
    start: u64,
    len: u64,
    /// The block found last: its first address and its length. (0, 0) if there is none.
    last: Cell<(u64, u64)>,
}

impl Fresh {
    pub(crate) fn add(&mut self, block: u64, len: u64) {
        let end = block + len;
        if self.blocks.is_empty() {
            (self.start, self.len) = (block, len);
        } else {
            let last = end.max(self.start + self.len);
            self.start = self.start.min(block);
            self.len = last - self.start;
        }
        self.blocks.insert(block, (len, self.count));
        self.count += 1;
        self.last.set((block, len));
    }

    /// The number of blocks added so far, for [`return_to`](Self::return_to).
    pub(crate) fn mark(&self) -> u64 {
        self.count
    }

    /// Removes the blocks added since `mark`.
    pub(crate) fn return_to(&mut self, mark: u64) {
        self.blocks.retain(|_, (_, count)| *count < mark);
        self.last.set((0, 0));
    }

    /// Removes a block. Returns its length, or `None` if there is no such block.
    pub(crate) fn remove(&mut self, block: u64) -> Option<u64> {
        self.last.set((0, 0));
        self.blocks.remove(&block).map(|(len, _)| len)
    }

    pub(crate) fn clear(&mut self) {
        if !self.blocks.is_empty() {
            self.blocks.clear();
        }
        self.len = 0;
        self.last.set((0, 0));
    }

    /// Whether the `len` bytes at `at` are in one of the blocks.
    #[inline(always)]
    pub(crate) fn has(&self, at: u64, len: usize) -> bool {
        at.wrapping_sub(self.start) < self.len && self.is_in_a_block(at, len as u64)
    }

    #[inline]
    fn is_in_a_block(&self, at: u64, len: u64) -> bool {
        let (block, block_len) = self.last.get();
        if at.wrapping_sub(block) < block_len {
            return at - block + len <= block_len;
        }
        let Some((block, (block_len, _))) = self.blocks.range(..=at).next_back() else {
            return false;
        };
        if at - block >= *block_len {
            return false;
        }
        self.last.set((*block, *block_len));
        at - block + len <= *block_len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_blocks_are_not_found() {
        let mut fresh = Fresh::default();
        assert!(!fresh.has(0, 1) && !fresh.has(100, 1));
        fresh.add(100, 10);
        fresh.add(50, 1);
        fresh.add(200, 20);
        let has = |fresh: &Fresh| (0..300).filter(|at| fresh.has(*at, 1)).count();
        assert_eq!(has(&fresh), 31);
        assert!(fresh.has(105, 5) && !fresh.has(105, 6) && !fresh.has(199, 2));
        let mark = fresh.mark();
        fresh.add(220, 30);
        assert_eq!(has(&fresh), 61);
        fresh.return_to(mark);
        assert_eq!(has(&fresh), 31);
        assert_eq!((fresh.remove(100), fresh.remove(100)), (Some(10), None));
        assert_eq!(has(&fresh), 21);
        fresh.clear();
        assert_eq!(has(&fresh), 0);
        fresh.add(250, 5);
        assert_eq!(has(&fresh), 5);
    }
}
