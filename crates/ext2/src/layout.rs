//! The places of an image's structures, by its superblock.

use crate::error::Error;
use crate::format::{
    Compat, FIRST_INO_REV0, GroupDescriptor, INODE_BYTES_REV0, Incompat, RoCompat, Super,
};
use medium::block::Lba;
use std::mem::size_of;

/// The constants of a mounted image.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub block_bytes: u32,
    pub blocks: u32,
    pub first_block: u32,
    pub blocks_per_group: u32,
    pub inodes: u32,
    pub inodes_per_group: u32,
    pub inode_bytes: u32,
    pub first_ino: u32,
    pub groups: u32,
    pub revision: u32,
    pub file_types: bool,
    pub copies: Copies,
    /// Blocks of the descriptor table.
    pub descriptor_blocks: u32,
    /// Blocks that hold structures of the format.
    pub overhead: u64,
    pub reserve: Reserve,
}

/// The reserved blocks, and the user and group that may take them besides the super-user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reserve {
    pub blocks: u64,
    pub uid: u32,
    pub gid: u32,
}

/// The groups that have copies of superblock and descriptors, besides the first.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Copies {
    /// All groups.
    Everywhere,
    /// Groups 1 and powers of 3, 5 and 7 (`sparse_super`).
    Sparse,
    /// These groups (`sparse_super2`). 0 stands for none.
    In([u32; 2]),
}

/// The places of a group's structures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub block_bitmap: u32,
    pub inode_bitmap: u32,
    pub inode_table: u32,
    pub free_blocks: u32,
    pub free_inodes: u32,
    pub directories: u32,
}

impl Layout {
    pub(crate) fn of(found: &Super, store_blocks: u64) -> std::result::Result<Self, Error> {
        let revision = found.revision.get();
        let block_bytes = 1024 << found.log_block_size.get();
        let mut layout = Self {
            block_bytes,
            blocks: found.blocks_count.get(),
            first_block: found.first_data_block.get(),
            blocks_per_group: found.blocks_per_group.get(),
            inodes: found.inodes_count.get(),
            inodes_per_group: found.inodes_per_group.get(),
            inode_bytes: INODE_BYTES_REV0.into(),
            first_ino: FIRST_INO_REV0,
            groups: 0,
            revision,
            file_types: false,
            copies: Copies::Everywhere,
            descriptor_blocks: 0,
            overhead: 0,
            reserve: Reserve {
                blocks: found.reserved_blocks.get().into(),
                uid: found.reserved_uid.get().into(),
                gid: found.reserved_gid.get().into(),
            },
        };
        if revision > 0 {
            layout.inode_bytes = found.inode_size.get().into();
            layout.first_ino = found.first_ino.get();
            layout.file_types = found.incompat.get() & Incompat::FILETYPE.bits() != 0;
            layout.copies = if found.compat.get() & Compat::SPARSE_SUPER2.bits() != 0 {
                Copies::In(found.backup_groups.map(|group| group.get()))
            } else if found.ro_compat.get() & RoCompat::SPARSE_SUPER.bits() != 0 {
                Copies::Sparse
            } else {
                Copies::Everywhere
            };
        }
        layout.check(found, store_blocks)?;
        let bytes = u64::from(layout.groups) * size_of::<GroupDescriptor>() as u64;
        layout.descriptor_blocks = bytes.div_ceil(block_bytes.into()) as u32;
        Ok(layout)
    }

    /// Checks the superblock, and counts the groups.
    fn check(&mut self, found: &Super, store_blocks: u64) -> std::result::Result<(), Error> {
        let layout = self;
        let bad = |what: &str| Err(Error::Corrupt(format!("superblock: {what}")));
        let block_bytes = layout.block_bytes;
        let bits = block_bytes * 8;
        if layout.revision > 1 {
            return bad(&format!("revision {}", layout.revision));
        }
        if found.log_frag_size.get() != found.log_block_size.get() {
            return bad("fragments are not blocks");
        }
        if layout.first_block != u32::from(block_bytes == 1024) {
            return bad("wrong first block");
        }
        if layout.blocks <= layout.first_block || u64::from(layout.blocks) > store_blocks {
            let blocks = layout.blocks;
            return bad(&format!("{blocks} blocks on a device of {store_blocks}"));
        }
        if !(8..=bits).contains(&layout.blocks_per_group)
            || !layout.blocks_per_group.is_multiple_of(8)
        {
            return bad("wrong number of blocks in a group");
        }
        let size = layout.inode_bytes;
        if !size.is_power_of_two() || !(128..=block_bytes).contains(&size) {
            return bad(&format!("inodes of {size} bytes"));
        }
        layout.groups = (layout.blocks - layout.first_block).div_ceil(layout.blocks_per_group);
        let per_group = layout.inodes_per_group;
        let all = u64::from(per_group) * u64::from(layout.groups);
        if !(8..=bits).contains(&per_group) || all != u64::from(layout.inodes) {
            return bad("wrong number of inodes");
        }
        if !(FIRST_INO_REV0..=layout.inodes).contains(&layout.first_ino) {
            return bad("wrong first inode");
        }
        Ok(())
    }

    /// The first block of a group.
    pub(crate) fn group_start(&self, group: u32) -> u32 {
        self.first_block + group * self.blocks_per_group
    }

    /// The number of a group's blocks. The last group may have fewer.
    pub(crate) fn blocks_in(&self, group: u32) -> u32 {
        self.blocks_per_group
            .min(self.blocks - self.group_start(group))
    }

    /// The group of a block.
    pub(crate) fn group_of(&self, block: u32) -> u32 {
        (block - self.first_block) / self.blocks_per_group
    }

    /// The group of an inode.
    pub(crate) fn group_of_inode(&self, ino: u32) -> u32 {
        (ino - 1) / self.inodes_per_group
    }

    /// Blocks of a group's inode table.
    pub(crate) fn table_blocks(&self) -> u32 {
        (self.inodes_per_group * self.inode_bytes).div_ceil(self.block_bytes)
    }

    /// The place of a group's descriptor.
    pub(crate) fn descriptor(&self, group: u32) -> (Lba, u32) {
        let per_block = self.block_bytes / size_of::<GroupDescriptor>() as u32;
        let lba = self.first_block + 1 + group / per_block;
        let at = group % per_block * size_of::<GroupDescriptor>() as u32;
        (Lba(lba.into()), at)
    }

    /// Whether a group begins with a superblock and descriptors.
    pub(crate) fn has_super(&self, group: u32) -> bool {
        let power = |base: u32| {
            let mut at = base;
            while at < group {
                at = at.saturating_mul(base);
            }
            at == group
        };
        group == 0
            || match self.copies {
                Copies::Everywhere => true,
                Copies::Sparse => group == 1 || power(3) || power(5) || power(7),
                Copies::In(groups) => groups.contains(&group),
            }
    }

    /// Blocks that hold structures of the format.
    pub(crate) fn count_overhead(&self) -> u64 {
        let each = u64::from(self.table_blocks()) + 2;
        let supers = (0..self.groups).filter(|group| self.has_super(*group));
        let copies = supers.count() as u64 * (1 + u64::from(self.descriptor_blocks));
        u64::from(self.first_block) + copies + each * u64::from(self.groups)
    }
}
