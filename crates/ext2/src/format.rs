//! The bytes of ext2 on the medium, all little-endian. Sizes and offsets are asserted at
//! compile time. Sources: the Linux kernel's documentation of ext2 and ext4, and what
//! e2fsprogs accepts.

use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where the superblock is, in bytes from the start of the device.
pub const SUPER_OFFSET: u64 = 1024;
/// [`Super::magic`].
pub const MAGIC: u16 = 0xef53;
/// The inode of the internal journal.
pub const JOURNAL_INO: u32 = 8;
/// The root directory's inode number.
pub const ROOT_INO: u32 = 2;
/// The first inode number that files may have, in revision 0.
pub const FIRST_INO_REV0: u32 = 11;
/// Bytes of an inode in revision 0, and of the part that both revisions have.
pub const INODE_BYTES_REV0: u16 = 128;
/// Direct block pointers of an inode.
pub const DIRECT: usize = 12;
/// Where an inode's single, double and triple indirect pointers are.
pub const INDIRECT: [usize; 3] = [12, 13, 14];
/// Block pointers of an inode.
pub const POINTERS: usize = 15;
/// Longest target kept in the inode.
pub const INLINE_TARGET_MAX: usize = 59;
/// Most names of one inode.
pub const LINK_MAX: u32 = 32_000;
/// Bytes of a directory entry without its name.
pub const DIRENT_HEADER: usize = 8;
/// [`AttrHeader::magic`].
pub const ATTR_MAGIC: u32 = 0xea02_0000;

/// The superblock.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // each is described in format.md
pub struct Super {
    pub inodes_count: U32,
    pub blocks_count: U32,
    pub reserved_blocks: U32,
    pub free_blocks: U32,
    pub free_inodes: U32,
    pub first_data_block: U32,
    /// log2(block size / 1024).
    pub log_block_size: U32,
    pub log_frag_size: U32,
    pub blocks_per_group: U32,
    pub frags_per_group: U32,
    pub inodes_per_group: U32,
    pub mount_time: U32,
    pub write_time: U32,
    pub mount_count: U16,
    pub max_mount_count: U16,
    pub magic: U16,
    /// See [`STATE_VALID`], [`STATE_ERRORS`].
    pub state: U16,
    pub errors: U16,
    pub minor_revision: U16,
    pub last_check: U32,
    pub check_interval: U32,
    pub creator_os: U32,
    pub revision: U32,
    pub reserved_uid: U16,
    pub reserved_gid: U16,
    // From here on: revision 1 only.
    pub first_ino: U32,
    pub inode_size: U16,
    pub block_group: U16,
    pub compat: U32,
    pub incompat: U32,
    pub ro_compat: U32,
    pub uuid: [u8; 16],
    pub label: [u8; 16],
    pub last_mounted: [u8; 64],
    pub algorithms: U32,
    pub preallocate_blocks: u8,
    pub preallocate_dir_blocks: u8,
    pub reserved_gdt_blocks: U16,
    pub journal_uuid: [u8; 16],
    pub journal_ino: U32,
    pub journal_device: U32,
    /// First of the list of orphans. Each orphan's `dtime` is the next one.
    pub last_orphan: U32,
    pub hash_seed: [U32; 4],
    pub default_hash_version: u8,
    pub journal_backup_type: u8,
    pub descriptor_size: U16,
    pub default_mount_options: U32,
    pub first_meta_group: U32,
    pub mkfs_time: U32,
    pub journal_blocks: [U32; 17],
    pub blocks_count_high: U32,
    pub reserved_blocks_high: U32,
    pub free_blocks_high: U32,
    /// Bytes after the first 128 that all inodes have. The next field is the number to give new ones.
    pub min_extra_isize: U16,
    pub want_extra_isize: U16,
    pub flags: U32,
    pub unused: [U32; 58],
    /// With `sparse_super2`, the groups that have copies. 0 stands for none.
    pub backup_groups: [U32; 2],
    pub rest: [U32; 107],
}

