//! The errors of an arena and of its regions.

use crate::addresses::GRANULE_BYTES;
use crate::open_error::OpenError;
use crate::pager::PagerError;
use std::io;
use std::path::PathBuf;

/// An error of reserving addresses, or of mapping or unmapping a file there.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// A base, size or offset that does not consist of whole granules.
    #[error("{what} {value:#x} is not a multiple of {granule:#x}", granule = GRANULE_BYTES)]
    Misaligned {
        /// The kind of value ("the base address", ...).
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// Something else in the process has some of the addresses.
    #[error(
        "cannot reserve the addresses {base:#x} to {end:#x}: {occupant} is in the way; \
             choose another base address"
    )]
    Taken {
        /// The first address asked for.
        base: u64,
        /// The address after the last one.
        end: u64,
        /// A description of the mapping that is there, from `/proc/self/maps`.
        occupant: String,
    },
    /// The system cannot reserve that many bytes, or not at that address.
    #[error("cannot reserve {len_bytes} bytes of addresses{place}: {source}", place = place(*base))]
    Reserve {
        /// The first address, if the caller chose one.
        base: Option<u64>,
        /// The number of bytes.
        len_bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The system cannot order the accesses of threads, so that no region could be unmapped.
    #[error("cannot wait for other threads with membarrier(2): {source}")]
    Synchronize {
        /// The system's error.
        source: io::Error,
    },
    /// The file does not end inside the arena.
    #[error("{} has {len_bytes} bytes and does not fit at offset {start:#x} of an arena of \
             {arena_bytes:#x}", path.display())]
    Outside {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        len_bytes: u64,
        /// The offset in the arena at which it was to start.
        start: u64,
        /// Size of the arena in bytes.
        arena_bytes: u64,
    },
    /// Another file is in the way.
    #[error("{} has {len_bytes} bytes and does not fit at offset {start:#x} of the arena: {} is \
             mapped at {occupied:#x}", path.display(), occupant.display())]
    Overlap {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        len_bytes: u64,
        /// The offset in the arena at which it was to start.
        start: u64,
        /// The other file.
        occupant: PathBuf,
        /// The offset at which the other file starts.
        occupied: u64,
    },
    /// No region starts at the offset.
    #[error("no file is mapped at offset {start:#x} of the arena")]
    NotMapped {
        /// The offset in the arena.
        start: u64,
    },
    /// The file cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The pager refuses the region.
    #[error(transparent)]
    Pager(PagerError),
}

fn place(base: Option<u64>) -> String {
    base.map_or_else(String::new, |base| format!(" at {base:#x}"))
}
