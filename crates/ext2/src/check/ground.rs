//! Superblock and group descriptors, on which the rest of an image depends.

use super::{Checker, add, readable};
use crate::bytes;
use crate::error::Error;
use crate::features;
use crate::format::{
    Compat, FIRST_INO_REV0, GroupDescriptor, INODE_BYTES_REV0, Incompat, RoCompat, Super,
};
use crate::probe::superblock;
use medium::block::BlockDevice;
use std::mem::size_of;
use vfs::check::{Report, Severity};
use zerocopy::{FromZeros, IntoBytes};

/// Numbers of a sound superblock, and the descriptors.
pub(super) struct Ground {
    pub sup: Super,
    pub block: u32,
    /// End of the file system, in blocks.
    pub blocks: u32,
    /// The first block of the first group.
    pub first: u32,
    pub per_group: u32,
    pub inodes: u32,
    pub inodes_per_group: u32,
    pub inode_bytes: u32,
    pub first_ino: u32,
    pub table_blocks: u32,
    /// Blocks of the descriptor table, and those reserved for its growth.
    pub descriptor_blocks: u32,
    pub reserved_descriptor_blocks: u32,
    pub compat: Compat,
    pub incompat: Incompat,
    pub ro_compat: RoCompat,
    pub groups: Vec<GroupDescriptor>,
}

impl Ground {
    /// Reads and checks superblock and descriptors. `None` if the rest cannot be checked with them.
    pub(super) fn find<D: BlockDevice + ?Sized>(device: &D, report: &mut Report) -> Option<Self> {
        let sup = match superblock(device) {
            Ok(sup) => sup,
            Err(Error::Device(error)) => {
                readable(report, Err(error));
                return None;
            }
            Err(error) => {
                add(report, "E2", Severity::Corrupt, format_args!("{error}"));
                return None;
            }
        };
        let mut ground = match Self::of(sup, device.geometry().bytes()) {
            Ok(ground) => ground,
            Err((invariant, what)) => {
                let what = format_args!("superblock: {what}");
                add(report, invariant, Severity::Corrupt, what);
                return None;
            }
        };
        let at = u64::from(ground.first + 1) * u64::from(ground.block);
        let read = bytes::read(device, at, ground.groups.as_mut_bytes());
        if !readable(report, read) || !ground.descriptors(report) {
            return None;
        }
        Some(ground)
    }

    /// The numbers of a superblock, or the invariant that it breaks, and how.
    fn of(sup: Super, bytes: u64) -> Result<Self, (&'static str, String)> {
        let modern = match sup.revision.get() {
            0 => false,
            1 => true,
            other => return Err(("E3", format!("revision {other}"))),
        };
        let features = [sup.compat, sup.incompat, sup.ro_compat];
        if !modern && features.iter().any(|f| f.get() != 0) {
            return Err(("E3", "features in revision 0".into()));
        }
        let only_modern = |value| if modern { value } else { 0 };
        let compat = only_modern(sup.compat.get());
        let incompat = only_modern(sup.incompat.get());
        let ro_compat = only_modern(sup.ro_compat.get());
        let mut unknown = features::incompat(incompat & !features::INCOMPAT.bits());
        unknown.extend(features::ro_compat(ro_compat & !features::RO_COMPAT.bits()));
        if !unknown.is_empty() {
            let unknown = unknown.join(", ");
            return Err(("E3", format!("features that are not known: {unknown}")));
        }
        let wrong = |what: &str, value: u32| Err(("E2", format!("{what} is {value}")));
        let log = sup.log_block_size.get();
        if log > 2 {
            return wrong("log of the block size", log);
        }
        let block = 1024 << log;
        let ground = Self {
            block,
            blocks: sup.blocks_count.get(),
            first: sup.first_data_block.get(),
            per_group: sup.blocks_per_group.get(),
            inodes: sup.inodes_count.get(),
            inodes_per_group: sup.inodes_per_group.get(),
            inode_bytes: if modern {
                sup.inode_size.get().into()
            } else {
                INODE_BYTES_REV0.into()
            },
            first_ino: if modern {
                sup.first_ino.get()
            } else {
                FIRST_INO_REV0
            },
            table_blocks: 0,
            descriptor_blocks: 0,
            reserved_descriptor_blocks: only_modern(sup.reserved_gdt_blocks.get().into()),
            compat: Compat::from_bits_truncate(compat),
            incompat: Incompat::from_bits_truncate(incompat),
            ro_compat: RoCompat::from_bits_truncate(ro_compat),
            groups: Vec::new(),
            sup,
        };
        ground.sane(bytes)?;
        ground.divided()
    }

    fn sane(&self, bytes: u64) -> Result<(), (&'static str, String)> {
        let wrong = |what: &str, value: u32| Err(("E2", format!("{what} is {value}")));
        let (sup, block) = (&self.sup, self.block);
        if sup.log_frag_size != sup.log_block_size {
            return wrong("log of the fragment size", sup.log_frag_size.get());
        }
        if self.first != u32::from(block == 1024) {
            return wrong("first data block", self.first);
        }
        if self.blocks <= self.first || u64::from(self.blocks) > bytes / u64::from(block) {
            return wrong("number of blocks", self.blocks);
        }
        if !(256..=block * 8).contains(&self.per_group) || !self.per_group.is_multiple_of(8) {
            return wrong("blocks in a group", self.per_group);
        }
        if sup.frags_per_group != sup.blocks_per_group {
            return wrong("fragments in a group", sup.frags_per_group.get());
        }
        if sup.reserved_blocks.get() > self.blocks / 2 {
            return wrong("number of reserved blocks", sup.reserved_blocks.get());
        }
        if !(128..=block).contains(&self.inode_bytes) || !self.inode_bytes.is_power_of_two() {
            return wrong("bytes of an inode", self.inode_bytes);
        }
        if !(8..=block * 8).contains(&self.inodes_per_group)
            || !self.inodes_per_group.is_multiple_of(8)
        {
            return wrong("inodes in a group", self.inodes_per_group);
        }
        if self.first_ino < FIRST_INO_REV0 || self.first_ino > self.inodes {
            return wrong("first inode", self.first_ino);
        }
        let resize = self.compat.contains(Compat::RESIZE_INODE);
        let reserved = self.reserved_descriptor_blocks;
        if reserved > block / 4 || (!resize && reserved > 0) {
            return wrong("number of reserved descriptor blocks", reserved);
        }
        Ok(())
    }

