//! The blocks that steps will read, before a call makes its first change. They are read without the
//! tree's lock.
//!
//! The blocks of an allocation are known only when it is made. Bitmaps are therefore named here
//! until enough rested blocks are free in them, or until a few are named. If the blocks are cached
//! this costs memory accesses only, and outside of [attempts](attempt) nothing.

use crate::alloc::Purpose;
use crate::dir;
use crate::inode::Node;
use crate::needed::{Needed, add};
use crate::volume::Ext2;
use blockfs::{Next, Result};
use medium::block::Lba;
use patch::attempt;
use smallvec::SmallVec;
use std::ops::Range;
use vfs::Ino;

impl Ext2 {
    /// Fails if this step would wait for a device, during an attempt.
    pub(crate) fn ready_for(&self, next: Next<'_>) -> Result<()> {
        if !attempt::is_attempt() {
            return Ok(());
        }
        let mut needed = Needed::new();
        match self.list_needed(next, &mut needed) {
            Err(error) if error.is_absent() => Err(error),
            // The step itself reports other errors.
            _ => Ok(self.store.ready(&needed)?),
        }
    }

    fn list_needed(&self, next: Next<'_>, needed: &mut Needed) -> Result<()> {
        match next {
            Next::AddName { dir, name } => self.for_name(dir, name, needed),
            Next::Write { ino, from, blocks } => self.for_blocks(ino, from, blocks, needed),
            Next::Cut {
                ino,
                from,
                to,
                budget,
            } => self.for_cut(ino, from..to, budget, needed),
            Next::Free { ino, budget } => {
                self.for_end(ino, needed)?;
                self.for_cut(ino, 0..u64::MAX, budget, needed)
            }
            Next::MoveUp { dir } => self.above(dir).map(drop),
        }
    }

    /// Adds what filling `blocks` blocks from `from` on reads, indirect ones included.
    fn for_blocks(&self, ino: Ino, from: u64, blocks: u64, needed: &mut Needed) -> Result<()> {
        if blocks == 0 {
            return Ok(());
        }
        let node = self.load_ino(ino)?;
        let goal = self.goal(node.ino, from, Purpose::Data)?;
        let first = self.layout.group_of(goal.min(self.layout.blocks - 1));
        let own = self.layout.group_of_inode(node.ino);
        let state = self.state.lock();
        self.maps_from(&state, first, blocks, needed);
        if own != first {
            self.maps_from(&state, own, blocks, needed); // indirect blocks are there
        }
        Ok(())
    }

    /// Adds the blocks for a new name. Those of a small directory were read in the search for the
    /// name.
    fn for_name(&self, dir: Ino, name: &[u8], needed: &mut Needed) -> Result<()> {
        let node = self.load_dir(dir)?;
        match self.room_for_name(&node, name)? {
            Some(block) => add(needed, Lba(block.into())),
            None => {
                let index = self.dir_blocks(&node)?;
                self.block_at(&node, index)?; // reads the indirect blocks on the way
                self.for_blocks(dir, index, 4, needed)?;
            }
        }
        Ok(())
    }

    /// The block of a large directory in which a name will be, if there is room for it.
    fn room_for_name(&self, dir: &Node, name: &[u8]) -> Result<Option<u32>> {
        let need = dir::needed(name.len());
        match self
            .with_names(dir, |names| names.block_for(need))?
            .flatten()
        {
            Some(index) => self.block_at(dir, index),
            None => Ok(None),
        }
    }

    /// Adds the blocks that a cut frees, from the end backwards, and their bitmaps.
    fn for_cut(&self, ino: Ino, range: Range<u64>, budget: u32, needed: &mut Needed) -> Result<()> {
        let node = self.load_ino(ino)?;
        let mut groups: SmallVec<[u32; 4]> = SmallVec::new();
        self.each_from_end(&node, range, budget, &mut |block| {
            let group = self.layout.group_of(block);
            if groups.last() != Some(&group) && !groups.contains(&group) {
                groups.push(group);
                self.map_of(&self.state.lock(), block, needed);
            }
        })
    }

    /// Adds the other blocks that freeing an inode changes.
    fn for_end(&self, ino: Ino, needed: &mut Needed) -> Result<()> {
        let node = self.load_ino(ino)?;
        let attributes = self.attr_block(&node)?;
        let group = self.layout.group_of_inode(node.ino);
        let state = self.state.lock();
        if let Some((block, _)) = attributes {
            self.map_of(&state, block, needed);
        }
        add(
            needed,
            Lba(state.groups[group as usize].inode_bitmap.into()),
        );
        self.counts_of(group, needed);
        Ok(())
    }

    /// Requests the next blocks of a directory together with one that is absent.
    pub(crate) fn want_dir_blocks(&self, dir: &Node, first: u64) {
        const AHEAD: u64 = 64;
        if !attempt::is_attempt() {
            return;
        }
        let end = self.dir_blocks(dir).map_or(0, |end| end.min(first + AHEAD));
        for index in first..end {
            let Ok(Some(block)) = self.block_at(dir, index) else {
                return;
            };
            attempt::want([Lba(block.into())]);
        }
    }

    /// Reads all blocks of a directory, before an attempt begins to look at them.
    pub(crate) fn ready_dir(&self, dir: &Node) -> Result<()> {
        if !attempt::is_attempt() {
            return Ok(());
        }
        let blocks = (0..self.dir_blocks(dir)?).map(|index| self.block_at(dir, index));
        let blocks = blocks.filter_map(Result::transpose);
        let blocks: Vec<Lba> = blocks
            .map(|b| b.map(|b| Lba(b.into())))
            .collect::<Result<_>>()?;
        Ok(self.store.ready(&blocks)?)
    }
}
