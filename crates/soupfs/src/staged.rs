//! The blocks of a file that differ from its tree on the medium.

use crate::format::{FANOUT, Page};
use std::collections::BTreeMap;

/// A block of a file that differs from the tree on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Staged {
    /// A page that no persistent pointer reaches. `is_taken`: a persister is about to link it.
    Page { page: Page, is_taken: bool },
    /// A hole.
    Hole,
}

impl Staged {
    /// Its page.
    pub(crate) fn page(self) -> Option<Page> {
        match self {
            Self::Page { page, .. } => Some(page),
            Self::Hole => None,
        }
    }

    /// Whether it is a page that no persister has taken.
    fn is_own(self) -> bool {
        matches!(
            self,
            Self::Page {
                is_taken: false,
                ..
            }
        )
    }
}

/// The staged blocks of a file, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct StagedBlocks {
    blocks: BTreeMap<u64, Staged>,
    /// Pages that no persister has taken.
    own_pages: u64,
    /// Nodes of the lowest level of the tree that have these blocks.
    leaves: u64,
}

impl StagedBlocks {
    pub(crate) const fn new() -> Self {
        Self {
            blocks: BTreeMap::new(),
            own_pages: 0,
            leaves: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Pages that no persister has taken.
    pub(crate) fn own_pages(&self) -> u64 {
        self.own_pages
    }

    pub(crate) fn get(&self, block: u64) -> Option<Staged> {
        self.blocks.get(&block).copied()
    }

    /// Whether the block has a page that no persister has taken.
    pub(crate) fn is_own(&self, block: u64) -> bool {
        self.get(block).is_some_and(Staged::is_own)
    }

    /// Nodes of the lowest level of the tree that have these blocks and `block`.
    pub(crate) fn leaves_with(&self, block: u64) -> u64 {
        self.leaves + u64::from(self.has_none_beside(block))
    }

    /// The last block.
    pub(crate) fn last(&self) -> Option<u64> {
        self.blocks.last_key_value().map(|(block, _)| *block)
    }

    /// Whether the node of a block has no staged blocks.
    fn has_none_beside(&self, block: u64) -> bool {
        let first = block - block % FANOUT;
        self.blocks.range(first..first + FANOUT).next().is_none()
    }

    /// Stages a block. Returns what was staged for it.
    pub(crate) fn insert(&mut self, block: u64, staged: Staged) -> Option<Staged> {
        self.leaves = self.leaves_with(block);
        let old = self.blocks.insert(block, staged);
        self.own_pages += u64::from(staged.is_own());
        self.own_pages -= u64::from(old.is_some_and(Staged::is_own));
        old
    }

    /// Forgets what is staged for a block, and returns it.
    pub(crate) fn remove(&mut self, block: u64) -> Option<Staged> {
        let old = self.blocks.remove(&block);
        self.own_pages -= u64::from(old.is_some_and(Staged::is_own));
        self.leaves -= u64::from(old.is_some() && self.has_none_beside(block));
        old
    }

    /// Forgets all blocks from `block` on, and returns them.
    pub(crate) fn split_off(&mut self, block: u64) -> impl Iterator<Item = Staged> + use<> {
        let cut = self.blocks.split_off(&block);
        let own = cut.values().filter(|staged| staged.is_own()).count();
        self.own_pages -= own as u64;
        let mut leaves: Vec<u64> = cut.keys().map(|block| block / FANOUT).collect();
        leaves.dedup();
        let whole = leaves.into_iter();
        let whole = whole.filter(|leaf| self.has_none_beside(leaf * FANOUT));
        self.leaves -= whole.count() as u64;
        cut.into_values()
    }

    /// The staged blocks from `first` on.
    pub(crate) fn from(&self, first: u64) -> impl Iterator<Item = (u64, Staged)> {
        let blocks = self.blocks.range(first..);
        blocks.map(|(block, staged)| (*block, *staged))
    }

    /// Marks all pages as taken by a persister.
    pub(crate) fn take(&mut self) {
        for staged in self.blocks.values_mut() {
            if let Staged::Page { is_taken, .. } = staged {
                *is_taken = true;
            }
        }
        self.own_pages = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_counts_are_those_of_the_blocks() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut staged = StagedBlocks::default();
        for step in 1..20_000 {
            let block = random.u64(..64) * 100;
            match random.u32(..100) {
                0 => drop(staged.split_off(block)),
                1 => staged.take(),
                2..30 => drop(staged.remove(block)),
                30..50 => drop(staged.insert(block, Staged::Hole)),
                _ => {
                    let (page, is_taken) = (Page(step), false);
                    staged.insert(block, Staged::Page { page, is_taken });
                }
            }
            let own = staged.from(0).filter(|(_, staged)| staged.is_own());
            assert_eq!(staged.own_pages(), own.count() as u64);
            let blocks = staged.from(0).map(|(block, _)| block / FANOUT);
            let leaves: BTreeSet<u64> = blocks.collect();
            assert_eq!(staged.leaves, leaves.len() as u64);
        }
    }
}
