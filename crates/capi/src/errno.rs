//! The `errno` of errors of durable memory.

use libc::c_int;
use medium::{ArenaError, OpenError};
use mnemosyne::heap::HeapError;
use mnemosyne::store::{BackingError, StoreError};
use mnemosyne::tx::TxError;
use paging::PoolError;
use std::convert::Infallible;

/// The errno that comes nearest.
pub(crate) fn errno_of_store(why: &StoreError) -> c_int {
    match why {
        StoreError::NoRoom { .. } => libc::ENOMEM,
        StoreError::NoRegion { .. } | StoreError::Layout | StoreError::Beyond { .. } => {
            libc::EINVAL
        }
        StoreError::Backing(
            BackingError::File(why)
            | BackingError::Arena(ArenaError::Open(why))
            | BackingError::Pool(PoolError::Open(why)),
        ) => match why {
            OpenError::InUse { .. } => libc::EBUSY,
            OpenError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EINVAL,
        },
        StoreError::Backing(BackingError::Mismatch(_)) => libc::EINVAL,
        StoreError::Backing(BackingError::InTheWay { .. }) => libc::EEXIST,
        StoreError::Backing(BackingError::Arena(_)) => libc::ENOMEM,
        _ => libc::EIO,
    }
}

/// The errno that comes nearest.
pub(crate) fn errno_of(why: &TxError<Infallible>) -> c_int {
    match why {
        TxError::Heap(HeapError::NoSpace { .. }) | TxError::Growth { .. } => libc::ENOMEM,
        _ => libc::EIO,
    }
}
