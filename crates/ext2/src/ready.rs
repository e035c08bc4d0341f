//! The blocks that steps will read, before a call makes its first change. They are read without the
//! tree's lock.
//!
//! The blocks of an allocation are known only when it is made. Bitmaps are therefore named here
//! until enough rested blocks are free in them, or until a few are named. If the blocks are cached
//! this costs memory accesses only, and outside of [attempts](attempt) nothing.

use crate::alloc::{Purpose, State};
use crate::dir;
use crate::inode::Node;
use crate::volume::Ext2;
use blockfs::{Next, Result};
use medium::block::Lba;
use patch::attempt;
use smallvec::SmallVec;
use std::ops::Range;
use vfs::Ino;

/// Most groups that are looked at for one allocation. More are needed only when nearly all are
/// full.
const MOST_GROUPS: usize = 16;

/// Blocks that a step will read.
pub(crate) type Needed = SmallVec<[Lba; 8]>;

fn add(needed: &mut Needed, lba: Lba) {
    if !needed.contains(&lba) {
        needed.push(lba);
    }
}

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

    /// Adds a group's descriptor and the superblock, which contain the free counts.
    pub(crate) fn counts_of(&self, group: u32, needed: &mut Needed) {
        add(needed, self.layout.descriptor(group).0);
        add(needed, self.super_place());
    }

    /// Reads the blocks that a new inode changes besides its bitmap, and those that its first
    /// blocks need.
    pub(crate) fn ready_new(&self, state: &State, ino: u32, blocks: u64) -> Result<()> {
        let mut needed = Needed::new();
        let group = self.layout.group_of_inode(ino);
        add(&mut needed, self.place_in(state, ino).0);
        self.counts_of(group, &mut needed);
        if blocks > 0 {
            self.maps_from(state, group, blocks, &mut needed);
        }
        Ok(self.store.ready(&needed)?)
    }

    /// Adds the blocks that freeing a block changes.
    pub(crate) fn map_of(&self, state: &State, block: u32, needed: &mut Needed) {
        let group = self.layout.group_of(block);
        add(
            needed,
            Lba(state.groups[group as usize].block_bitmap.into()),
        );
        self.counts_of(group, needed);
    }

    /// Adds the blocks that an allocation of `blocks` blocks reads, from a group on.
    pub(crate) fn maps_from(&self, state: &State, first: u32, blocks: u64, needed: &mut Needed) {
        let groups = self.layout.groups;
        let order = (0..groups).map(|step| (first + step) % groups);
        let roomy = order.filter(|group| state.groups[*group as usize].free_blocks > 0);
        let mut left = blocks + state.resting.count();
        for group in roomy.take(MOST_GROUPS) {
            let known = &state.groups[group as usize];
            add(needed, Lba(known.block_bitmap.into()));
            self.counts_of(group, needed);
            left = left.saturating_sub(known.free_blocks.into());
            if left == 0 {
                return;
            }
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
