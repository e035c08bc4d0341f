//! Errors of calls: made here, or by the format.

use crate::FormatError;
use vfs::Errno;

/// Why a call is refused: by us, or by the format.
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
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Format(FormatError::Corrupt(_)))
    }

    pub fn errno(self) -> Errno {
        match self {
            Self::Errno(errno) => errno,
            Self::Format(error) => report(&error),
        }
    }
}

/// The errno of an error, after the log has what it says.
pub(super) fn report(error: &FormatError) -> Errno {
    if matches!(error, FormatError::Store(_) | FormatError::Corrupt(_)) {
        tracing::error!("{error}");
    }
    error.errno()
}

/// The errno of a sync: on a file system that has become read-only something is not stored.
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
