//! Names of the contents of blocks.

use crate::alloc::is_set;
use crate::format::SUPER_OFFSET;
use crate::volume::Ext2;
use medium::block::Lba;

impl Ext2 {
    /// The name of the format's structure in a block, such as `block bitmap of group 0`, or `free`.
    /// `None` for blocks of files.
    pub(crate) fn structure_at(&self, lba: Lba) -> Option<String> {
        let layout = &self.layout;
        let block = u32::try_from(lba.0).ok()?;
        if lba.0 == SUPER_OFFSET / u64::from(layout.block_bytes) {
            return Some("superblock".into());
        }
        if (1..=layout.descriptor_blocks).contains(&block.checked_sub(layout.first_block)?) {
            return Some("group descriptors".into());
        }
        let group = layout.group_of(block);
        // The format does not require a group's structures to lie in it, but they usually do.
        let found = *self.state.lock().groups.get(group as usize)?;
        let table = found.inode_table..found.inode_table + layout.table_blocks();
        match block {
            b if b == found.block_bitmap => Some(format!("block bitmap of group {group}")),
            b if b == found.inode_bitmap => Some(format!("inode bitmap of group {group}")),
            b if table.contains(&b) => {
                let per_block = layout.block_bytes / layout.inode_bytes;
                let first = (b - table.start) * per_block + 1 + group * layout.inodes_per_group;
                Some(format!("inodes {first} to {}", first + per_block - 1))
            }
            b => {
                let map = self.store.read(Lba(found.block_bitmap.into())).ok()?;
                let is_used = is_set(&map, b - layout.group_start(group));
                (!is_used).then(|| "free".into())
            }
        }
    }
}
