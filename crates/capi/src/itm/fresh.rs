//! Memory that a transaction has allocated, which nobody else knows of.
//!
//! It is stored to at once. Not only because that is faster: libstdc++ makes its exceptions
//! partly by calls and partly by stores of its own, and expects to see them in their order.

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
    }

    /// How many there have been, to come back to.
    pub fn mark(&self) -> u64 {
        self.count
    }

    /// Takes out those that came since then.
    pub fn return_to(&mut self, mark: u64) {
        self.blocks.retain(|_, (_, count)| *count < mark);
    }

    /// Takes a block out. Its length; `None`: it is none.
    pub fn remove(&mut self, block: u64) -> Option<u64> {
        self.blocks.remove(&block).map(|(len, _)| len)
    }

    pub fn clear(&mut self) {
        if !self.blocks.is_empty() {
            self.blocks.clear();
        }
        self.len = 0;
    }

    /// Whether the byte at `at` is in one of the blocks.
    #[inline(always)]
    pub fn has(&self, at: u64) -> bool {
        at.wrapping_sub(self.start) < self.len && self.finds(at)
    }

    fn finds(&self, at: u64) -> bool {
        let before = self.blocks.range(..=at).next_back();
        before.is_some_and(|(block, (len, _))| at - block < *len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_and_go() {
        let mut fresh = Fresh::default();
        assert!(!fresh.has(0) && !fresh.has(100));
        fresh.add(100, 10);
        fresh.add(50, 1);
        fresh.add(200, 20);
        let has = |fresh: &Fresh| (0..300).filter(|at| fresh.has(*at)).count();
        assert_eq!(has(&fresh), 31);
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
