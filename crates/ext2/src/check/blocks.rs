//! Trees of block pointers, and the owners of blocks.

use super::Checker;
use crate::format::{DIRECT, INDIRECT, Inode};
use medium::block::BlockDevice;

/// The blocks of one inode.
pub(super) struct Walk {
    pub ino: u32,
    /// Blocks with pointers, indirect ones included.
    pub count: u64,
    /// Highest index with a block of data.
    pub last: Option<u64>,
    /// The blocks of a directory in order. `None` for other inodes.
    pub directory: Option<Vec<u32>>,
    /// The first index without a block that is followed by one with a block.
    pub hole: Option<u64>,
    next: u64,
}

impl Walk {
    pub(super) fn new(ino: u32, directory: bool) -> Self {
        Self {
            ino,
            count: 0,
            last: None,
            directory: directory.then(Vec::new),
            hole: None,
            next: 0,
        }
    }
}

impl<D: BlockDevice + ?Sized> Checker<'_, D> {
    /// Takes a block for an inode. Reports a finding and returns false if the inode cannot own it.
    pub(super) fn claim(&mut self, ino: u32, block: u32) -> bool {
        if block < self.ground.first || block >= self.ground.blocks {
            self.corrupt("E6", format_args!("inode {ino}: there is no block {block}"));
            return false;
        }
        if self.owned.add(u64::from(block - self.ground.first)) {
            return true;
        }
        if self.ground.is_metadata(block) {
            let what = format_args!("inode {ino}: block {block} belongs to the group's tables");
            self.corrupt("E6", what);
        } else {
            let what = format_args!("inode {ino}: block {block} has another owner");
            self.corrupt("E7", what);
        }
        false
    }

    /// Walks all pointers of an inode.
    pub(super) fn walk(&mut self, inode: &Inode, walk: &mut Walk) {
        for pointer in &inode.block[..DIRECT] {
            self.pointer(pointer.get(), 0, walk);
        }
        for (height, slot) in INDIRECT.into_iter().enumerate() {
            self.pointer(inode.block[slot].get(), height as u32 + 1, walk);
        }
    }

    /// Walks a pointer to a tree of this height. Height 0 is a block of data.
    fn pointer(&mut self, block: u32, height: u32, walk: &mut Walk) {
        let fanout = u64::from(self.ground.block / 4);
        let first = walk.next;
        if block == 0 {
            walk.next += fanout.pow(height);
            return;
        }
        walk.count += 1;
        let mine = self.claim(walk.ino, block);
        if height == 0 {
            walk.last = Some(first);
            walk.next += 1;
            if let Some(blocks) = walk.directory.as_mut().filter(|_| mine) {
                if blocks.len() as u64 != first && walk.hole.is_none() {
                    walk.hole = Some(blocks.len() as u64);
                }
                blocks.push(block);
            }
            return;
        }
        let mut buf = vec![0; self.ground.block as usize];
        if mine && self.read_block(block, &mut buf) {
            for word in buf.as_chunks().0 {
                self.pointer(u32::from_le_bytes(*word), height - 1, walk);
            }
        }
        walk.next = first + fanout.pow(height);
    }
}
