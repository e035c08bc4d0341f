//! The types of [`FileSystem`](crate::FileSystem).

use serde::{Deserialize, Serialize};

/// An inode number. Never 0 for a live inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

impl std::fmt::Display for Ino {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'a> {
    /// The directory.
    pub dir: Ino,
    /// The name: bytes without `/`.
    pub name: &'a [u8],
}

impl<'a> Name<'a> {
    /// The name `name` in `dir`.
    pub const fn new(dir: Ino, name: &'a [u8]) -> Self {
        Self { dir, name }
    }
}

/// The types of nodes whose names a call removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Removal {
    /// `unlink`: any type but a directory (`EISDIR`).
    Unlink,
    /// `rmdir`: an empty directory (`ENOTDIR`, `ENOTEMPTY`).
    Rmdir,
}

/// The place where a directory listing continues: the cookie of the last entry seen; 0 starts.
/// A cookie denotes the same place until the name of its entry is removed. After that it
/// denotes a place between the former neighbours of the entry.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Cookie(pub u64);

/// A time: nanoseconds since 1970-01-01 UTC. The range covers the years 1677 to 2262.
/// Conversions clamp values outside.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The earliest time.
    pub const MIN: Self = Self(i64::MIN);
    /// The latest time.
    pub const MAX: Self = Self(i64::MAX);

    /// The time of seconds and nanoseconds (0 to 999,999,999), clamped to the range.
    pub fn from_parts(secs: i64, nanos: u32) -> Self {
        let total = i128::from(secs) * 1_000_000_000 + i128::from(nanos);
        Self(total.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
    }

    /// Whole seconds, rounded down, and the nanoseconds that remain.
    pub fn parts(self) -> (i64, u32) {
        (
            self.0.div_euclid(1_000_000_000),
            self.0.rem_euclid(1_000_000_000) as u32,
        )
    }
}

/// The caller. File systems use it for ownership and, unless `checked`, for permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ctx {
    /// User id; 0 passes every permission check.
    pub uid: u32,
    /// Group id of new files, and for permission checks.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Id of the process, or of one of its threads; 0 if unknown.
    pub pid: u32,
    /// The kernel has checked permissions already (`default_permissions`). The file system must
    /// not check again, since `groups` may be incomplete.
    pub checked: bool,
    /// The descriptor was opened with `O_NOATIME`: the access time stays.
    pub noatime: bool,
    /// The kernel writes pages of a mapping back, for a process that it does not name.
    pub is_write_back: bool,
    /// A change of contents or owner drops the set-id bits, also one of a privileged user: the kernel has asked for that.
    pub drops_set_id: bool,
    /// The sets that changes of the call join.
    pub sets: crate::Sets,
}

impl Ctx {
    /// The super-user, in this process.
    pub fn root() -> Self {
        Self::user(0, 0)
    }

    /// A user without supplementary groups, in this process. Its id takes a system call.
    pub fn user(uid: u32, gid: u32) -> Self {
        Self {
            pid: std::process::id(),
            ..Self::somewhere(uid, gid)
        }
    }

    /// A user without supplementary groups, in a process that is not known.
    pub const fn somewhere(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            groups: Vec::new(),
            pid: 0,
            checked: false,
            noatime: false,
            is_write_back: false,
            drops_set_id: false,
            sets: crate::Sets::NONE,
        }
    }

    /// Whether permission checks are skipped.
    pub fn is_privileged(&self) -> bool {
        self.checked || self.uid == 0
    }

    /// Whether the caller belongs to `gid`.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// The type of an inode, with the values of `S_IFMT >> 12` (also `d_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[repr(u8)]
pub enum FileType {
    /// Named pipe.
    Fifo = 1,
    /// Character device.
    CharDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device.
    BlockDevice = 6,
    /// Regular file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Socket.
    Socket = 12,
}

impl FileType {
    /// The type of the code `S_IFMT >> 12`.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// The type of a `st_mode`.
    pub fn from_mode(mode: u32) -> Option<Self> {
        Self::from_code(((mode >> 12) & 0xf) as u8)
    }

    /// The type bits of a `st_mode`.
    pub fn mode_bits(self) -> u32 {
        u32::from(self as u8) << 12
    }
}