    /// Derives the division into groups from the numbers.
    fn divided(mut self) -> Result<Self, (&'static str, String)> {
        let wrong = |what: &str, value: u32| Err(("E2", format!("{what} is {value}")));
        let groups = (self.blocks - self.first).div_ceil(self.per_group);
        if self.inodes_per_group.checked_mul(groups) != Some(self.inodes) {
            return wrong("number of inodes", self.inodes);
        }
        self.table_blocks = (self.inodes_per_group * self.inode_bytes).div_ceil(self.block);
        let bytes = u64::from(groups) * size_of::<GroupDescriptor>() as u64;
        self.descriptor_blocks = bytes.div_ceil(self.block.into()) as u32;
        let last = self.blocks - self.start(groups - 1);
        let table = 1 + self.descriptor_blocks + self.reserved_descriptor_blocks;
        let needed = self.table_blocks + 3;
        let room = if groups == 1 { last } else { self.per_group };
        if table + needed > room || needed > last {
            return wrong("number of blocks, too few for the tables,", self.blocks);
        }
        self.groups = vec![GroupDescriptor::new_zeroed(); groups as usize];
        Ok(self)
    }

    pub(super) fn start(&self, group: u32) -> u32 {
        self.first + group * self.per_group
    }

    pub(super) fn blocks_in(&self, group: u32) -> u32 {
        self.per_group.min(self.blocks - self.start(group))
    }

    /// Whether a group has a superblock, or a copy of it.
    pub(super) fn has_super(&self, group: u32) -> bool {
        let power_of = |base: u32| {
            let logs = group.max(1).ilog(base);
            base.pow(logs) == group
        };
        if group == 0 {
            return true;
        }
        if self.compat.contains(Compat::SPARSE_SUPER2) {
            return self.sup.backup_groups.iter().any(|g| g.get() == group);
        }
        !self.ro_compat.contains(RoCompat::SPARSE_SUPER)
            || group == 1
            || [3, 5, 7].into_iter().any(power_of)
    }

    /// Blocks at the start of a group that hold superblock and descriptors.
    fn head(&self, group: u32) -> u32 {
        match self.has_super(group) {
            true => 1 + self.descriptor_blocks + self.reserved_descriptor_blocks,
            false => 0,
        }
    }

    /// Whether a block, which is in range, holds the file system's own tables.
    pub(super) fn is_metadata(&self, block: u32) -> bool {
        let group = (block - self.first) / self.per_group;
        let d = &self.groups[group as usize];
        block - self.start(group) < self.head(group)
            || block == d.block_bitmap.get()
            || block == d.inode_bitmap.get()
            || block.wrapping_sub(d.inode_table.get()) < self.table_blocks
    }

    /// The first block and the length of each of a group's tables.
    fn tables(&self, group: u32) -> [(u32, u32); 4] {
        let d = &self.groups[group as usize];
        [
            (self.start(group), self.head(group)),
            (d.block_bitmap.get(), 1),
            (d.inode_bitmap.get(), 1),
            (d.inode_table.get(), self.table_blocks),
        ]
    }

    /// Whether every group's tables lie inside it and apart from each other.
    fn descriptors(&self, report: &mut Report) -> bool {
        let mut sound = true;
        for group in 0..self.groups.len() as u32 {
            let (start, end) = (self.start(group), self.start(group) + self.blocks_in(group));
            let tables = self.tables(group);
            for (n, (at, len)) in tables.into_iter().enumerate() {
                let inside = at >= start && u64::from(at) + u64::from(len) <= u64::from(end);
                let meets = |(other, size): &(u32, u32)| {
                    let (at, len) = (u64::from(at), u64::from(len));
                    at < u64::from(*other) + u64::from(*size) && u64::from(*other) < at + len
                };
                if inside && !tables[..n].iter().any(meets) {
                    continue;
                }
                let name = ["descriptors", "block bitmap", "inode bitmap", "inode table"][n];
                let wrong = if inside {
                    "overlaps another"
                } else {
                    "is not inside"
                };
                let what = format_args!("group {group}: {name} at block {at} {wrong}");
                add(report, "E4", Severity::Corrupt, what);
                sound = false;
            }
        }
        sound
    }
}

impl<D: BlockDevice + ?Sized> Checker<'_, D> {
    /// Marks the blocks of superblocks, descriptors, bitmaps and tables as owned.
    pub(super) fn own_metadata(&mut self) {
        for group in 0..self.ground.groups.len() as u32 {
            for (at, len) in self.ground.tables(group) {
                for block in at..at + len {
                    self.owned.add(u64::from(block - self.ground.first));
                }
            }
        }
    }
}
