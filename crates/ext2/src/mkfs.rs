//! Making a file system.
//!
//! # Guarantees
//! - The superblock is written last, after a flush. An interrupted run leaves no file system,
//!   neither the old one nor a part of the new one.
//! - The new file system is clean: it obeys all invariants of `format.md`.

use crate::bytes::{self, Writer};
use crate::error::Error;
use crate::format::{
    Compat, DIRECT, DIRENT_HEADER, DirentHeader, FIRST_INO_REV0, GroupDescriptor, INODE_BYTES_REV0,
    Incompat, Inode, InodeExtra, MAGIC, ROOT_INO, RoCompat, STATE_VALID, SUPER_OFFSET, Super,
    type_code,
};
use medium::block::{BlockDevice, BlockError, Lba};
use std::mem::size_of;
use vfs::{FileType, Timestamp};
use zerocopy::{FromZeros, IntoBytes};

/// The number of inodes to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inodes {
    /// At least this many.
    Count(u32),
    /// One for this many bytes of the device.
    BytesPer(u32),
}

/// Options of a new file system.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// Bytes in a block: 1024, 2048 or 4096.
    pub block_bytes: u32,
    /// Bytes of an inode: 128 or, for times in nanoseconds, 256.
    pub inode_bytes: u16,
    /// Number of inodes, rounded up to fill blocks.
    pub inodes: Inodes,
    /// Per cent of the blocks that only the superuser may take, at most 50.
    pub reserved_percent: u8,
    /// A name, padded with zero bytes.
    pub label: [u8; 16],
    /// The UUID. A unique one is random.
    pub uuid: [u8; 16],
    /// 0 (no features, inodes of 128 bytes) or 1.
    pub revision: u32,
    /// Whether only a few groups have backups of superblock and descriptors.
    pub sparse_super: bool,
    /// Whether directory entries have the type.
    pub filetype: bool,
    /// Whether files may have 2 GiB and more.
    pub large_file: bool,
    /// Whether other programs may give directories hash indexes.
    pub dir_index: bool,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Permission bits of the root directory.
    pub root_mode: u32,
    /// The time in all time stamps.
    pub now: Timestamp,
}

impl MkfsOptions {
    /// The options that mke2fs would choose for a device of this many bytes.
    pub fn for_size(bytes: u64) -> Self {
        const MIB: u64 = 1 << 20;
        let (block_bytes, bytes_per_inode) = match bytes / MIB {
            0..3 => (1024, 8192),
            3..512 => (1024, 4096),
            512..4_194_304 => (4096, 16_384),
            4_194_304..16_777_216 => (4096, 32_768),
            _ => (4096, 65_536),
        };
        Self {
            block_bytes,
            inode_bytes: 256,
            inodes: Inodes::BytesPer(bytes_per_inode),
            reserved_percent: 5,
            label: [0; 16],
            uuid: [0; 16],
            revision: 1,
            sparse_super: true,
            filetype: true,
            large_file: true,
            dir_index: true,
            uid: 0,
            gid: 0,
            root_mode: 0o755,
            now: Timestamp(0),
        }
    }

    /// The same options in revision 0, which has no features and small inodes.
    #[must_use]
    pub fn revision_0(self) -> Self {
        Self {
            revision: 0,
            inode_bytes: INODE_BYTES_REV0,
            sparse_super: false,
            filetype: false,
            large_file: false,
            dir_index: false,
            ..self
        }
    }

    fn validate(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::Option(what.into()));
        if ![1024, 2048, 4096].contains(&self.block_bytes) {
            return wrong("ext2 blocks have 1024, 2048 or 4096 bytes");
        }
        if ![128, 256].contains(&self.inode_bytes) {
            return wrong("ext2 inodes have 128 or 256 bytes");
        }
        if self.reserved_percent > 50 {
            return wrong("at most 50 per cent of the blocks can be reserved");
        }
        if matches!(self.inodes, Inodes::Count(0) | Inodes::BytesPer(0)) {
            return wrong("the number of inodes must not be 0");
        }
        let features = self.sparse_super || self.filetype || self.large_file || self.dir_index;
        match self.revision {
            0 if features => wrong("revision 0 has no features"),
            0 if self.inode_bytes != INODE_BYTES_REV0 => {
                wrong("revision 0 has inodes of 128 bytes only")
            }
            0 | 1 => Ok(()),
            _ => wrong("ext2 has revisions 0 and 1"),
        }
    }
}

