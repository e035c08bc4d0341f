//! Trees of blocks: B6 to B8.

use super::{Checker, Ground};
use crate::format::{BLOCK, BlockNo, FANOUT, HeightAddr, MAX_HEIGHT, span};
use medium::Pmem;
use std::fmt::{self, Display};
use vfs::{Ino, SIZE_MAX};

/// Height, root and size, as stored.
#[derive(Clone, Copy)]
pub(crate) struct Tree {
    pub ha: HeightAddr,
    pub size: u64,
}

impl Tree {
    pub(crate) const EMPTY: Tree = Tree {
        ha: HeightAddr(0),
        size: 0,
    };

    /// Leaves that hold valid bytes.
    pub(crate) fn leaves(&self) -> u64 {
        self.size.div_ceil(BLOCK)
    }
}

/// The owner of a block, for findings.
#[derive(Clone, Copy)]
pub(super) enum Owner {
    Super,
    InodeFile,
    Inode(Ino),
}

impl Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Super => f.write_str("super block"),
            Owner::InodeFile => f.write_str("inode file"),
            Owner::Inode(ino) => write!(f, "inode {ino}"),
        }
    }
}

impl<P: Pmem + ?Sized> Ground<'_, P> {
    /// The block of a leaf, if there is one and the path to it is sound.
    pub(crate) fn leaf(&self, tree: Tree, leaf: u64) -> Option<BlockNo> {
        let mut height = tree.ha.height();
        if leaf >= tree.leaves() || height > MAX_HEIGHT || leaf >= span(height) {
            return None;
        }
        let mut block = tree.ha.block();
        while height > 0 && self.has_block(block) {
            height -= 1;
            let slot = leaf / span(height) % FANOUT;
            block = BlockNo(self.image.word(block.addr() + slot * 8).ok()?);
        }
        self.has_block(block).then_some(block)
    }
}

/// Called with the number and the block of each leaf.
pub(super) type Leaf<'l, C> = &'l mut dyn FnMut(&mut C, u64, BlockNo);

/// The owner of the tree that is walked, and where the tree ends.
#[derive(Clone, Copy)]
struct Walk {
    owner: Owner,
    /// Leaves that hold valid bytes.
    end: u64,
}

impl<P: Pmem + ?Sized> Checker<'_, P> {
    /// Marks a block that a pointer names as used. Returns false, with a finding, if it is
    /// outside the file system or used already.
    pub(super) fn take(&mut self, owner: Owner, block: BlockNo) -> bool {
        if !self.ground.has_block(block) {
            self.bad("B7", format_args!("{owner}: points to block {}", block.0));
            return false;
        }
        if !self.used.add(block.0) {
            self.bad(
                "B8",
                format_args!("{owner}: block {} is used twice", block.0),
            );
            return false;
        }
        true
    }

    /// Checks a tree, calling `leaf` for each leaf in order. Returns how many of its leaves are
    /// holes; `None` if its size or height is impossible.
    pub(super) fn tree(&mut self, owner: Owner, tree: Tree, leaf: Leaf<'_, Self>) -> Option<u64> {
        if tree.size == 0 {
            return Some(0); // height and root are ignored as a whole
        }
        if tree.size > SIZE_MAX {
            self.bad("B6", format_args!("{owner}: size {}", tree.size));
            return None;
        }
        let (height, root) = (tree.ha.height(), tree.ha.block());
        if height > MAX_HEIGHT {
            self.bad("B6", format_args!("{owner}: tree of height {height}"));
            return None;
        }
        let end = tree.leaves();
        if root.is_null() {
            return Some(end);
        }
        let walk = Walk { owner, end };
        let beyond = end.saturating_sub(span(height));
        Some(beyond + self.node(walk, root, height, 0, leaf))
    }

    fn node(
        &mut self,
        walk: Walk,
        block: BlockNo,
        height: u32,
        base: u64,
        leaf: Leaf<'_, Self>,
    ) -> u64 {
        if !self.take(walk.owner, block) {
            return 0;
        }
        if height == 0 {
            leaf(self, base, block);
            return 0;
        }
        let step = span(height - 1);
        let valid = FANOUT.min((walk.end - base).div_ceil(step)) as usize;
        let mut bytes = [0; BLOCK as usize];
        let bytes = &mut bytes[..valid * 8];
        if !self.read(block.addr(), bytes, walk.owner) {
            return 0;
        }
        let mut holes = 0;
        for (slot, word) in bytes.chunks_exact(8).enumerate() {
            let first = base + slot as u64 * step;
            let child = BlockNo(word.iter().rfold(0, |n, b| n << 8 | u64::from(*b)));
            holes += if child.is_null() {
                step.min(walk.end - first)
            } else {
                self.node(walk, child, height - 1, first, leaf)
            };
        }
        holes
    }
}
