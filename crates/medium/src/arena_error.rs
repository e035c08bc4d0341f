//! Why an arena, or a region in it, cannot be had.

use crate::pager::PagerError;
use crate::{Arena, OpenError};
use std::io;
use std::path::PathBuf;

/// Addresses could not be reserved, or a file not mapped there or taken away.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// A base, size or offset that is not made of whole granules.
    #[error("{what} {value:#x} is not a multiple of {granule:#x}", granule = Arena::GRANULE_BYTES)]
    Misaligned {
        /// What it is ("the base address", ...).
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
        /// What is there, and where, as far as the system tells.
        occupant: String,
    },
    /// The system does not reserve so much, or not there.
    #[error("cannot reserve {len_bytes} bytes of addresses{place}: {source}", place = place(*base))]
    Reserve {
        /// The first address, if one was asked for.
        base: Option<u64>,
        /// How many.
        len_bytes: u64,
        /// Why not.
        source: io::Error,
    },
    /// The system does not order the accesses of threads, without which no region can be
    /// taken away.
    #[error("cannot wait for other threads with membarrier(2): {source}")]
    Synchronize {
        /// Why not.
        source: io::Error,
    },
    /// The file does not end inside the arena.
    #[error("{} has {len_bytes} bytes and does not fit at offset {start:#x} of an arena of \
             {arena_bytes:#x}", path.display())]
    Outside {
        /// The file.
        path: PathBuf,
        /// Its size.
        len_bytes: u64,
        /// The offset in the arena where it was to be.
        start: u64,
        /// Size of the arena.
        arena_bytes: u64,
    },
    /// There is another file in the way.
    #[error("{} has {len_bytes} bytes and does not fit at offset {start:#x} of the arena: {} is \
             mapped at {occupied:#x}", path.display(), occupant.display())]
    Overlap {
        /// The file.
        path: PathBuf,
        /// Its size.
        len_bytes: u64,
        /// The offset in the arena where it was to be.
        start: u64,
        /// The other file.
        occupant: PathBuf,
        /// The offset where that one starts.
        occupied: u64,
    },
    /// No region starts there.
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
