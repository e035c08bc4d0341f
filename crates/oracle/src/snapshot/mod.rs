//! The whole visible state of a file system as a value. It is taken through the trait, then
//! compared, hashed and printed.
//!
//! A snapshot holds what callers see: paths, attributes, contents, targets, extended
//! attributes, and which paths share an inode. It does not hold the layout of files: holes
//! equal zeros, and space, inode numbers, cookies and sizes of directories are left out. Times
//! are separate, and may be compared or not.
//!
//! To take a snapshot ends on any file system, also a damaged one, and gives back every
//! reference. It reads files, which updates access times unless the mount forbids it.

mod compare;
mod take;

pub use take::SnapshotError;

use vfs::{Attr, FileSystem, FileType, Timestamp};

/// Length in bytes up to which files are kept whole; longer ones are kept as a hash.
pub const KEPT_MAX: u64 = 64 << 10;

/// The state of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// All names, in order of path.
    names: Vec<Name>,
    /// All inodes, in an order that depends on the names only.
    nodes: Vec<Node>,
    times: Vec<Times>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    path: Vec<u8>,
    /// Index of the inode in `nodes`.
    node: usize,
}

/// An inode of a [`Snapshot`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    /// Type.
    pub kind: FileType,
    /// Permission bits, set-id and sticky included.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Link count.
    pub nlink: u32,
    /// Length in bytes; 0 for a directory.
    pub size: u64,
    /// Contents.
    pub content: Content,
    /// Extended attributes, in order of name.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// The contents of an inode of a [`Snapshot`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Content {
    /// A directory or special file.
    None,
    /// A file of at most [`KEPT_MAX`] bytes.
    Bytes(Vec<u8>),
    /// A longer file: XXH3 of the 4 KiB pieces that are not all zeros, and where they are.
    Hash(u128),
    /// A symbolic link's target.
    Target(Vec<u8>),
}

/// The times of an inode of a [`Snapshot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Times {
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
}

impl Times {
    /// The times of an inode with these attributes.
    pub fn of(attr: &Attr) -> Self {
        Self {
            atime: attr.atime,
            mtime: attr.mtime,
            ctime: attr.ctime,
        }
    }
}

impl Snapshot {
    /// Takes a snapshot of at most 4 million paths and 4 GiB.
    ///
    /// # Errors
    /// A call failed, results contradict each other, or there is too much. Contradictions are a
    /// directory reached twice, a listed name that cannot be looked up, or a short read.
    pub fn take(fs: &dyn FileSystem) -> Result<Self, SnapshotError> {
        take::take(fs, &take::Limits::default())
    }

    /// Whether all except the times is equal.
    pub fn is_same_except_times(&self, other: &Self) -> bool {
        self.names == other.names && self.nodes == other.nodes
    }

    /// Whether the times are equal. Valid for snapshots that are the same except for the times.
    pub fn has_same_times(&self, other: &Self) -> bool {
        self.times == other.times
    }

    /// The inode and its times at an absolute path; `/` is the root.
    pub fn get(&self, path: &[u8]) -> Option<(&Node, &Times)> {
        let at = self.names.binary_search_by(|name| (*name.path).cmp(path));
        let node = self.names[at.ok()?].node;
        Some((&self.nodes[node], &self.times[node]))
    }

    /// All paths, in order, each with its inode and its times.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &Node, &Times)> {
        self.names
            .iter()
            .map(|name| (&*name.path, &self.nodes[name.node], &self.times[name.node]))
    }

    /// Number of paths.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// False, since there is always a root.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

#[cfg(test)]
mod tests;
