//! The files of a store, as the store uses them.
//!
//! A store needs a table, an identity table for each partition, and room for the extents of each
//! class. [`Files`] is the interface: directories, single files and the simulation of the crash
//! tests implement it.

use crate::error::ScmError;
use crate::identity::Identity;
use medium::{Pmem, Rule};
use std::os::fd::OwnedFd;

/// Consecutive pages of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first page.
    pub first: u64,
    /// The number of pages.
    pub pages: u64,
}

impl Run {
    /// The page after the last one.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.pages
    }

    /// Whether the run has pages, all inside a partition of `pages` pages.
    pub(crate) fn is_within(&self, pages: u64) -> bool {
        let end = self.first.checked_add(self.pages);
        self.pages > 0 && end.is_some_and(|end| end <= pages)
    }
}

/// The number of a partition, and its pages in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// The number, which names its files.
    pub number: u32,
    /// The first page.
    pub first_page: u64,
    /// The number of pages.
    pub pages: u64,
}

/// All pages of a partition with one identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Class {
    /// The partition.
    pub place: Place,
    /// The identity.
    pub identity: Identity,
}

/// The part of a partition that a descriptor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The identity table.
    Identities,
    /// The pages of a class.
    Class(Identity),
}

/// A descriptor, and the place of the part in its file.
#[derive(Debug)]
pub struct Share {
    /// Open for reading, or for reading and writing.
    pub descriptor: OwnedFd,
    /// Offset of the part in bytes.
    pub base: u64,
    /// Bytes of the part.
    pub bytes: u64,
}

/// The files of a store. The store calls the functions that change them serially.
///
/// Contents, room and sizes of a class are durable after [`sync`](Files::sync); before that, a
/// crash may leave any part of the changes.
#[allow(clippy::missing_errors_doc)] // ScmError of the system call
pub trait Files: Send + Sync {
    /// The memory of the tables.
    type Memory: Pmem;

    /// The table of the store.
    fn table(&self) -> &Self::Memory;

    /// Whether extents can have this identity. The error is the reason.
    fn allow(&self, identity: Identity) -> Result<(), ScmError>;

    /// Makes the identity table of a partition, of zeros. A fence of its memory makes it durable.
    fn make(&self, place: Place) -> Result<(), ScmError>;

    /// Removes all that belongs to a partition which the table does not have any more.
    fn remove(&self, place: Place) -> Result<(), ScmError>;

    /// Removes all that belongs to partitions other than these: a crash may have left it.
    fn keep(&self, places: &[Place]) -> Result<(), ScmError>;

    /// The identity table of a partition: a 32-bit number for each page.
    fn identities(&self, place: Place) -> Result<Self::Memory, ScmError>;

    /// The identities of a partition's classes that may have room.
    fn classes(&self, place: Place) -> Result<Vec<Identity>, ScmError>;

    /// Makes the pages zeros with room of their own, so that no later store to them fails.
    fn allocate(&self, class: Class, run: Run) -> Result<(), ScmError>;

    /// Copies the pages from one class to another, in which they have room.
    fn copy(&self, from: Class, to: Class, run: Run) -> Result<(), ScmError>;

    /// Makes the pages zeros without room.
    fn punch(&self, class: Class, run: Run) -> Result<(), ScmError>;

    /// Makes the changes of a class durable.
    fn sync(&self, class: Class, rule: Rule) -> Result<(), ScmError>;

    /// Restores the size of a class, and the room of the pages in `runs`, which are those of its
    /// extents. Contents stay.
    fn restore(&self, class: Class, runs: &[Run]) -> Result<(), ScmError>;

    /// Bytes of room that a class takes.
    fn room_bytes(&self, class: Class) -> Result<u64, ScmError>;

    /// The first page from `run` on, inside it, that has contents in the class.
    fn contents(&self, class: Class, run: Run) -> Result<Option<u64>, ScmError>;

    /// Opens a part of a partition for a client.
    fn share(&self, place: Place, part: Part, writable: bool) -> Result<Share, ScmError>;
}
