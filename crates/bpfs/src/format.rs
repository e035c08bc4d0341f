//! The bytes on the medium, version 1 (see `format.md`): numbers, offsets and packed values.
//! All integers are little-endian.

use vfs::Timestamp;
use zerocopy::byteorder::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes in a block.
pub const BLOCK: u64 = 4096;
/// Pointers in an indirect block.
pub const FANOUT: u64 = 512;
/// Bytes in an inode.
pub const INODE: u64 = 128;
/// Smallest image: 1 MiB.
pub const MIN_BLOCKS: u64 = 256;
/// Largest height that a file of at most 2^63 - 1 bytes needs.
pub const MAX_HEIGHT: u32 = 6;
/// First bytes of the super block.
pub const MAGIC: [u8; 8] = *b"SLVDGbpf";
/// The only version.
pub const VERSION: u32 = 1;
/// Blocks of the redo log.
pub const LOG_BLOCKS: u64 = 4;
/// Bytes of one slot of the redo log.
pub const LOG_SLOT: u64 = 2048;

/// Lowest bit of a stored change time. Clear: the change time is the later of it and the
/// modification time, so that a write stores one time. Set, once a caller has chosen a
/// modification time: the change time stands alone.
pub(crate) const CTIME_ALONE: i64 = 1;

/// A block number. 0 is the null pointer, since no pointer leads to block 0, the super block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockNo(pub u64);

impl BlockNo {
    /// The null pointer, which reads as zeros.
    pub const NULL: BlockNo = BlockNo(0);

    /// Whether this is the null pointer.
    pub fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Byte offset of the block on the medium.
    pub fn addr(self) -> u64 {
        self.0 * BLOCK
    }
}

/// Height and root pointer of a tree in one word, so that one store changes both:
/// height in the low 3 bits, block number above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeightAddr(pub u64);

impl HeightAddr {
    /// Packs a height and a root.
    pub fn new(height: u32, block: BlockNo) -> Self {
        debug_assert!(height < 8 && block.0 < 1 << 61);
        Self(block.0 << 3 | u64::from(height))
    }

    /// The height; 0: the root is a leaf.
    pub fn height(self) -> u32 {
        (self.0 & 7) as u32
    }

    /// The root block.
    pub fn block(self) -> BlockNo {
        BlockNo(self.0 >> 3)
    }
}

/// Leaves that a tree of this height can hold.
#[inline]
pub fn span(height: u32) -> u64 {
    1 << (9 * height.min(7))
}

/// Height that a tree needs to hold leaf number `last`.
pub fn height_for(last: u64) -> u32 {
    (0..7).find(|h| last < span(*h)).unwrap_or(7)
}

/// The super block: block 0, with a copy in block 1 that only mode `sp` keeps current.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct Super {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: U32,
    /// [`BLOCK`].
    pub block_bytes: U32,
    /// Identity.
    pub uuid: [u8; 16],
    /// Blocks of the file system, super blocks included.
    pub blocks: U64,
    /// First block of the redo log.
    pub log_start: U64,
    /// Blocks of the redo log.
    pub log_blocks: U64,
    /// CRC-32 of the bytes before this field.
    pub crc: U32,
    /// Zero.
    pub reserved: U32,
    /// Block of the root record. A store here commits what no store further down can.
    pub root: U64,
    /// [`crate::Mode`] in force since the last mount.
    pub mode: U64,
    /// Zero.
    pub unused: [u8; 4008],
    /// Equal to `root` once a shadow-paging commit has written the whole block.
    pub root_copy: U64,
}

impl Super {
    /// The checksum of the fields that never change.
    pub(crate) fn static_crc(&self) -> u32 {
        crc32fast::hash(&self.as_bytes()[..std::mem::offset_of!(Super, crc)])
    }
}

/// The root record: the inode file's tree. Lies at the start of the block that
/// [`Super::root`] names.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct RootRecord {
    /// [`HeightAddr`].
    pub ha: U64,
    /// Bytes of the inode file; a multiple of [`BLOCK`].
    pub size: U64,
}

/// An inode. Inode number *n* lies at byte (*n* - 1) x 128 of the inode file. It is valid if a
/// valid directory entry names it.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct Inode {
    /// Grows by one each time the number is taken.
    pub generation: U64,
    /// Owner.
    pub uid: U32,
    /// Group; one word with `uid`.
    pub gid: U32,
    /// `st_mode`.
    pub mode: U32,
    /// Zero.
    pub flags: U32,
    /// [`HeightAddr`]; ignored as a whole while `size` is 0.
    pub ha: U64,
    /// Bytes of contents. The tree holds garbage beyond.
    pub size: U64,
    /// Nanoseconds since 1970.
    pub mtime: I64,
    /// Nanoseconds since 1970.
    pub ctime: I64,
    /// Nanoseconds since 1970.
    pub atime: I64,
    /// Device number of a device node.
    pub rdev: U64,
    /// Block of extended attributes, or 0.
    pub xattr: U64,
    /// Room for later versions.
    pub unused: [u8; 48],
}

