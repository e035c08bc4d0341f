//! The `errno` of errors of durable memory.

use libc::c_int;
use medium::{ArenaError, OpenError};
use mnemosyne::heap::HeapError;
use mnemosyne::memory::{BackingError, MemoryError};
use mnemosyne::tx::TxError;
use paging::PoolError;
use std::convert::Infallible;

/// The closest errno of an error of durable memory.
pub(crate) fn errno_of_store(why: &MemoryError) -> c_int {
    match why {
        MemoryError::NoRoom { .. } => libc::ENOMEM,
        MemoryError::NoRegion { .. } | MemoryError::Layout | MemoryError::Beyond { .. } => {
            libc::EINVAL
        }
        MemoryError::Backing(why) => errno_of_backing(why),
        MemoryError::NotDurableMemory { .. }
        | MemoryError::Slot { .. }
        | MemoryError::Root { .. }
        | MemoryError::Base { .. }
        | MemoryError::Heap(_)
        | MemoryError::Lost { .. }
        | MemoryError::NotASegment { .. }
        | MemoryError::Area(_)
        | MemoryError::Medium(_)
        | MemoryError::Failed(_)
        | MemoryError::Refused(_) => libc::EIO,
    }
}

fn errno_of_backing(why: &BackingError) -> c_int {
    match why {
        BackingError::File(why)
        | BackingError::Arena(ArenaError::Open(why))
        | BackingError::Pool(PoolError::Open(why)) => errno_of_file(why),
        BackingError::Mismatch(_) => libc::EINVAL,
        BackingError::InTheWay { .. } => libc::EEXIST,
        BackingError::Arena(
            ArenaError::Misaligned { .. }
            | ArenaError::Taken { .. }
            | ArenaError::Reserve { .. }
            | ArenaError::Synchronize { .. }
            | ArenaError::Outside { .. }
            | ArenaError::Overlap { .. }
            | ArenaError::NotMapped { .. }
            | ArenaError::Pager(_),
        ) => libc::ENOMEM,
        BackingError::Pool(
            PoolError::Frames { .. }
            | PoolError::TooManyFrames { .. }
            | PoolError::NoFaults { .. }
            | PoolError::System { .. },
        )
        | BackingError::Crashed { .. }
        | BackingError::Medium(_) => libc::EIO,
    }
}

/// The closest errno of a file that cannot be opened or mapped.
pub(crate) fn errno_of_file(why: &OpenError) -> c_int {
    match why {
        OpenError::InUse { .. } => libc::EBUSY,
        OpenError::System { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        OpenError::ReadOnly { .. }
        | OpenError::WrongKind { .. }
        | OpenError::WrongSize { .. }
        | OpenError::BlockSize { .. }
        | OpenError::NoBlock { .. }
        | OpenError::NoFlush { .. }
        | OpenError::Claimed { .. }
        | OpenError::NoDax { .. }
        | OpenError::TooMany { .. } => libc::EINVAL,
    }
}

/// The closest errno of a failed transaction.
pub(crate) fn errno_of(why: &TxError<Infallible>) -> c_int {
    match why {
        TxError::Heap(HeapError::NoSpace { .. }) | TxError::Growth { .. } => libc::ENOMEM,
        TxError::Heap(
            HeapError::Foreign { .. }
            | HeapError::NotAllocated { .. }
            | HeapError::Damaged { .. }
            | HeapError::Medium(_),
        )
        | TxError::Medium(_)
        | TxError::NoValue { .. }
        | TxError::Failed(_) => libc::EIO,
        TxError::Cancelled(never) => match *never {},
    }
}
