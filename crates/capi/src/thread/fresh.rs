//! Memory that a transaction has allocated, which nobody else knows of: volatile, or durable.
//!
//! It is stored to at once. Not only because that is faster: libstdc++ makes its exceptions
//! partly by calls and partly by stores of its own, and expects to see them in their order. What
//! is stored to durable memory needs no log then, and is written back before the commit.

use std::cell::Cell;
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Fresh {
    /// Lengths, and how many came before, by first address.
    blocks: BTreeMap<u64, (u64, u64)>,
    /// How many there were in all.
    count: u64,
    /// All blocks are in here: where that begins, and its length.
    start: u64,
    len: u64,
    /// The block that was found last, if it is there: its first address and its length.
    last: Cell<(u64, u64)>,
}

impl Fresh {
    pub fn add(&mut self, block: u64, len: u64) {
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

    /// How many there have been, to come back to.
    pub fn mark(&self) -> u64 {
        self.count
    }

    /// Takes out those that came since then.
    pub fn return_to(&mut self, mark: u64) {
        self.blocks.retain(|_, (_, count)| *count < mark);
        self.last.set((0, 0));
    }

    /// Takes a block out. Its length; `None`: it is none.
    pub fn remove(&mut self, block: u64) -> Option<u64> {
        self.last.set((0, 0));
        self.blocks.remove(&block).map(|(len, _)| len)
    }

    pub fn clear(&mut self) {
        if !self.blocks.is_empty() {
            self.blocks.clear();
        }
        self.len = 0;
        self.last.set((0, 0));
    }

    /// Whether the `len` bytes at `at` are in one of the blocks.
    #[inline(always)]
    pub fn has(&self, at: u64, len: usize) -> bool {
        at.wrapping_sub(self.start) < self.len && self.finds(at, len as u64)
    }

    #[inline]
    fn finds(&self, at: u64, len: u64) -> bool {
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
    fn blocks_come_and_go() {
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
