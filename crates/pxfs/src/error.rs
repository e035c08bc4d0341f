//! Errors inside the file system.

use aerie_objects::Error;
use vfs::Errno;

/// An error of a call.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The caller's.
    Call(Errno),
    /// Of the store.
    Store(Error),
}

pub(crate) type Res<T> = Result<T, Fault>;

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Self::Call(errno)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl Fault {
    /// The errno for the caller. Damage and failures are logged.
    pub(crate) fn errno(self) -> Errno {
        let error = match self {
            Self::Call(errno) => return errno,
            Self::Store(error) => error,
        };
        match error {
            // The service runs the call.
            error if error.is_denied() => Errno::REMOTE,
            Error::Full | Error::Crowded => Errno::NOSPC,
            Error::NoObject(_) => Errno::STALE,
            Error::KeyExists => Errno::EXIST,
            Error::KeyLength(_) => Errno::NAMETOOLONG,
            Error::NoIndex(_) | Error::TooLarge { .. } => Errno::FBIG,
            Error::Cycle(_) => Errno::INVAL,
            Error::NotEmpty(_) => Errno::NOTEMPTY,
            Error::Damaged { .. } | Error::HasParent(_) => {
                tracing::error!("{error}");
                Errno::UCLEAN
            }
            other => {
                tracing::error!("{other}");
                Errno::IO
            }
        }
    }
}

pub(crate) fn damaged(what: std::fmt::Arguments<'_>) -> Fault {
    tracing::error!("{what}");
    Fault::Call(Errno::UCLEAN)
}
