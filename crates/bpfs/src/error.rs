//! Errors of making, opening and using a file system.

use medium::MediumError;
use vfs::Errno;

/// The reason why an image could not be made, opened or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The medium failed.
    #[error("{while_doing}: {source}")]
    Medium {
        /// The step that failed.
        while_doing: &'static str,
        /// The medium's error.
        source: MediumError,
    },
    /// The medium has no BPFS.
    #[error("not a BPFS file system (no BPFS signature in the super block); make one with mkfs")]
    NotBpfs,
    /// A BPFS of an unsupported version.
    #[error("BPFS format version {0} is not supported (this program supports version 1)")]
    Version(u32),
    /// The medium does not hold all of the file system, or is too small for one.
    #[error("the medium has {have} bytes but {what} needs {need}")]
    Size {
        /// The structure that needs the space.
        what: &'static str,
        /// Bytes needed.
        need: u64,
        /// Bytes of the medium.
        have: u64,
    },
    /// A structure breaks the format.
    #[error("{0}; run fsck for a full report")]
    Corrupt(String),
    /// The redo log holds a committed record, and the mount may not write.
    #[error("the redo log must be replayed first; recover it, or mount read-write once")]
    NeedsRecovery,
    /// An option that this image or this mount does not accept.
    #[error("{0}")]
    Option(String),
}

impl Error {
    /// An error of the medium in the step `while_doing`.
    pub(crate) fn medium(while_doing: &'static str) -> impl Fn(MediumError) -> Self {
        move |source| Self::Medium {
            while_doing,
            source,
        }
    }
}

/// The reason why an operation stopped. Becomes an errno where the operation ends.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The error of the call, as it is returned.
    Errno(Errno),
    /// The medium failed: `EIO`.
    Medium(MediumError),
    /// The operation must move inodes: try again under the exclusive lock.
    Exclusive,
    /// The image breaks the format: `EUCLEAN`.
    Corrupt(String),
}

pub(crate) type Res<T> = std::result::Result<T, Fault>;

impl Fault {
    /// The errno for the caller. The cause is written to the program's log.
    pub(crate) fn errno(self) -> Errno {
        match self {
            Fault::Errno(e) => e,
            Fault::Exclusive => Errno::IO,
            Fault::Medium(e) => {
                tracing::error!("{e}");
                Errno::IO
            }
            Fault::Corrupt(what) => {
                tracing::error!("{what}; run fsck for a full report");
                Errno::UCLEAN
            }
        }
    }

    /// The error of an open that stopped at this fault.
    pub(crate) fn at(self, while_doing: &'static str) -> Error {
        match self {
            Fault::Medium(source) => Error::Medium {
                while_doing,
                source,
            },
            Fault::Corrupt(what) => Error::Corrupt(what),
            Fault::Errno(e) => Error::Corrupt(format!("{while_doing}: {e}")),
            Fault::Exclusive => Error::Corrupt(while_doing.into()),
        }
    }
}

impl From<Errno> for Fault {
    fn from(e: Errno) -> Self {
        Fault::Errno(e)
    }
}

impl From<MediumError> for Fault {
    fn from(e: MediumError) -> Self {
        Fault::Medium(e)
    }
}

impl From<Error> for Fault {
    fn from(e: Error) -> Self {
        Fault::Corrupt(e.to_string())
    }
}
