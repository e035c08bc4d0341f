//! Errors of making, opening and using a file system.

use medium::MediumError;
use vfs::Errno;

/// The reason why an image could not be made or opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The medium failed.
    #[error("{0}")]
    Medium(#[from] MediumError),
    /// The medium has no SoupFS.
    #[error("not a SoupFS file system (no SoupFS signature in the superblock); make one with mkfs")]
    NotSoupFs,
    /// A SoupFS of an unsupported version.
    #[error("SoupFS format version {0} is not supported (this program supports version 1)")]
    Version(u32),
    /// The medium does not hold all of the file system, or is of a size that the format cannot use.
    #[error("the medium has {have} bytes, and the file system needs {need}")]
    Size {
        /// Bytes needed.
        need: u64,
        /// Bytes of the medium.
        have: u64,
    },
    /// A structure breaks the format.
    #[error("{0}; run fsck for a full report")]
    Corrupt(String),
    /// The system refuses a thread.
    #[error("cannot start the thread that makes changes durable: {0}")]
    Thread(String),
}

/// The reason why an operation stopped. Becomes an errno where the operation ends.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The error of the call, as it is returned.
    Errno(Errno),
    /// No free memory. The call may try again after the next round of a persister.
    Full,
    /// The call depends on further names of directories, which were not read. It tries again when they
    /// are.
    NamesUnread,
    /// The medium failed: `EIO`.
    Medium(MediumError),
    /// The image breaks the format: `EUCLEAN`.
    Corrupt(String),
}

pub(crate) type Res<T> = std::result::Result<T, Fault>;

impl Fault {
    /// The errno for the caller. The cause is written to the program's log.
    pub(crate) fn errno(self) -> Errno {
        match self {
            Self::Errno(e) => e,
            Self::Full => Errno::NOSPC,
            Self::NamesUnread => Errno::AGAIN,
            Self::Medium(e) => {
                tracing::error!("{e}");
                Errno::IO
            }
            Self::Corrupt(what) => {
                tracing::error!("{what}; run fsck for a full report");
                Errno::UCLEAN
            }
        }
    }
}

impl From<Errno> for Fault {
    fn from(e: Errno) -> Self {
        Self::Errno(e)
    }
}

impl From<MediumError> for Fault {
    fn from(e: MediumError) -> Self {
        Self::Medium(e)
    }
}

/// The fault of an impossible value.
#[cold]
pub(crate) fn corrupt(what: std::fmt::Arguments<'_>) -> Fault {
    Fault::Corrupt(what.to_string())
}
