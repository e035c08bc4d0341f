//! The state of a mounted image in memory.

use crate::format::Super;
use crate::layout::{Group, Layout};
use crate::orphan_list::Orphans;
use crate::pending::{MadeName, OfPatch, Pending};
use crate::resting::Resting;
use patch::{PatchId, Store};
use std::collections::HashSet;

/// Counts, and facts about changes that are not durable.
pub(crate) struct State {
    pub groups: Vec<Group>,
    pub free_blocks: u64,
    pub free_inodes: u64,
    pub compat: u32,
    pub ro_compat: u32,
    /// The last change of the feature bits.
    pub feature_set: PatchId,
    /// The removal of the last pointers to a block.
    pub removed: Pending<u32, PatchId>,
    /// Free blocks whose removal of the last pointers is not durable.
    pub resting: Resting,
    /// The first pointer to a block.
    pub attached: Pending<u32, PatchId>,
    /// The clearing of a directory's index flag.
    pub unindexed: Pending<u32, PatchId>,
    /// The removal of a name from a directory.
    pub erased: Pending<(u32, Box<[u8]>), PatchId>,
    /// The making of a name, by block and offset.
    pub names: Pending<(u32, u32), MadeName>,
    /// Inodes of which a malformed access control list was logged.
    pub malformed_lists: HashSet<u32>,
    /// The making of an inode, and the state of its place before.
    pub fresh: Pending<u32, Fresh>,
    pub orphans: Orphans,
    /// The generation of the newest inode.
    pub generation: u32,
    /// Whether the blocks of [`Layout::reserve`] are kept from the change under way.
    pub keeps_reserve: bool,
}

/// An inode that is not durable yet.
pub(crate) struct Fresh {
    pub patch: PatchId,
    pub old: Box<[u8]>,
}

impl OfPatch for Fresh {
    fn patch(&self) -> PatchId {
        self.patch
    }
}

impl State {
    /// Makes the state at mount. New inodes get the generations after `generation`.
    pub(crate) fn new(found: &Super, groups: Vec<Group>, generation: u32) -> Self {
        let features = found.revision.get() > 0;
        Self {
            free_blocks: groups.iter().map(|g| u64::from(g.free_blocks)).sum(),
            free_inodes: groups.iter().map(|g| u64::from(g.free_inodes)).sum(),
            groups,
            compat: if features { found.compat.get() } else { 0 },
            ro_compat: if features { found.ro_compat.get() } else { 0 },
            feature_set: PatchId::DURABLE,
            removed: Pending::default(),
            resting: Resting::default(),
            attached: Pending::default(),
            unindexed: Pending::default(),
            erased: Pending::default(),
            names: Pending::default(),
            malformed_lists: HashSet::new(),
            fresh: Pending::default(),
            orphans: Orphans::default(),
            generation,
            keeps_reserve: false,
        }
    }

    /// Free blocks for the change that is under way.
    pub(crate) fn usable_blocks(&self, layout: &Layout) -> u64 {
        let kept = if self.keeps_reserve {
            layout.reserve.blocks
        } else {
            0
        };
        self.free_blocks.saturating_sub(kept)
    }

    /// Notes a free block whose last pointers `removed` takes away.
    pub(crate) fn let_rest(
        &mut self,
        store: &dyn Store,
        layout: &Layout,
        block: u32,
        removed: PatchId,
    ) {
        self.removed.insert(store, block, removed);
        let (group, known) = (layout.group_of(block), &self.removed);
        let rests = |group, bit| {
            let block = layout.group_start(group) + bit;
            known.get(store, &block).is_some()
        };
        let bit = block - layout.group_start(group);
        self.resting.add(group, bit, layout.blocks_in(group), rests);
    }

    /// Sets the free blocks of a group, and with them those of the image.
    pub(crate) fn set_free_blocks(&mut self, group: u32, free: u32) {
        let known = &mut self.groups[group as usize].free_blocks;
        self.free_blocks = self.free_blocks - u64::from(*known) + u64::from(free);
        *known = free;
    }

    /// Sets the free inodes of a group, and with them those of the image.
    pub(crate) fn set_free_inodes(&mut self, group: u32, free: u32) {
        let known = &mut self.groups[group as usize].free_inodes;
        self.free_inodes = self.free_inodes - u64::from(*known) + u64::from(free);
        *known = free;
    }
}
