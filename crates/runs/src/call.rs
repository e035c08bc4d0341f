//! The calls of a run.

use crate::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};
use vfs::FileType;

/// An inode of a run. Numbers are not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Node(pub u64);

impl Node {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

impl Display for Node {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "inode {}", self.0)
    }
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The directory.
    pub dir: Node,
    /// The name.
    pub name: Bytes,
}

impl Place {
    /// The name `name` in `dir`.
    pub fn new(dir: Node, name: &[u8]) -> Self {
        Self {
            dir,
            name: name.into(),
        }
    }
}

/// Bytes of the run's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blob {
    /// First byte.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
}

/// The type of a new inode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, with its target.
    Symlink(Bytes),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device, with its number.
    CharDevice(u32),
    /// A block device, with its number.
    BlockDevice(u32),
}

impl Kind {
    /// The type as `stat` shows it.
    pub fn file_type(&self) -> FileType {
        match self {
            Self::File => FileType::Regular,
            Self::Directory => FileType::Directory,
            Self::Symlink(_) => FileType::Symlink,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
            Self::CharDevice(_) => FileType::CharDevice,
            Self::BlockDevice(_) => FileType::BlockDevice,
        }
    }

    /// The type of an inode. `target`: of a symbolic link; `rdev`: of a device.
    pub fn of(kind: FileType, target: &[u8], rdev: u32) -> Self {
        match kind {
            FileType::Regular => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink(target.into()),
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharDevice => Self::CharDevice(rdev),
            FileType::BlockDevice => Self::BlockDevice(rdev),
        }
    }
}

/// A call that changed something, or asked for order or durability. Calls that failed are not
/// part of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "kebab-case")]
pub enum Call {
    /// A new inode; without a name if `at` is `None` (`O_TMPFILE`).
    Make {
        /// Its number.
        node: Node,
        /// Its name.
        at: Option<Place>,
        /// Its type.
        kind: Kind,
        /// Permission bits.
        perm: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
    },
    /// A further name.
    Link {
        /// The inode.
        node: Node,
        /// The new name.
        at: Place,
    },
    /// `unlink` or `rmdir`.
    Remove {
        /// The name.
        at: Place,
    },
    /// `rename`, which may replace the target.
    Rename {
        /// The old name.
        from: Place,
        /// The new name.
        to: Place,
        /// `RENAME_EXCHANGE`.
        exchange: bool,
    },
    /// Data at an offset. The file grows if they end past its end.
    Write {
        /// The file.
        node: Node,
        /// Offset in bytes.
        off: u64,
        /// The data.
        data: Blob,
    },
    /// A new length.
    SetSize {
        /// The file.
        node: Node,
        /// Length in bytes.
        size: u64,
    },
    /// Zeros in a range (`fallocate`); the length stays.
    Zero {
        /// The file.
        node: Node,
        /// Offset in bytes.
        off: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Owner, group or permission bits.
    SetAttr {
        /// The inode.
        node: Node,
        /// Permission bits.
        perm: Option<u32>,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
    },
    /// An extended attribute; `None` removes it.
    SetXattr {
        /// The inode.
        node: Node,
        /// Name of the attribute.
        name: Bytes,
        /// Its value.
        value: Option<Bytes>,
    },
    /// `fsync`, of a file or a directory; `fdatasync` with `data_only`.
    Sync {
        /// The inode.
        node: Node,
        /// Whether only the data were asked for.
        data_only: bool,
        /// The offset and the length of the data, in bytes, if it was a synchronous write or `msync`. Linux writes back
        /// their pages only (`generic_write_sync`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        range: Option<(u64, u64)>,
    },
    /// `sync` or `syncfs`.
    SyncAll,
    /// Order without durability: everything before is there if something after is.
    Barrier,
    /// The last descriptor of a file that was open for writing was closed.
    Close {
        /// The file.
        node: Node,
    },
    /// The program has written to its standard output: a promise to the outside.
    Output {
        /// The bytes that it has written.
        data: Blob,
    },
}

impl Call {
    /// Whether the call changes files.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Make { .. }
            | Self::Link { .. }
            | Self::Remove { .. }
            | Self::Rename { .. }
            | Self::Write { .. }
            | Self::SetSize { .. }
            | Self::Zero { .. }
            | Self::SetAttr { .. }
            | Self::SetXattr { .. } => true,
            Self::Sync { .. }
            | Self::SyncAll
            | Self::Barrier
            | Self::Close { .. }
            | Self::Output { .. } => false,
        }
    }
}