/// The attributes of an inode, as `stat` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Generation: changes whenever the inode number is reused.
    pub generation: u64,
    /// Type.
    pub kind: FileType,
    /// Permission bits, including set-id and sticky (`mode & 0o7777`).
    pub perm: u32,
    /// Number of names (directories: 2 plus the number of subdirectories).
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, else 0 (encoded as Linux `dev_t` of 32 bits).
    pub rdev: u32,
    /// Length in bytes.
    pub size: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Inode flags, as chattr(1) sets them.
    pub flags: FileFlags,
}

bitflags::bitflags! {
    /// Inode flags of chattr(1) that change the effect of calls.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    pub struct FileFlags: u32 {
        /// `i`: the inode, its contents and its names do not change.
        const IMMUTABLE = 1;
        /// `a`: contents, or names in a directory, can only be added.
        const APPEND = 2;
        /// `S`: changes are durable when the call returns.
        const SYNC = 4;
        /// `D`: changes of names in a directory are durable when the call returns.
        const DIRSYNC = 8;
        /// `A`: reads do not update the access time.
        const NOATIME = 16;
    }
}

impl FileFlags {
    /// The flags that forbid changes of the inode itself, and of its names.
    pub const FIXED: Self = Self::IMMUTABLE.union(Self::APPEND);
}

impl Attr {
    /// The whole `st_mode`.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.perm
    }
}

/// The value to which `setattr` sets a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetTime {
    /// The time of the file system's clock (`UTIME_NOW`).
    Now,
    /// A given time.
    At(Timestamp),
}

/// Attributes to change; `None` keeps one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SetAttr {
    /// Permission bits (`mode & 0o7777`).
    pub perm: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length in bytes (truncate or extend).
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time; `None` sets it to now. Front ends rarely set it.
    pub ctime: Option<Timestamp>,
}

impl SetAttr {
    /// Whether the change may change who may use the inode.
    pub fn changes_rights(&self) -> bool {
        self.perm.is_some() || self.uid.is_some() || self.gid.is_some()
    }
}

/// One entry of a directory listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Inode number.
    pub ino: Ino,
    /// Type.
    pub kind: FileType,
    /// Name, as bytes; includes `.` and `..`.
    pub name: &'a [u8],
    /// The cookie by which a listing continues after this entry.
    pub cookie: Cookie,
}

bitflags::bitflags! {
    /// `renameat2` flags. `NO_REPLACE` and `EXCHANGE` exclude each other.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    pub struct RenameFlags: u32 {
        /// Fail with `EEXIST` if the new name exists.
        const NO_REPLACE = 1;
        /// Swap the two names; both must exist.
        const EXCHANGE = 2;
    }

    /// The access of an open file. Front ends that do not track opens never pass these flags.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
    pub struct OpenFlags: u32 {
        /// The file may be read.
        const READ = 1;
        /// The file may be written.
        const WRITE = 2;
        /// `O_TRUNC`: the open truncates the file to length 0.
        const TRUNCATE = 4;
    }
}

/// The effect of `fallocate` on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fallocate {
    /// Takes space for the holes of the range, and extends the size unless `keep_size`.
    Allocate {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
    /// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`: the range reads as zeros, and its whole
    /// blocks are freed.
    PunchHole,
    /// `FALLOC_FL_ZERO_RANGE`: the range reads as zeros; extends the size unless
    /// `keep_size`.
    ZeroRange {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
}

/// The target of `seek`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SeekKind {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`; the end of the file counts as a hole.
    Hole,
}

/// The treatment of an existing or missing attribute by `setxattr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// `XATTR_CREATE`: `EEXIST` if it exists.
    Create,
    /// `XATTR_REPLACE`: `ENODATA` if it does not.
    Replace,
}

/// Space and inodes of a file system, as `statfs` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatFs {
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks without those reserved for the super-user.
    pub blocks_avail: u64,
    /// Number of inodes that could exist.
    pub inodes: u64,
    /// Inodes that could still be made.
    pub inodes_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// Longest file name in bytes.
pub const NAME_MAX: usize = 255;

/// Longest symbolic-link target in bytes.
pub const SYMLINK_MAX: usize = 4095;

/// Largest file size in bytes (`i64::MAX`, as in the kernel).
pub const SIZE_MAX: u64 = i64::MAX as u64;
