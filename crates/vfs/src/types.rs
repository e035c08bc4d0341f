//! The vocabulary of [`FileSystem`](crate::FileSystem).

/// An inode number. Never 0 for a live inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Bytes without `/`.
    pub name: &'a [u8],
}

impl<'a> Name<'a> {
    /// The name `name` in `dir`.
    pub const fn new(dir: Ino, name: &'a [u8]) -> Self {
        Self { dir, name }
    }
}

/// Which nodes a call removes the names of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Removal {
    /// `unlink`: any type but a directory (`EISDIR`).
    Unlink,
    /// `rmdir`: an empty directory (`ENOTDIR`, `ENOTEMPTY`).
    Rmdir,
}

/// Where a directory listing continues: the cookie of the last entry seen; 0 starts.
/// A cookie stays valid, and means the same place, until the entry's name is removed;
/// after that it still means a place between the entries that surrounded it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cookie(pub u64);

/// A time: nanoseconds since 1970-01-01 UTC. Covers the years 1677 to 2262; values
/// outside are clamped where they enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The earliest time.
    pub const MIN: Self = Self(i64::MIN);
    /// The latest time.
    pub const MAX: Self = Self(i64::MAX);

    /// From seconds and nanoseconds (0 to 999,999,999), clamped to the range.
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

/// Who asks. File systems use it for ownership and, unless `checked`, for permissions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ctx {
    /// User id; 0 passes every permission check.
    pub uid: u32,
    /// Group id of new files, and for permission checks.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Process id, for messages only.
    pub pid: u32,
    /// The caller (the kernel, with `default_permissions`) has checked permissions
    /// already; the file system must not check again, since it may not know `groups`.
    pub checked: bool,
    /// The descriptor that is read was opened with `O_NOATIME`: the access time stays.
    pub noatime: bool,
}

impl Ctx {
    /// The super-user.
    pub fn root() -> Self {
        Self {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            pid: std::process::id(),
            checked: false,
            noatime: false,
        }
    }

    /// An unprivileged user without supplementary groups.
    pub fn user(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            ..Self::root()
        }
    }

    /// Whether permission checks are to be skipped.
    pub fn is_privileged(&self) -> bool {
        self.checked || self.uid == 0
    }

    /// Whether the caller belongs to `gid`.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// The type of an inode, with the values of `S_IFMT >> 12` (also `d_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
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
    /// From `S_IFMT >> 12`.
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

    /// From the type bits of a `st_mode`.
    pub fn from_mode(mode: u32) -> Option<Self> {
        Self::from_code(((mode >> 12) & 0xf) as u8)
    }

    /// As the type bits of a `st_mode`.
    pub fn mode_bits(self) -> u32 {
        u32::from(self as u8) << 12
    }
}

/// What `stat` shows of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Changes whenever the inode number is reused.
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
    /// What chattr(1) sets.
    pub flags: FileFlags,
}

bitflags::bitflags! {
    /// Inode flags of chattr(1) that change what calls do.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct FileFlags: u32 {
        /// `i`: neither the inode nor its contents change, and it gets and loses no names.
        const IMMUTABLE = 1;
        /// `a`: contents, or the names of a directory, are added only.
        const APPEND = 2;
        /// `S`: changes are durable when the call returns.
        const SYNC = 4;
        /// `D`: the same for the names of a directory.
        const DIRSYNC = 8;
        /// `A`: reads do not move the access time.
        const NOATIME = 16;
    }
}

impl FileFlags {
    /// Those that forbid changes of the inode itself, and of its names.
    pub const FIXED: Self = Self::IMMUTABLE.union(Self::APPEND);
}

impl Attr {
    /// The whole `st_mode`.
    pub fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.perm
    }
}

/// How `setattr` sets a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// To the file system's clock (`UTIME_NOW`).
    Now,
    /// To a given time.
    At(Timestamp),
}

/// Attributes to change; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    /// Change time; front ends rarely have it. `None` means now.
    pub ctime: Option<Timestamp>,
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
    /// Pass this to continue after this entry.
    pub cookie: Cookie,
}

bitflags::bitflags! {
    /// `renameat2` flags. `NO_REPLACE` and `EXCHANGE` exclude each other.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct RenameFlags: u32 {
        /// Fail with `EEXIST` if the new name exists.
        const NO_REPLACE = 1;
        /// Swap the two names; both must exist.
        const EXCHANGE = 2;
    }

    /// What an open file may do. Front ends that do not track opens never pass them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct OpenFlags: u32 {
        /// Reads.
        const READ = 1;
        /// Writes.
        const WRITE = 2;
        /// `O_TRUNC`: the file is cut to length 0 by the open.
        const TRUNCATE = 4;
    }
}

/// What `fallocate` is to do with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fallocate {
    /// Take space for the holes of the range; extend the size unless `keep_size`.
    Allocate {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
    /// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`: the range reads as zeros, its
    /// whole blocks are given back.
    PunchHole,
    /// `FALLOC_FL_ZERO_RANGE`: the range reads as zeros; extends the size unless
    /// `keep_size`.
    ZeroRange {
        /// `FALLOC_FL_KEEP_SIZE`.
        keep_size: bool,
    },
}

/// What `seek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SeekKind {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`; the end of the file counts as a hole.
    Hole,
}

/// How `setxattr` treats an existing or missing attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// `XATTR_CREATE`: `EEXIST` if it exists.
    Create,
    /// `XATTR_REPLACE`: `ENODATA` if it does not.
    Replace,
}

/// What `statfs` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks that any caller may use: less those kept for the super-user.
    pub blocks_avail: u64,
    /// Inodes in all (that could exist).
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
