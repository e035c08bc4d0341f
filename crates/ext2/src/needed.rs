//! Blocks that an allocation will read.

use crate::state::State;
use crate::volume::Ext2;
use blockfs::Result;
use medium::block::Lba;
use smallvec::SmallVec;

/// Most groups that are looked at for one allocation. More are needed only when nearly all are
/// full.
const MOST_GROUPS: usize = 16;

/// Blocks that a step will read.
pub(crate) type Needed = SmallVec<[Lba; 8]>;

/// Adds a block, once.
pub(crate) fn add(needed: &mut Needed, lba: Lba) {
    if !needed.contains(&lba) {
        needed.push(lba);
    }
}

impl Ext2 {
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
}
