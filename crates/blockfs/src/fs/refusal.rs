//! Errors of calls, from this module or from the format.

use crate::FormatError;
use vfs::Errno;

/// The reason why a call fails.
#[derive(Debug)]
pub(super) enum Refusal {
    Errno(Errno),
    Format(FormatError),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl From<FormatError> for Refusal {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}

impl Refusal {
    /// Whether the image is damaged.
    pub(super) fn is_damage(&self) -> bool {
        matches!(self, Self::Format(FormatError::Corrupt(_)))
    }

    pub(super) fn errno(self) -> Errno {
        match self {
            Self::Errno(errno) => errno,
            Self::Format(error) => report(&error),
        }
    }
}

/// Logs an error of the medium or the image. Returns the errno.
pub(super) fn report(error: &FormatError) -> Errno {
    if matches!(error, FormatError::Store(_) | FormatError::Corrupt(_)) {
        tracing::error!("{error}");
    }
    error.errno()
}

/// The errno of a sync. On a file system that became read-only, something is not stored.
pub(super) fn not_stored(errno: Errno) -> Errno {
    match errno {
        Errno::ROFS => Errno::IO,
        errno => errno,
    }
}

impl From<patch::StoreError> for Refusal {
    fn from(error: patch::StoreError) -> Self {
        Self::Format(FormatError::Store(error))
    }
}
