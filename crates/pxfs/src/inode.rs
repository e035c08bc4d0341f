//! Inodes: the words of an object that belong to the file system.
//!
//! | word | contents |
//! |---|---|
//! | 0 | `st_mode` (lower half), device number (upper half) |
//! | 1 | user id (lower half), group id (upper half) |
//! | 2 | link count (lower half); in the upper half 1 if the object has extended attributes, plus 2 if it never had a name and may get one |
//! | 3, 4, 5 | times of access, of modification, of change, in nanoseconds since 1970 |

use crate::error::{Res, damaged};
use aerie_objects::{Kind, Load, ObjectId, PAGE, Superblock, Transaction};
use medium::Pmem;
use vfs::{Attr, FileFlags, FileType, Ino, Timestamp};

/// The number of the word with the time of the last access.
pub(crate) const ATIME: u64 = 3;

/// Largest file in bytes: what a tree of pages can hold.
pub const SIZE_MAX: u64 = 1 << 48;

/// The inode number of an object. The root has 1, as everywhere.
pub(crate) fn number(superblock: &Superblock, object: ObjectId) -> Ino {
    match object == superblock.root {
        true => Ino::ROOT,
        false => Ino(object.to_bits()),
    }
}

/// The object of an inode number, which need not exist.
pub(crate) fn object(superblock: &Superblock, ino: Ino) -> Option<ObjectId> {
    match ino {
        Ino::ROOT => Some(superblock.root),
        Ino(bits) => ObjectId::from_bits(bits),
    }
}

/// A word of two halves.
pub(crate) fn halves(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// An object with its attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) object: ObjectId,
    pub(crate) attr: Attr,
    pub(crate) has_xattrs: bool,
    /// It was made without a name, and may get one (`O_TMPFILE`).
    pub(crate) is_nameable: bool,
}

const HAS_XATTRS: u32 = 1;
const IS_NAMEABLE: u32 = 2;

impl Inode {
    pub(crate) fn is_dir(&self) -> bool {
        self.attr.kind == FileType::Directory
    }

    /// Loads an inode.
    pub(crate) fn load<M: Load + ?Sized>(
        memory: &M,
        superblock: &Superblock,
        object: ObjectId,
    ) -> Res<Self> {
        let header = aerie_objects::header(memory, object)?;
        let [mode, owner, links, ..] = header.own;
        let (mode, rdev) = (mode as u32, (mode >> 32) as u32);
        let is_dir = object.kind() == Kind::Collection;
        let kind =
            FileType::from_mode(mode).filter(|kind| is_dir == (*kind == FileType::Directory));
        let kind = kind.ok_or_else(|| damaged(format_args!("{object} has mode {mode:#o}")))?;
        let time = |n: u64| Timestamp(header.own[n as usize] as i64);
        let attr = Attr {
            ino: number(superblock, object),
            generation: header.generation,
            kind,
            perm: mode & vfs::perm::PERM_MASK,
            nlink: links as u32,
            uid: owner as u32,
            gid: (owner >> 32) as u32,
            rdev,
            size: match is_dir {
                true => header.pages.max(1) * PAGE,
                false => header.size,
            },
            blocks: header.pages * (PAGE / 512),
            blksize: PAGE as u32,
            atime: time(ATIME),
            mtime: time(4),
            ctime: time(5),
            flags: FileFlags::empty(),
        };
        let bits = (links >> 32) as u32;
        Ok(Self {
            object,
            attr,
            has_xattrs: bits & HAS_XATTRS != 0,
            is_nameable: bits & IS_NAMEABLE != 0,
        })
    }

    /// Stores the attributes, as a part of a transaction. The size is stored by itself.
    pub(crate) fn store<P: Pmem>(&self, tx: &mut Transaction<'_, P>) -> Res<()> {
        let attr = &self.attr;
        let bits =
            u32::from(self.has_xattrs) * HAS_XATTRS + u32::from(self.is_nameable) * IS_NAMEABLE;
        let words = [
            halves(attr.mode(), attr.rdev),
            halves(attr.uid, attr.gid),
            halves(attr.nlink, bits),
            attr.atime.0 as u64,
            attr.mtime.0 as u64,
            attr.ctime.0 as u64,
        ];
        Ok(tx.set_first_own(self.object, &words)?)
    }
}
