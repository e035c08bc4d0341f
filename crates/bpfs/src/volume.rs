//! Reads of the medium as blocks, trees and inodes, and the volatile map of blocks in use.

use crate::alloc::Bitmap;
use crate::error::{Fault, Res};
use crate::format::{
    BLOCK, BlockNo, FANOUT, HeightAddr, INODE, Inode, MAX_HEIGHT, at, height_for, span,
};
use crate::log::RedoLog;
use crate::mode::Rules;
use medium::Pmem;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use vfs::{Errno, Ino};
use zerocopy::FromBytes;

/// A tree: its height and root, and the number of its valid bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tree {
    pub ha: HeightAddr,
    pub size: u64,
}

impl Tree {
    /// The whole tree as a subtree to drop, if it has any block.
    pub(crate) fn whole(&self) -> Option<Dropped> {
        let has_blocks = self.size > 0 && !self.ha.block().is_null();
        has_blocks.then(|| Dropped {
            block: self.ha.block(),
            height: self.ha.height(),
            leaves: self.valid_leaves(),
        })
    }

    /// Leaves that hold valid bytes.
    pub(crate) fn valid_leaves(&self) -> u64 {
        self.size.div_ceil(BLOCK)
    }
}

/// A subtree to which no pointer leads any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dropped {
    pub block: BlockNo,
    /// Height of the subtree; 0: the block alone.
    pub height: u32,
    /// Valid leaves, from its first on.
    pub leaves: u64,
}

/// Blocks that a file system of `blocks` blocks keeps back for changes that give up space.
/// Where times are part of the atomic step, the removal of a name copies blocks, and so does a
/// cut of a file. With no block left a full file system could never be emptied.
///
/// One such change runs at a time, since these modes change nothing without the exclusive tree
/// lock. It frees at least as many blocks as it took. Directories and the inode file have no
/// holes, so that `low` bounds their heights. The most blocks are copied by
///
/// - a hole in a sparse file: two paths from its root, the path to its inode, the root record:
///   `(2 * MAX_HEIGHT + 1) + (low + 1) + 1`;
/// - the removal of a name: a path in the directory, the paths to two inodes, the root record:
///   `(low + 1) + (2 * low + 1) + 1`, which is less.
///
/// On the smallest image these are 16 of 256 blocks.
pub(crate) fn reserve(blocks: u64, rules: Rules) -> u64 {
    if rules.times {
        return 0;
    }
    let low = height_for(blocks);
    u64::from(2 * MAX_HEIGHT + low + 3)
}

/// The fault of an impossible value. Cold, so that the reads are inlined: every call walks at
/// least two trees.
#[cold]
fn corrupt(what: std::fmt::Arguments<'_>) -> Fault {
    Fault::Corrupt(what.to_string())
}

/// The stored file system and the map of its blocks.
pub(crate) struct Volume<P> {
    pub pm: P,
    /// Blocks in all.
    pub blocks: u64,
    pub rules: Rules,
    pub map: Bitmap,
    /// Blocks that only a change that gives up space may take ([`reserve`]).
    pub reserve: u64,
    pub log: RedoLog,
    /// A commit could not be made durable: no more changes are accepted.
    pub failed: AtomicBool,
}

impl<P: Pmem> Volume<P> {
    /// Blocks that any change may take.
    pub(crate) fn available(&self) -> u64 {
        self.map.free().saturating_sub(self.reserve)
    }

    /// Checks a pointer that was read: null, or inside the file system and after the super
    /// blocks.
    #[inline]
    pub(crate) fn pointer(&self, raw: u64) -> Res<BlockNo> {
        if raw == 0 || (2..self.blocks).contains(&raw) {
            Ok(BlockNo(raw))
        } else {
            Err(corrupt(format_args!(
                "block pointer {raw} is outside the file system"
            )))
        }
    }

    /// Reads slot `slot` of an indirect block.
    #[inline]
    pub(crate) fn slot(&self, block: BlockNo, slot: u64) -> Res<BlockNo> {
        self.pointer(self.pm.load(block.addr() + slot * 8)?)
    }

    /// The address of the word that holds `at`, and its value with `bytes` over it. The bytes lie
    /// inside that word.
    pub(crate) fn merged(&self, at: u64, bytes: &[u8]) -> Res<(u64, u64)> {
        let (addr, skip) = (at / 8 * 8, (at % 8) as usize);
        let mut word = self.pm.load(addr)?.to_le_bytes();
        word[skip..skip + bytes.len()].copy_from_slice(bytes);
        Ok((addr, u64::from_le_bytes(word)))
    }

    /// Byte offset of the root record.
    #[inline]
    pub(crate) fn root_record(&self) -> Res<u64> {
        let root = self.pointer(self.pm.load(at::SUPER_ROOT)?)?;
        if root.is_null() {
            return Err(corrupt(format_args!("the super block has no root record")));
        }
        Ok(root.addr())
    }

    /// The tree that is stored at `addr` (a height-and-root word, then the size at
    /// `size_at`).
    #[inline]
    fn tree_at(&self, ha_at: u64, size_at: u64) -> Res<Tree> {
        let tree = Tree {
            ha: HeightAddr(self.pm.load(ha_at)?),
            size: self.pm.load(size_at)?,
        };
        if tree.size > 0 {
            self.pointer(tree.ha.block().0)?;
            if tree.ha.height() > MAX_HEIGHT {
                return Err(corrupt(format_args!("tree height {}", tree.ha.height())));
            }
        }
        if tree.size > vfs::SIZE_MAX {
            return Err(corrupt(format_args!("file size {}", tree.size)));
        }
        Ok(tree)
    }