/// [`Super::state`]: unmounted cleanly, or sound once its journal is replayed.
pub const STATE_VALID: u16 = 1;
/// [`Super::state`]: errors were found.
pub const STATE_ERRORS: u16 = 2;

impl Super {
    /// The reaction to damage in [`Super::errors`]. For other values the kernel goes on.
    pub fn on_error(&self) -> blockfs::OnError {
        match self.errors.get() {
            2 => blockfs::OnError::ReadOnly,
            3 => blockfs::OnError::Halt,
            _ => blockfs::OnError::Continue,
        }
    }
}

bitflags::bitflags! {
    /// Bits of [`Super::compat`]. Programs that do not support them may ignore them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Compat: u32 {
        /// Directories preallocate.
        const DIR_PREALLOC = 0x1;
        /// AFS server inodes exist.
        const IMAGIC_INODES = 0x2;
        /// There is an ext3 journal.
        const HAS_JOURNAL = 0x4;
        /// Inodes have extended attributes.
        const EXT_ATTR = 0x8;
        /// Blocks for growing the descriptor table are kept in inode 7.
        const RESIZE_INODE = 0x10;
        /// Directories may have hash indexes.
        const DIR_INDEX = 0x20;
        /// Backups of superblock and descriptors only in [`Super::backup_groups`].
        const SPARSE_SUPER2 = 0x200;
    }

    /// Bits of [`Super::incompat`]. Programs that do not support them must not mount the image.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Incompat: u32 {
        /// Directory entries have the type.
        const FILETYPE = 0x2;
        /// The journal must be replayed.
        const RECOVER = 0x4;
        /// The device is an external journal.
        const JOURNAL_DEV = 0x8;
        /// Descriptor blocks lie in meta block groups.
        const META_BG = 0x10;
    }

    /// Bits of [`Super::ro_compat`]. Programs that do not support them must not write.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RoCompat: u32 {
        /// Backups of superblock and descriptors only in groups 0, 1 and powers of 3, 5, 7.
        const SPARSE_SUPER = 0x1;
        /// A file may be 2 GiB or larger.
        const LARGE_FILE = 0x2;
        /// Inodes have more than 128 bytes, and record the number in use.
        const EXTRA_ISIZE = 0x40;
    }

    /// Bits of [`Inode::flags`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// Writes are synchronous.
        const SYNC = 0x8;
        /// No changes.
        const IMMUTABLE = 0x10;
        /// Writes append only.
        const APPEND = 0x20;
        /// Not for dump(8).
        const NODUMP = 0x40;
        /// No access times.
        const NOATIME = 0x80;
        /// A directory with a hash index.
        const INDEX = 0x1000;
        /// Changes of a directory's names are synchronous.
        const DIRSYNC = 0x1_0000;
    }
}

/// A block group's descriptor.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // each is described in format.md
pub struct GroupDescriptor {
    pub block_bitmap: U32,
    pub inode_bitmap: U32,
    pub inode_table: U32,
    pub free_blocks: U16,
    pub free_inodes: U16,
    pub directories: U16,
    pub flags: U16,
    pub rest: [U32; 3],
}

/// The part of an inode that all revisions have.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // each is described in format.md
pub struct Inode {
    pub mode: U16,
    pub uid_low: U16,
    pub size_low: U32,
    pub atime: U32,
    pub ctime: U32,
    pub mtime: U32,
    /// The time of the inode's removal. In an orphan, the number of the next orphan.
    pub dtime: U32,
    pub gid_low: U16,
    pub links: U16,
    /// Units of 512 bytes, indirect and attribute blocks included.
    pub sectors: U32,
    pub flags: U32,
    pub version: U32,
    /// Block pointers. A short symbolic link has its target here, a device its number.
    pub block: [U32; POINTERS],
    pub generation: U32,
    /// The attribute block.
    pub file_acl: U32,
    /// The high half of a regular file's size.
    pub size_high: U32,
    pub fragment: U32,
    pub sectors_high: U16,
    pub file_acl_high: U16,
    pub uid_high: U16,
    pub gid_high: U16,
    pub checksum_low: U16,
    pub reserved: U16,
}