/// The directory for files without names that fsck finds.
const LOST_FOUND: &[u8] = b"lost+found";
const LOST_FOUND_INO: u32 = FIRST_INO_REV0;
/// Free blocks below which a last group is left out, as in mke2fs.
const SMALL_GROUP: u64 = 50;

/// Makes an empty file system, with a directory `lost+found`, that fills the device.
///
/// # Errors
/// [`Error::Option`] for options that the format does not take; [`Error::Size`] if the
/// device is too small, or too large for the block size; [`Error::Device`].
pub fn mkfs<D: BlockDevice + ?Sized>(device: &D, options: &MkfsOptions) -> Result<(), Error> {
    options.validate()?;
    let layout = Layout::new(device.geometry().bytes(), options)?;
    // The old superblock is erased first, so that an interrupted run leaves no file system.
    let mut writer = Writer::new(device);
    writer.put(0, &[0; (SUPER_OFFSET as usize) + size_of::<Super>()])?;
    writer.finish()?;
    device.discard(Lba(0), device.geometry().blocks)?;
    Maker {
        device,
        writer,
        o: options,
        l: layout,
    }
    .run()?;
    Ok(())
}

/// The places of all structures.
struct Layout {
    block: u64,
    blocks: u64,
    first: u64,
    per_group: u64,
    groups: u64,
    descriptor_blocks: u64,
    inodes_per_group: u64,
    table_blocks: u64,
    lost_found_blocks: u64,
    sparse: bool,
}

impl Layout {
    fn new(bytes: u64, o: &MkfsOptions) -> Result<Self, Error> {
        let block = u64::from(o.block_bytes);
        let mut layout = Self {
            block,
            blocks: bytes / block,
            first: u64::from(block == 1024),
            per_group: block * 8,
            groups: 0,
            descriptor_blocks: 0,
            inodes_per_group: 0,
            table_blocks: 0,
            lost_found_blocks: (16_384 / block).min(DIRECT as u64),
            sparse: o.sparse_super,
        };
        let too_large = Error::Option(format!(
            "{bytes} bytes are too many for ext2 with blocks of {block} bytes"
        ));
        if layout.blocks > u64::from(u32::MAX) {
            return Err(too_large);
        }
        layout.divide(bytes, o);
        let last = layout.groups.saturating_sub(1);
        // A last group without room for files is left out.
        if last > 0 && layout.blocks_in(last) < layout.overhead(last) + SMALL_GROUP {
            layout.blocks -= layout.blocks_in(last);
            layout.divide(bytes, o);
        }
        let need = layout.first + layout.overhead(0) + 1 + layout.lost_found_blocks;
        if layout.groups > 1 && need > layout.per_group {
            return Err(too_large);
        }
        if layout.blocks < need {
            return Err(Error::Size {
                what: "an ext2 file system",
                need: need * block,
                have: bytes,
            });
        }
        Ok(layout)
    }

    /// Divides the blocks into groups, and the inodes among them.
    fn divide(&mut self, bytes: u64, o: &MkfsOptions) {
        let data = self.blocks.saturating_sub(self.first);
        self.groups = data.div_ceil(self.per_group).max(1);
        let descriptors = self.groups * size_of::<GroupDescriptor>() as u64;
        self.descriptor_blocks = descriptors.div_ceil(self.block);
        let wanted = match o.inodes {
            Inodes::Count(n) => u64::from(n),
            Inodes::BytesPer(n) => bytes / u64::from(n),
        };
        // Whole blocks of the table and whole bytes of the bitmap. The reserved inodes and
        // lost+found lie in the first group.
        let per_block = self.block / u64::from(o.inode_bytes);
        let step = per_block.max(8);
        let most = (self.block * 8).min(u64::from(u32::MAX) / self.groups) / step * step;
        let least = u64::from(LOST_FOUND_INO) + 1;
        let wanted = wanted.div_ceil(self.groups).max(least);
        self.inodes_per_group = wanted.next_multiple_of(step).min(most);
        self.table_blocks = self.inodes_per_group / per_block;
    }

    fn start(&self, group: u64) -> u64 {
        self.first + group * self.per_group
    }

    fn blocks_in(&self, group: u64) -> u64 {
        self.per_group
            .min(self.blocks.saturating_sub(self.start(group)))
    }

    /// Whether a group has a superblock, or a copy of it.
    fn has_super(&self, group: u64) -> bool {
        let power_of = |base: u64| {
            let mut power = base;
            while power < group {
                power *= base;
            }
            power == group
        };
        !self.sparse || group <= 1 || [3, 5, 7].into_iter().any(power_of)
    }

