//! The errors of a store, and the findings of its checker.

use crate::identity::Identity;
use std::fmt;
use std::io;

/// The reason why a call on a store failed.
#[derive(Debug, thiserror::Error)]
pub enum ScmError {
    /// A system call failed.
    #[error("cannot {doing} {what}: {source}")]
    System {
        /// The failed action ("open", "allocate room in", ...).
        doing: &'static str,
        /// The file of the action.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The file system or device has no room for an extent.
    #[error("no room for {pages} pages in {what}: free some, or enlarge its file system")]
    NoRoom {
        /// The file without room.
        what: String,
        /// Pages of the extent.
        pages: u64,
    },
    /// A file cannot be mapped.
    #[error(transparent)]
    Open(#[from] medium::OpenError),
    /// The memory of the table failed.
    #[error("the table of the store failed: {0}; open the store again")]
    Memory(#[from] medium::MediumError),
    /// The store violates its format.
    #[error("the store is damaged: {0}")]
    Damaged(Finding),
    /// A file of the store could be opened by others.
    #[error(
        "{what} has mode {mode:04o} and owner {owner}: others could open it; \
             chmod it to {expected:04o} and chown it to this user"
    )]
    Exposed {
        /// The file or directory.
        what: String,
        /// Its permission bits.
        mode: u32,
        /// Its owner.
        owner: u32,
        /// The permission bits that are needed.
        expected: u32,
    },
    /// An argument is not possible.
    #[error("{0}")]
    Invalid(String),
    /// No partition has this name, or this client may not map it.
    #[error("there is no partition '{0}' that you may map")]
    NoPartition(String),
    /// A name is in use.
    #[error("there is a partition '{0}' already")]
    Exists(String),
    /// No gap between the partitions is large enough.
    #[error("no {pages} consecutive pages of the store are free: remove a partition")]
    Full {
        /// Pages of the new partition.
        pages: u64,
    },
    /// All slots for records are in use.
    #[error("the table has no slot for another partition or access list: remove one")]
    TableFull,
    /// The client lacks a right.
    #[error("access denied: {0}")]
    Denied(String),
    /// The store keeps all extents in one file, so that they have one identity.
    #[error(
        "a store of one file has one identity ({only}), not {identity}: use a directory, or access \
         these extents through the service"
    )]
    OneIdentity {
        /// The identity of the store.
        only: Identity,
        /// The one that was requested.
        identity: Identity,
    },
    /// Pages do not have the identity that a change requires.
    #[error("page {page} has the identity {found}, not {expected}")]
    WrongIdentity {
        /// The first such page of the partition.
        page: u64,
        /// Its identity.
        found: Identity,
        /// That which the change requires.
        expected: Identity,
    },
    /// The manager refused a request, or its reply was not understood.
    #[error("the manager refused: {0}")]
    Refused(String),
}

impl ScmError {
    pub(crate) fn system(
        doing: &'static str,
        what: impl Into<String>,
        e: impl Into<io::Error>,
    ) -> Self {
        Self::System {
            doing,
            what: what.into(),
            source: e.into(),
        }
    }
}

impl From<Finding> for ScmError {
    fn from(finding: Finding) -> Self {
        Self::Damaged(finding)
    }
}

/// A violated invariant of the format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The invariant, numbered as in `format.md`.
    pub invariant: &'static str,
    /// One line: the structure, its place, and what is wrong.
    pub what: String,
}

impl Finding {
    pub(crate) fn new(invariant: &'static str, what: impl Into<String>) -> Self {
        let what = what.into();
        Self { invariant, what }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.what, self.invariant)
    }
}