impl Inode {
    /// The change time: the later of the two stored times, or the stored change time if
    /// [`CTIME_ALONE`] is set.
    pub(crate) fn change_time(&self) -> Timestamp {
        let (mtime, ctime) = (self.mtime.get(), self.ctime.get());
        let alone = ctime & CTIME_ALONE != 0;
        Timestamp(if alone {
            ctime & !CTIME_ALONE
        } else {
            ctime.max(mtime)
        })
    }

    /// The word at byte `field`, an offset from [`at`].
    pub(crate) fn word(&self, field: u64) -> u64 {
        let bytes = &self.as_bytes()[field as usize..];
        bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
    }
}

/// The head of a directory entry, before its name. Entries start at multiples of 8 and never
/// cross a block.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct DirentHead {
    /// Inode number; 0: the entry is a hole.
    pub ino: U64,
    /// Bytes to the next entry; 0: the rest of the block is unused.
    pub rec_len: U16,
    /// [`vfs::FileType`].
    pub kind: u8,
    /// Bytes of the name, 1 to 255.
    pub name_len: u8,
}

/// Byte offsets of the fields that commits and time updates store one by one.
pub mod at {
    /// [`super::Super::root`].
    pub const SUPER_ROOT: u64 = 64;
    /// [`super::Super::mode`].
    pub const SUPER_MODE: u64 = 72;
    /// [`super::Super::root_copy`].
    pub const SUPER_ROOT_COPY: u64 = 4088;
    /// [`super::RootRecord::size`].
    pub const ROOT_SIZE: u64 = 8;
    /// [`super::Inode::uid`] and `gid`.
    pub const OWNER: u64 = 8;
    /// [`super::Inode::mode`] and `flags`.
    pub const MODE: u64 = 16;
    /// [`super::Inode::ha`].
    pub const HA: u64 = 24;
    /// [`super::Inode::size`].
    pub const SIZE: u64 = 32;
    /// [`super::Inode::mtime`].
    pub const MTIME: u64 = 40;
    /// [`super::Inode::ctime`].
    pub const CTIME: u64 = 48;
    /// [`super::Inode::atime`].
    pub const ATIME: u64 = 56;
    /// [`super::Inode::rdev`].
    pub const RDEV: u64 = 64;
    /// [`super::Inode::xattr`].
    pub const XATTR: u64 = 72;
    /// [`super::DirentHead::rec_len`]: the word whose store appends an entry to a block.
    pub const DIRENT_LEN: u64 = 8;
    /// [`super::DirentHead::kind`].
    pub const DIRENT_KIND: u64 = 10;
    /// [`super::DirentHead::name_len`].
    pub const DIRENT_NAME_LEN: u64 = 11;
}

/// Bytes of [`DirentHead`].
pub const DIRENT_HEAD: usize = 12;
/// Bytes of the smallest entry.
pub const DIRENT_MIN: usize = 16;
/// Bytes of the largest entry.
pub const DIRENT_MAX: usize = rec_len(vfs::NAME_MAX);

/// Bytes that an entry with a name of `name_len` bytes takes.
pub const fn rec_len(name_len: usize) -> usize {
    (DIRENT_HEAD + name_len).next_multiple_of(8)
}

const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(size_of::<Super>() == BLOCK as usize);
    assert!(offset_of!(Super, crc) == 56);
    assert!(offset_of!(Super, root) == at::SUPER_ROOT as usize);
    assert!(offset_of!(Super, mode) == at::SUPER_MODE as usize);
    assert!(offset_of!(Super, root_copy) == at::SUPER_ROOT_COPY as usize);
    assert!(size_of::<RootRecord>() == 16);
    assert!(offset_of!(RootRecord, size) == at::ROOT_SIZE as usize);
    assert!(size_of::<Inode>() == INODE as usize);
    assert!(offset_of!(Inode, uid) == at::OWNER as usize);
    assert!(offset_of!(Inode, gid) == at::OWNER as usize + 4);
    assert!(offset_of!(Inode, mode) == at::MODE as usize);
    assert!(offset_of!(Inode, ha) == at::HA as usize);
    assert!(offset_of!(Inode, size) == at::SIZE as usize);
    assert!(offset_of!(Inode, mtime) == at::MTIME as usize);
    assert!(offset_of!(Inode, ctime) == at::CTIME as usize);
    assert!(offset_of!(Inode, atime) == at::ATIME as usize);
    assert!(offset_of!(Inode, rdev) == at::RDEV as usize);
    assert!(offset_of!(Inode, xattr) == at::XATTR as usize);
    assert!(size_of::<DirentHead>() == DIRENT_HEAD);
    assert!(offset_of!(DirentHead, ino) == 0);
    assert!(offset_of!(DirentHead, rec_len) == at::DIRENT_LEN as usize);
    assert!(offset_of!(DirentHead, kind) == at::DIRENT_KIND as usize);
    assert!(offset_of!(DirentHead, name_len) == at::DIRENT_NAME_LEN as usize);
};