    fn block_bitmap(&self, group: u64) -> u64 {
        let supers = if self.has_super(group) {
            1 + self.descriptor_blocks
        } else {
            0
        };
        self.start(group) + supers
    }

    fn table(&self, group: u64) -> u64 {
        self.block_bitmap(group) + 2
    }

    /// Blocks of a group that are not for files.
    fn overhead(&self, group: u64) -> u64 {
        self.table(group) + self.table_blocks - self.start(group)
    }

    /// Blocks of a group in use at the start.
    fn used(&self, group: u64) -> u64 {
        let directories = if group == 0 {
            1 + self.lost_found_blocks
        } else {
            0
        };
        self.overhead(group) + directories
    }

    /// The root directory's block. Those of lost+found follow it.
    fn root_block(&self) -> u64 {
        self.first + self.overhead(0)
    }
}

struct Maker<'a, D: ?Sized> {
    device: &'a D,
    writer: Writer<'a, D>,
    o: &'a MkfsOptions,
    l: Layout,
}

impl<D: BlockDevice + ?Sized> Maker<'_, D> {
    fn run(&mut self) -> Result<(), BlockError> {
        for group in 0..self.l.groups {
            self.bitmaps(group)?;
            self.table(group)?;
        }
        self.directories()?;
        let descriptors = self.descriptors();
        for group in (0..self.l.groups).filter(|g| self.l.has_super(*g)) {
            let at = self.l.start(group) * self.l.block;
            self.writer.put(at + self.l.block, &descriptors)?;
            if group > 0 {
                let mut copy = vec![0; self.l.block as usize];
                copy[..size_of::<Super>()].copy_from_slice(self.superblock(group).as_bytes());
                self.writer.put(at, &copy)?;
            }
        }
        self.writer.finish()?;
        let first = self.superblock(0);
        self.writer.put(SUPER_OFFSET, first.as_bytes())?;
        self.writer.finish()
    }

    fn put_block(&mut self, block: u64, bytes: &[u8]) -> Result<(), BlockError> {
        self.writer.put(block * self.l.block, bytes)
    }

    /// Writes both bitmaps of a group. Bits past the end count as used.
    fn bitmaps(&mut self, group: u64) -> Result<(), BlockError> {
        let l = &self.l;
        let (used, blocks, inodes) = (l.used(group), l.blocks_in(group), l.inodes_per_group);
        let bitmap = |used: u64, end: u64| {
            let mut bytes = vec![0u8; l.block as usize];
            fill(&mut bytes, 0, used);
            fill(&mut bytes, end, l.block * 8);
            bytes
        };
        let used_inodes = if group == 0 { LOST_FOUND_INO } else { 0 };
        let of_blocks = bitmap(used, blocks);
        let of_inodes = bitmap(used_inodes.into(), inodes);
        let at = l.block_bitmap(group);
        self.put_block(at, &of_blocks)?;
        self.put_block(at + 1, &of_inodes)
    }

    /// Clears a group's inode table where it is not zero already. On large discarded devices it is
    /// zero, and a write would allocate space.
    fn table(&mut self, group: u64) -> Result<(), BlockError> {
        const AT_ONCE: u64 = 1 << 20;
        let mut at = self.l.table(group) * self.l.block;
        let end = at + self.l.table_blocks * self.l.block;
        let mut bytes = vec![0; AT_ONCE.min(end - at) as usize];
        while at < end {
            let len = AT_ONCE.min(end - at) as usize;
            bytes::read(self.device, at, &mut bytes[..len])?;
            if bytes[..len].iter().any(|b| *b != 0) {
                bytes.fill(0);
                self.writer.put(at, &bytes[..len])?;
            }
            at += len as u64;
        }
        Ok(())
    }

    fn directories(&mut self) -> Result<(), BlockError> {
        let (root, lost) = (self.l.root_block(), self.l.root_block() + 1);
        let (uid, gid) = (self.o.uid, self.o.gid);
        self.directory_inode(ROOT_INO, self.o.root_mode, (uid, gid), 3, root, 1)?;
        let blocks = self.l.lost_found_blocks;
        self.directory_inode(LOST_FOUND_INO, 0o700, (0, 0), 2, lost, blocks)?;
        let names: &[(u32, &[u8])] = &[
            (ROOT_INO, b"."),
            (ROOT_INO, b".."),
            (LOST_FOUND_INO, LOST_FOUND),
        ];
        let block = self.entries(names);
        self.put_block(root, &block)?;
        for n in 0..blocks {
            let names: &[(u32, &[u8])] = match n {
                0 => &[(LOST_FOUND_INO, b"."), (ROOT_INO, b"..")],
                _ => &[(0, b"")],
            };
            let block = self.entries(names);
            self.put_block(lost + n, &block)?;
        }
        Ok(())
    }

    fn directory_inode(
        &mut self,
        ino: u32,
        perm: u32,
        (uid, gid): (u32, u32),
        links: u16,
        block: u64,
        blocks: u64,
    ) -> Result<(), BlockError> {
        let mut inode = Inode::new_zeroed();
        let mode = FileType::Directory.mode_bits() | (perm & vfs::perm::PERM_MASK);
        inode.mode = (mode as u16).into();
        (inode.uid_low, inode.uid_high) = halves(uid);
        (inode.gid_low, inode.gid_high) = halves(gid);
        inode.size_low = ((blocks * self.l.block) as u32).into();
        inode.links = links.into();
        inode.sectors = ((blocks * self.l.block / 512) as u32).into();
        for (pointer, number) in inode.block.iter_mut().zip(block..block + blocks) {
            *pointer = (number as u32).into();
        }
        let mut bytes = vec![0; usize::from(self.o.inode_bytes)];
        let (low, high) = bytes.split_at_mut(size_of::<Inode>());
        let (seconds, extra) = time(self.o.now, !high.is_empty());
        (inode.atime, inode.ctime, inode.mtime) = (seconds.into(), seconds.into(), seconds.into());
        low.copy_from_slice(inode.as_bytes());
        if !high.is_empty() {
            let mut more = InodeExtra::new_zeroed();
            more.extra_isize = (size_of::<InodeExtra>() as u16).into();
            (more.atime_extra, more.ctime_extra) = (extra.into(), extra.into());
            (more.mtime_extra, more.crtime_extra) = (extra.into(), extra.into());
            more.crtime = seconds.into();
            high[..size_of::<InodeExtra>()].copy_from_slice(more.as_bytes());
        }
        let index = u64::from(ino - 1) * u64::from(self.o.inode_bytes);
        let at = self.l.table(0) * self.l.block + index;
        self.writer.put(at, &bytes)
    }

    /// A block of directory entries. The last entry fills it.
    fn entries(&self, names: &[(u32, &[u8])]) -> Vec<u8> {
        let mut block = vec![0; self.l.block as usize];
        let mut at = 0;
        for (n, (ino, name)) in names.iter().enumerate() {
            let len = match n + 1 == names.len() {
                true => block.len() - at,
                false => (DIRENT_HEADER + name.len()).next_multiple_of(4),
            };
            let kind = match self.o.filetype && *ino != 0 {
                true => type_code(FileType::Directory),
                false => 0,
            };
            let header = DirentHeader {
                inode: (*ino).into(),
                rec_len: (len as u16).into(),
                name_len: name.len() as u8,
                file_type: kind,
            };
            block[at..at + DIRENT_HEADER].copy_from_slice(header.as_bytes());
            block[at + DIRENT_HEADER..at + DIRENT_HEADER + name.len()].copy_from_slice(name);
            at += len;
        }
        block
    }

    fn descriptors(&self) -> Vec<u8> {
        let l = &self.l;
        let mut bytes = Vec::with_capacity((l.descriptor_blocks * l.block) as usize);
        for group in 0..l.groups {
            let mut d = GroupDescriptor::new_zeroed();
            let (bitmap, table) = (l.block_bitmap(group) as u32, l.table(group) as u32);
            d.block_bitmap = bitmap.into();
            d.inode_bitmap = (bitmap + 1).into();
            d.inode_table = table.into();
            d.free_blocks = ((l.blocks_in(group) - l.used(group)) as u16).into();
            let used = if group == 0 { LOST_FOUND_INO as u16 } else { 0 };
            d.free_inodes = (l.inodes_per_group as u16 - used).into();
            d.directories = if group == 0 { 2.into() } else { 0.into() };
            bytes.extend_from_slice(d.as_bytes());
        }
        bytes.resize((l.descriptor_blocks * l.block) as usize, 0);
        bytes
    }

    /// The superblock, or a group's copy of it.
    fn superblock(&self, group: u64) -> Super {
        let (l, o) = (&self.l, self.o);
        let free: u64 = (0..l.groups).map(|g| l.blocks_in(g) - l.used(g)).sum();
        let inodes = (l.inodes_per_group * l.groups) as u32;
        let now = o.now.parts().0.clamp(0, u32::MAX.into()) as u32;
        let mut s = Super::new_zeroed();
        s.inodes_count = inodes.into();
        s.blocks_count = (l.blocks as u32).into();
        s.reserved_blocks = ((l.blocks * u64::from(o.reserved_percent) / 100) as u32).into();
        s.free_blocks = (free as u32).into();
        s.free_inodes = (inodes - LOST_FOUND_INO).into();
        s.first_data_block = (l.first as u32).into();
        s.log_block_size = (l.block / 1024).ilog2().into();
        s.log_frag_size = s.log_block_size;
        s.blocks_per_group = (l.per_group as u32).into();
        s.frags_per_group = s.blocks_per_group;
        s.inodes_per_group = (l.inodes_per_group as u32).into();
        (s.write_time, s.last_check) = (now.into(), now.into());
        s.max_mount_count = u16::MAX.into();
        s.magic = MAGIC.into();
        s.state = STATE_VALID.into();
        s.errors = 1.into(); // go on after errors
        s.revision = o.revision.into();
        if o.revision > 0 {
            self.revision_1(&mut s, group, now);
        }
        s
    }

    fn revision_1(&self, s: &mut Super, group: u64, now: u32) {
        const DEFAULT_MOUNT_OPTIONS: u32 = 0x4 | 0x8; // user attributes, ACLs
        const HALF_MD4: u8 = 1;
        const SIGNED_HASH: u32 = 1;
        let o = self.o;
        let compat = [(true, Compat::EXT_ATTR), (o.dir_index, Compat::DIR_INDEX)];
        let ro = [
            (o.sparse_super, RoCompat::SPARSE_SUPER),
            (o.large_file, RoCompat::LARGE_FILE),
        ];
        s.first_ino = FIRST_INO_REV0.into();
        s.inode_size = o.inode_bytes.into();
        s.block_group = (group as u16).into();
        s.compat = chosen(compat).bits().into();
        s.incompat = chosen([(o.filetype, Incompat::FILETYPE)]).bits().into();
        s.ro_compat = chosen(ro).bits().into();
        (s.uuid, s.label) = (o.uuid, o.label);
        // The seed must differ between images, but need not be random.
        for (seed, bytes) in s.hash_seed.iter_mut().zip(o.uuid.as_chunks().0) {
            *seed = u32::from_le_bytes(*bytes).into();
        }
        s.default_hash_version = HALF_MD4;
        s.flags = SIGNED_HASH.into();
        s.default_mount_options = DEFAULT_MOUNT_OPTIONS.into();
        s.mkfs_time = now.into();
        if o.inode_bytes > INODE_BYTES_REV0 {
            let extra = size_of::<InodeExtra>() as u16;
            (s.min_extra_isize, s.want_extra_isize) = (extra.into(), extra.into());
        }
    }
}

