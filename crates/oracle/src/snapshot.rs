//! The whole visible state of a file system as a value: taken through the trait, then
//! compared, hashed and explained.
//!
//! A snapshot sees what callers see: paths, attributes, contents, targets, extended
//! attributes, which paths share an inode. It does not see how files are laid out: holes
//! equal zeros, and space taken, inode numbers, cookies and sizes of directories are
//! left out. Times are kept apart, to be compared or not.
//!
//! Taking one gives back every reference it takes and ends on any file system, however
//! hostile. It reads files and so moves access times, unless the file system is mounted
//! not to.

mod compare;
mod take;

pub use take::SnapshotError;

use vfs::{Attr, FileSystem, FileType, Timestamp};

/// Files of up to this many bytes are kept whole; longer ones as a hash.
pub const KEPT_MAX: u64 = 64 << 10;

/// The state of a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// In order of path.
    names: Vec<Name>,
    /// In an order that depends on the names only.
    nodes: Vec<Node>,
    times: Vec<Times>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    path: Vec<u8>,
    /// Index of its inode.
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
    /// What is in it.
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
    /// Those of an inode with these attributes.
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
    /// A call failed, answers contradict each other (a directory met twice, a listed
    /// name that cannot be looked up, a short read), or there is too much.
    pub fn take(fs: &dyn FileSystem) -> Result<Self, SnapshotError> {
        take::take(fs, &take::Limits::default())
    }

    /// Whether all but the times is equal.
    pub fn is_same_except_times(&self, other: &Self) -> bool {
        self.names == other.names && self.nodes == other.nodes
    }

    /// Whether the times are equal. Means something for snapshots that are the same
    /// otherwise.
    pub fn has_same_times(&self, other: &Self) -> bool {
        self.times == other.times
    }

    /// What is at an absolute path; `/` is the root.
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

    /// Never: there is always a root.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

#[cfg(test)]
mod tests;
