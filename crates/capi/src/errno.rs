//! The `errno` of errors of durable memory.

use libc::c_int;
use medium::{ArenaError, OpenError};
use mnemosyne::heap::HeapError;
use mnemosyne::memory::{BackingError, MemoryError};
use mnemosyne::tx::TxError;
use paging::PoolError;
use std::convert::Infallible;

/// The closest errno.
pub(crate) fn errno_of_store(why: &MemoryError) -> c_int {
    match why {
        MemoryError::NoRoom { .. } => libc::ENOMEM,
        MemoryError::NoRegion { .. } | MemoryError::Layout | MemoryError::Beyond { .. } => {
            libc::EINVAL
        }
        MemoryError::Backing(
            BackingError::File(why)
            | BackingError::Arena(ArenaError::Open(why))
            | BackingError::Pool(PoolError::Open(why)),
        ) => match why {
            OpenError::InUse { .. } => libc::EBUSY,
            OpenError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EINVAL,
        },
        MemoryError::Backing(BackingError::Mismatch(_)) => libc::EINVAL,
        MemoryError::Backing(BackingError::InTheWay { .. }) => libc::EEXIST,
        MemoryError::Backing(BackingError::Arena(_)) => libc::ENOMEM,
        _ => libc::EIO,
    }
}

/// The closest errno.
pub(crate) fn errno_of(why: &TxError<Infallible>) -> c_int {
    match why {
        TxError::Heap(HeapError::NoSpace { .. }) | TxError::Growth { .. } => libc::ENOMEM,
        _ => libc::EIO,
    }
}
