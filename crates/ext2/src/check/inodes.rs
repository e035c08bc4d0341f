//! All inodes, with their blocks.

use super::blocks::Walk;
use super::{Checker, Directory, readable};
use crate::bytes;
use crate::format::{
    Compat, DIRECT, INLINE_TARGET_MAX, Incompat, Inode, InodeFlags, ROOT_INO, RoCompat,
};
use medium::block::BlockDevice;
use vfs::FileType;
use zerocopy::{FromBytes, IntoBytes};

const BAD_BLOCKS_INO: u32 = 1;
const RESIZE_INO: u32 = 7;
const JOURNAL_INO: u32 = 8;
/// Bytes of inode tables that are read at once.
const AT_ONCE: u64 = 1 << 18;
/// Flags of features that are refused: blocks in extents, contents in the inode.
const FOREIGN_FLAGS: u32 = 0x8_0000 | 0x1000_0000;

impl<D: BlockDevice + ?Sized> Checker<'_, D> {
    pub(super) fn all_inodes(&mut self) {
        let size = u64::from(self.ground.inode_bytes);
        let table = u64::from(self.ground.inodes_per_group) * size;
        let mut buf = vec![0; AT_ONCE.min(table) as usize];
        for group in 0..self.ground.groups.len() {
            let start = self.ground.groups[group].inode_table.get();
            let start = u64::from(start) * u64::from(self.ground.block);
            let mut done = 0;
            while done < table {
                let part = &mut buf[..AT_ONCE.min(table - done) as usize];
                let read = bytes::read(self.device, start + done, part);
                let first = group as u64 * u64::from(self.ground.inodes_per_group) + done / size;
                if readable(&mut self.report, read) {
                    self.inodes_in(first as u32 + 1, part);
                }
                done += part.len() as u64;
            }
        }
    }

    fn inodes_in(&mut self, first: u32, bytes: &[u8]) {
        let slots = bytes.chunks_exact(self.ground.inode_bytes as usize);
        for (ino, slot) in (first..).zip(slots) {
            let Ok((inode, behind)) = Inode::read_from_prefix(slot) else {
                continue;
            };
            if ino < self.ground.first_ino && ino != ROOT_INO {
                self.reserved(ino, &inode);
            } else if inode.links.get() > 0 || ino == ROOT_INO {
                self.file(ino, &inode, behind);
            } else if inode.mode.get() != 0 {
                self.deleted(ino, &inode, behind);
            }
        }
    }

    fn live(&mut self, ino: u32) {
        self.live.add(u64::from(ino - 1));
        self.seen_mut(ino).in_use = true;
    }

    /// Checks an inode without links that has not been cleared.
    fn deleted(&mut self, ino: u32, inode: &Inode, behind: &[u8]) {
        if self.orphans.has(u64::from(ino - 1)) {
            // Its blocks are still its own: they will be freed with it.
            self.file(ino, inode, behind);
        } else if inode.dtime.get() == 0 {
            let what = format_args!("inode {ino} has no links and no time of deletion");
            self.leak("E26", what);
        }
    }

    /// Checks an inode of the format itself, which is in use without a name.
    fn reserved(&mut self, ino: u32, inode: &Inode) {
        self.live(ino);
        let has = |feature| self.ground.compat.contains(feature);
        match ino {
            RESIZE_INO if has(Compat::RESIZE_INODE) => return self.resize_inode(inode),
            JOURNAL_INO if has(Compat::HAS_JOURNAL) && self.has_journal_in_place() => {
                self.journal(inode)
            }
            RESIZE_INO if inode.block.iter().any(|b| b.get() != 0) => {
                let what = format_args!("inode {ino}: blocks for resizing without the feature");
                self.corrupt("E18", what);
            }
            BAD_BLOCKS_INO | RESIZE_INO => {}
            _ if inode.mode.get() != 0 => {
                self.corrupt(
                    "E18",
                    format_args!("inode {ino} is reserved, and has a type"),
                );
            }
            _ => {}
        }
        let mut walk = Walk::new(ino, false);
        self.walk(inode, &mut walk);
        self.sectors(inode, &walk, 0);
    }

    /// Whether the journal is in inode 8, and not on another device or in a file.
    fn has_journal_in_place(&self) -> bool {
        self.ground.sup.journal_ino.get() == JOURNAL_INO
    }

    fn journal(&mut self, inode: &Inode) {
        if FileType::from_mode(inode.mode.get().into()) != Some(FileType::Regular) {
            let what = format_args!("inode {JOURNAL_INO}: the journal is not a file");
            self.corrupt("E18", what);
        }
    }

    /// Checks inode 7, which keeps blocks for descriptors of future groups. Its double indirect
    /// block points at the blocks after the descriptors, and these at their backups.
    fn resize_inode(&mut self, inode: &Inode) {
        let slot = crate::format::INDIRECT[1];
        let double = inode.block[slot].get();
        let other = (inode.block.iter().enumerate()).any(|(n, b)| n != slot && b.get() != 0);
        let regular = inode.mode.get() & 0o100_000 != 0;
        if other || double == 0 || inode.links.get() == 0 || !regular {
            return self.corrupt(
                "E18",
                format_args!("inode {RESIZE_INO}: not as for resizing"),
            );
        }
        if !self.claim(RESIZE_INO, double) {
            return;
        }
        let mut walk = Walk::new(RESIZE_INO, false);
        walk.count = 1;
        let fanout = self.ground.block as usize / 4;
        let (mut doubles, mut singles) = (vec![0u8; fanout * 4], vec![0u8; fanout * 4]);
        if !self.read_block(double, &mut doubles) {
            return;
        }
        let word = |bytes: &[u8], n: usize| {
            bytes
                .as_chunks()
                .0
                .get(n)
                .map_or(0, |w| u32::from_le_bytes(*w))
        };
        let backups: Vec<u32> = (1..self.ground.groups.len() as u32)
            .filter(|group| self.ground.has_super(*group))
            .collect();
        for n in 0..self.ground.reserved_descriptor_blocks {
            let block = self.ground.first + 1 + self.ground.descriptor_blocks + n;
            let index = (self.ground.descriptor_blocks + n) as usize % fanout;
            let mut right = word(&doubles, index) == block;
            right &= self.read_block(block, &mut singles);
            let expected = |group: &u32| block + group * self.ground.per_group;
            right &=
                (backups.iter().enumerate()).all(|(n, group)| word(&singles, n) == expected(group));
            if !right {
                let what = format_args!("inode {RESIZE_INO}: block {block} is not as reserved");
                return self.corrupt("E18", what);
            }
            walk.count += 1 + backups.len() as u64;
        }
        self.sectors(inode, &walk, 0);
    }

    /// Checks an inode in use.
    fn file(&mut self, ino: u32, inode: &Inode, behind: &[u8]) {
        self.live(ino);
        let Some(kind) = FileType::from_mode(inode.mode.get().into()) else {
            let mode = inode.mode.get();
            return self.corrupt("E5", format_args!("inode {ino}: mode {mode:o} has no type"));
        };
        let seen = self.seen_mut(ino);
        (seen.kind, seen.links) = (Some(kind), inode.links.get());
        if inode.dtime.get() != 0 && inode.links.get() > 0 {
            let what = format_args!("inode {ino} is in use and has a time of deletion");
            self.leak("E26", what);
        }
        self.fields(ino, inode, kind);
        self.behind(ino, behind);
        let acl = inode.file_acl.get();
        if acl != 0 {
            self.attribute_block(ino, acl);
        }
        let device = !matches!(
            kind,
            FileType::Regular | FileType::Directory | FileType::Symlink
        );
        let inline = kind == FileType::Symlink && size_of_file(inode) <= INLINE_TARGET_MAX as u64;
        let mut walk = Walk::new(ino, kind == FileType::Directory);
        if inline {
            self.inline_target(ino, inode);
        } else if !device {
            self.walk(inode, &mut walk);
        }
        match kind {
            FileType::Directory => self.size_of_directory(inode, &mut walk),
            FileType::Symlink if !inline => self.long_target(inode, &walk),
            FileType::Regular => self.size_of_regular(inode, &walk),
            FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharDevice
            | FileType::BlockDevice => {}
        }
        self.sectors(inode, &walk, u64::from(acl != 0));
        if let Some(blocks) = walk.directory {
            self.directories.push(Directory {
                ino,
                blocks,
                dotdot: 0,
                parent: 0,
            });
        }
    }

    fn fields(&mut self, ino: u32, inode: &Inode, kind: FileType) {
        let flags = inode.flags.get();
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        let plain = matches!(kind, FileType::Regular | FileType::Directory);
        let directory = kind == FileType::Directory;
        let indexed = flags & InodeFlags::INDEX.bits() != 0;
        let may_index = directory && self.ground.compat.contains(Compat::DIR_INDEX);
        let special = !plain && kind != FileType::Symlink;
        let wrong = match () {
            () if inode.fragment.get() != 0 => "has a fragment",
            () if inode.file_acl_high.get() != 0 => "has an attribute block beyond the end",
            () if flags & FOREIGN_FLAGS != 0 => "has flags of another format",
            () if indexed && !may_index => "has an index where there is none",
            () if kind != FileType::Regular && inode.size_high.get() != 0 => "is too long",
            () if special && inode.size_low.get() != 0 => "is a special file with a size",
            () if special && flags & fixed.bits() != 0 => "is a special file that is immutable",
            () => return,
        };
        self.corrupt("E5", format_args!("inode {ino} {wrong}"));
    }

    /// Checks the fields after those that all revisions have.
    fn behind(&mut self, ino: u32, behind: &[u8]) {
        let Some((extra, _)) = behind.split_first_chunk() else {
            return;
        };
        let extra = usize::from(u16::from_le_bytes(*extra));
        if extra != 0 && (extra < 4 || extra > behind.len() || !extra.is_multiple_of(4)) {
            let what = format_args!("inode {ino}: {extra} bytes of extra fields");
            self.corrupt("E5", what);
        } else if extra != 0 {
            self.attributes_behind(ino, &behind[extra..]);
        }
    }

    fn inline_target(&mut self, ino: u32, inode: &Inode) {
        let target = inode.block.as_bytes();
        let len = target.iter().position(|b| *b == 0).unwrap_or(target.len());
        // Sectors besides an attribute block's would make pointers of it.
        let sectors = inode.file_acl.get() == 0 && inode.sectors.get() != 0;
        if len == 0 || len as u64 != size_of_file(inode) || sectors {
            self.content(
                ino,
                "E10",
                format_args!("inode {ino}: not a target in the inode"),
            );
        }
    }

    fn long_target(&mut self, inode: &Inode, walk: &Walk) {
        let (ino, size) = (walk.ino, size_of_file(inode));
        let block = inode.block[0].get();
        let mut right = walk.count == 1 && walk.last == Some(0);
        right &= size < self.ground.block.into();
        if right && (self.ground.first..self.ground.blocks).contains(&block) {
            let mut buf = vec![0; self.ground.block as usize];
            right = self.read_block(block, &mut buf);
            let len = buf.iter().position(|b| *b == 0);
            right &= len.is_some_and(|len| len as u64 == size);
        }
        if !right {
            self.content(
                ino,
                "E10",
                format_args!("inode {ino}: not a target in a block"),
            );
        }
    }

    fn size_of_regular(&mut self, inode: &Inode, walk: &Walk) {
        let (ino, size) = (walk.ino, size_of_file(inode));
        let block = u64::from(self.ground.block);
        let fanout = block / 4;
        let most = DIRECT as u64 + fanout + fanout.pow(2) + fanout.pow(3);
        // The count of sectors has 32 bits.
        let most = most.min(u64::from(u32::MAX) * 512 / block);
        if size > most * block {
            self.content(
                ino,
                "E10",
                format_args!("inode {ino}: {size} bytes are too many"),
            );
        } else if size >= 1 << 31 && !self.ground.ro_compat.contains(RoCompat::LARGE_FILE) {
            let what = format_args!("inode {ino}: {size} bytes without the feature large_file");
            self.content(ino, "E10", what);
        }
        if let Some(last) = walk.last.filter(|last| last * block > size) {
            let what = format_args!("inode {ino}: block {last} is past its {size} bytes");
            self.leak("E28", what);
        }
    }

    /// Checks that a directory is whole blocks without holes. Blocks past its end do not belong to
    /// it yet.
    fn size_of_directory(&mut self, inode: &Inode, walk: &mut Walk) {
        let (ino, size) = (walk.ino, inode.size_low.get());
        let wanted = u64::from(size / self.ground.block);
        let have = walk.last.map_or(0, |last| last + 1);
        let hole = walk.hole.filter(|hole| *hole < wanted);
        if size == 0 || !size.is_multiple_of(self.ground.block) || wanted > have || hole.is_some() {
            let what = format_args!("inode {ino}: a directory of {size} bytes with holes");
            self.content(ino, "E12", what);
        }
        if have > wanted {
            let what = format_args!("inode {ino}: blocks past its {size} bytes");
            self.leak("E28", what);
        }
        if let Some(blocks) = &mut walk.directory {
            blocks.truncate(wanted as usize);
        }
    }

    fn sectors(&mut self, inode: &Inode, walk: &Walk, others: u64) {
        let found = (walk.count + others) * u64::from(self.ground.block / 512);
        let (ino, sectors) = (walk.ino, inode.sectors.get());
        if found != u64::from(sectors) {
            let what = format_args!("inode {ino}: {sectors} sectors, not {found}");
            self.leak("E27", what);
        }
    }

    pub(super) fn has_types(&self) -> bool {
        self.ground.incompat.contains(Incompat::FILETYPE)
    }
}

fn size_of_file(inode: &Inode) -> u64 {
    u64::from(inode.size_low.get()) | u64::from(inode.size_high.get()) << 32
}