    /// The inode file's tree.
    #[inline]
    pub(crate) fn inode_file(&self) -> Res<Tree> {
        let at = self.root_record()?;
        self.tree_at(at, at + at::ROOT_SIZE)
    }

    /// The tree of the inode at `addr`.
    #[inline]
    pub(crate) fn tree(&self, addr: u64) -> Res<Tree> {
        self.tree_at(addr + at::HA, addr + at::SIZE)
    }

    /// Leaf number `leaf` of a tree; null for a hole or after the end.
    #[inline]
    pub(crate) fn leaf(&self, tree: &Tree, leaf: u64) -> Res<BlockNo> {
        let mut height = tree.ha.height();
        if leaf >= tree.valid_leaves() || leaf >= span(height) {
            return Ok(BlockNo::NULL);
        }
        let mut block = tree.ha.block();
        while height > 0 && !block.is_null() {
            height -= 1;
            block = self.slot(block, leaf / span(height) % FANOUT)?;
        }
        Ok(block)
    }

    /// Byte offset of the slot that points to leaf number `leaf`, which is not null.
    /// `None`: the leaf is the root.
    pub(crate) fn slot_of(&self, tree: &Tree, leaf: u64) -> Res<Option<u64>> {
        let (mut height, mut block) = (tree.ha.height(), tree.ha.block());
        while height > 1 {
            height -= 1;
            block = self.slot(block, leaf / span(height) % FANOUT)?;
        }
        Ok((height > 0).then(|| block.addr() + leaf % FANOUT * 8))
    }

    /// Byte offset of an inode on the medium.
    #[inline]
    pub(crate) fn inode_addr(&self, ino: Ino) -> Res<u64> {
        let byte = (ino.0.wrapping_sub(1))
            .checked_mul(INODE)
            .ok_or(Errno::STALE)?;
        let file = self.inode_file()?;
        if byte >= file.size {
            return Err(Errno::STALE.into());
        }
        let leaf = self.leaf(&file, byte / BLOCK)?;
        if leaf.is_null() {
            return Err(corrupt(format_args!(
                "inode {ino} lies in a hole of the inode file"
            )));
        }
        Ok(leaf.addr() + byte % BLOCK)
    }

    /// Reads a whole inode.
    #[inline]
    pub(crate) fn inode(&self, addr: u64) -> Res<Inode> {
        let mut bytes = [0; INODE as usize];
        self.pm.read(addr, &mut bytes)?;
        Inode::read_from_bytes(&bytes).map_err(|_| Errno::IO.into())
    }

    /// Calls `each` for every block of a tree that is in use, inner blocks before their
    /// children. `each` returns false to skip the children.
    pub(crate) fn walk(
        &self,
        tree: &Tree,
        each: &mut dyn FnMut(BlockNo, u32) -> Res<bool>,
    ) -> Res<()> {
        if tree.size == 0 || tree.ha.block().is_null() {
            return Ok(());
        }
        self.walk_node(
            tree.ha.block(),
            tree.ha.height(),
            0,
            tree.valid_leaves(),
            each,
        )
    }

    /// Walks the node of `height` whose first leaf is `base`, as [`walk`](Self::walk) does.
    /// Leaves from `end` on are ignored.
    fn walk_node(
        &self,
        block: BlockNo,
        height: u32,
        base: u64,
        end: u64,
        each: &mut dyn FnMut(BlockNo, u32) -> Res<bool>,
    ) -> Res<()> {
        if !each(block, height)? || height == 0 {
            return Ok(());
        }
        let step = span(height - 1);
        for slot in 0..FANOUT.min(end.saturating_sub(base).div_ceil(step)) {
            let child = self.slot(block, slot)?;
            if !child.is_null() {
                self.walk_node(child, height - 1, base + slot * step, end, each)?;
            }
        }
        Ok(())
    }

    /// Frees the blocks of a subtree, and adds their number to `freed`. Memory is one node for
    /// each level. After an error some blocks stay taken until the next mount.
    ///
    /// A node is read before it is freed, since another operation may take a free block at
    /// once.
    pub(crate) fn release(&self, dropped: Dropped, freed: &mut u64) -> Res<()> {
        let Dropped {
            block,
            height,
            leaves,
        } = dropped;
        let mut bytes = [0; BLOCK as usize];
        let step = if height == 0 { 1 } else { span(height - 1) };
        let slots = match height {
            0 => 0,
            _ => FANOUT.min(leaves.div_ceil(step)),
        };
        let bytes = &mut bytes[..slots as usize * 8];
        self.pm.read(block.addr(), bytes)?;
        self.map.release(block.0);
        *freed += 1;
        for (slot, word) in bytes.chunks_exact(8).enumerate() {
            let child = self.pointer(word.try_into().map_or(0, u64::from_le_bytes))?;
            if !child.is_null() {
                let below = Dropped {
                    block: child,
                    height: height - 1,
                    leaves: (leaves - slot as u64 * step).min(step),
                };
                self.release(below, freed)?;
            }
        }
        Ok(())
    }

    /// Whether changes are still accepted.
    pub(crate) fn usable(&self) -> Res<()> {
        if self.failed.load(SeqCst) {
            Err(Errno::IO.into())
        } else {
            Ok(())
        }
    }
}