fn chosen<F: bitflags::Flags + Copy, const N: usize>(all: [(bool, F); N]) -> F {
    let mut flags = F::empty();
    for (on, flag) in all {
        if on {
            flags.insert(flag);
        }
    }
    flags
}

fn halves<T: From<u16>>(id: u32) -> (T, T) {
    ((id as u16).into(), ((id >> 16) as u16).into())
}

/// Seconds, and the field that holds nanoseconds and two more bits of seconds.
fn time(t: Timestamp, wide: bool) -> (u32, u32) {
    let (seconds, nanos) = t.parts();
    if !wide {
        return (
            seconds.clamp(i32::MIN.into(), i32::MAX.into()) as i32 as u32,
            0,
        );
    }
    let low = seconds as i32;
    let epoch = ((seconds - i64::from(low)) >> 32) as u32 & 3;
    (low as u32, nanos << 2 | epoch)
}

/// Sets bits `from..to`.
fn fill(bitmap: &mut [u8], from: u64, to: u64) {
    let (from, to) = (from as usize, to as usize);
    for bit in from..to.min(from.next_multiple_of(8)) {
        bitmap[bit / 8] |= 1 << (bit % 8);
    }
    let (start, end) = (from.div_ceil(8), to / 8);
    if start <= end {
        bitmap[start..end].fill(0xff);
        for bit in end * 8..to {
            bitmap[bit / 8] |= 1 << (bit % 8);
        }
    }
}