/// The next part in inodes of 256 bytes and more. `extra_isize` is the length of its used part.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // each is described in format.md
pub struct InodeExtra {
    /// Bytes of this part that are in use.
    pub extra_isize: U16,
    pub checksum_high: U16,
    /// Nanoseconds << 2, and two more bits of seconds.
    pub ctime_extra: U32,
    pub mtime_extra: U32,
    pub atime_extra: U32,
    pub crtime: U32,
    pub crtime_extra: U32,
    pub version_high: U32,
    pub project: U32,
}

/// A directory entry's header; the name follows, and padding up to `rec_len`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DirentHeader {
    /// The inode's number, or 0 for a free entry.
    pub inode: U32,
    /// Bytes to the next entry, a multiple of 4. Entries do not cross blocks.
    pub rec_len: U16,
    /// Bytes of the name.
    pub name_len: u8,
    /// With [`Incompat::FILETYPE`] one of the codes of [`type_code`], else the high byte of the
    /// name's length, which is 0.
    pub file_type: u8,
}

/// Start of a block of extended attributes. Entries follow, and values lie at the end.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // each is described in format.md
pub struct AttrHeader {
    pub magic: U32,
    /// Inodes that share the block.
    pub references: U32,
    pub blocks: U32,
    pub hash: U32,
    pub checksum: U32,
    pub reserved: [U32; 3],
}

/// One extended attribute. Its name follows without the prefix, padded to 4 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // each is described in format.md
pub struct AttrEntry {
    pub name_len: u8,
    /// The number of the name's prefix in [`ATTR_PREFIXES`].
    pub name_index: u8,
    pub value_offset: U16,
    pub value_inode: U32,
    pub value_size: U32,
    pub hash: U32,
}

/// Prefixes of attribute names, by [`AttrEntry::name_index`].
pub const ATTR_PREFIXES: [(u8, &[u8]); 5] = [
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (6, b"security."),
];

const _: () = {
    assert!(size_of::<Super>() == 1024);
    assert!(offset_of!(Super, magic) == 56);
    assert!(offset_of!(Super, revision) == 76);
    assert!(offset_of!(Super, first_ino) == 84);
    assert!(offset_of!(Super, compat) == 92);
    assert!(offset_of!(Super, uuid) == 104);
    assert!(offset_of!(Super, last_mounted) == 136);
    assert!(offset_of!(Super, journal_uuid) == 208);
    assert!(offset_of!(Super, last_orphan) == 232);
    assert!(offset_of!(Super, descriptor_size) == 254);
    assert!(offset_of!(Super, mkfs_time) == 264);
    assert!(offset_of!(Super, blocks_count_high) == 336);
    assert!(offset_of!(Super, min_extra_isize) == 348);
    assert!(offset_of!(Super, flags) == 352);
    assert!(size_of::<GroupDescriptor>() == 32);
    assert!(offset_of!(GroupDescriptor, free_blocks) == 12);
    assert!(size_of::<Inode>() == 128);
    assert!(offset_of!(Inode, links) == 26);
    assert!(offset_of!(Inode, block) == 40);
    assert!(offset_of!(Inode, generation) == 100);
    assert!(offset_of!(Inode, size_high) == 108);
    assert!(offset_of!(Inode, uid_high) == 120);
    assert!(size_of::<InodeExtra>() == 32);
    assert!(offset_of!(InodeExtra, ctime_extra) == 4);
    assert!(size_of::<DirentHeader>() == DIRENT_HEADER);
    assert!(size_of::<AttrHeader>() == 32);
    assert!(size_of::<AttrEntry>() == 16);
};

/// The code of a type in a directory entry.
pub fn type_code(kind: vfs::FileType) -> u8 {
    use vfs::FileType as T;
    match kind {
        T::Regular => 1,
        T::Directory => 2,
        T::CharDevice => 3,
        T::BlockDevice => 4,
        T::Fifo => 5,
        T::Socket => 6,
        T::Symlink => 7,
    }
}
