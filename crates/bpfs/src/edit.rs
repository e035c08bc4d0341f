//! Edits: the visible changes of an operation, stated by tree and range of bytes.

use smallvec::SmallVec;
use vfs::Ino;

/// The number that stands for the inode file as the tree of an edit.
pub(crate) const INODE_FILE: Ino = Ino(0);

/// The effect of an edit on its range of bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What<'a> {
    /// Stores these bytes.
    Bytes(&'a [u8]),
    /// Stores one aligned word.
    Word(u64),
    /// Stores zeros where a leaf is; a hole stays a hole.
    Zeros,
    /// Removes the leaves, which then read as zeros. Whole blocks only.
    Hole,
    /// Adds a zeroed leaf where there is none.
    Reserve,
    /// Adds a leaf with any contents where there is none. Whole blocks beyond the end only.
    Blank,
}

/// A change of the bytes `start..end` of a tree: a file's, or [`INODE_FILE`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edit<'a> {
    pub tree: Ino,
    pub start: u64,
    pub end: u64,
    pub what: What<'a>,
}

/// Edits; sorted by tree and start once they are staged.
pub(crate) type Edits<'a> = SmallVec<[Edit<'a>; 4]>;
