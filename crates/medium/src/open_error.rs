//! Why a file cannot be used as a medium.

use crate::claim::Claim;
use crate::lock::Holder;
use std::io;
use std::path::PathBuf;

/// A file could not be created, opened or mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    System {
        /// What was being done ("open", "lock", "map", ...).
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is to be written, and cannot be.
    #[error("{} is read-only; it can only be opened for reading (mount it with -o ro)", path.display())]
    ReadOnly {
        /// The file or device.
        path: PathBuf,
    },
    /// It is a directory, a pipe, a character device other than DAX...
    #[error("{} is {kind}; a regular file, block device or DAX device is needed", path.display())]
    WrongKind {
        /// The file.
        path: PathBuf,
        /// What it is ("a directory", ...).
        kind: &'static str,
    },
    /// It is empty, or not made of whole 4 KiB blocks.
    #[error("{} has {len_bytes} bytes; a multiple of 4096, and not 0, is needed", path.display())]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// Its size.
        len_bytes: u64,
    },
    /// Blocks of a size that is not to be had.
    #[error("{} cannot have blocks of {block_bytes} bytes: a power of two from {sector_bytes} \
             to 65536 is needed", path.display())]
    BlockSize {
        /// The file or device.
        path: PathBuf,
        /// The size asked for.
        block_bytes: u32,
        /// The smallest that there can be: a sector of the disk.
        sector_bytes: u32,
    },
    /// It is shorter than one block.
    #[error("{} has {len_bytes} bytes: not one block of {block_bytes}", path.display())]
    NoBlock {
        /// The file or device.
        path: PathBuf,
        /// Its size.
        len_bytes: u64,
        /// Bytes in a block.
        block_bytes: u32,
    },
    /// Nothing on it can be made durable.
    #[error("{} cannot flush ({source}): a crash could leave anything on it; only \
             --unsafe-no-flush uses it all the same", path.display())]
    NoFlush {
        /// The file or device.
        path: PathBuf,
        /// What the system says to a flush.
        source: io::Error,
    },
    /// Another process (or another open of this one) has it locked.
    #[error("{} is in use by {}", path.display(), name(holder))]
    InUse {
        /// The file.
        path: PathBuf,
        /// Who, if the system tells.
        holder: Option<Holder>,
    },
    /// The kernel uses it.
    #[error("{} is {claim}", path.display())]
    Claimed {
        /// The file or device.
        path: PathBuf,
        /// What for.
        claim: Claim,
    },
    /// `dax` was asked for and is not to be had.
    #[error("{} cannot give durability 'dax': {reason}", path.display())]
    NoDax {
        /// The file.
        path: PathBuf,
        /// What is missing.
        reason: &'static str,
    },
    /// The process has too many mappings open (2,048).
    #[error("cannot map {}: this process has too many mappings open", path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
    },
}

fn name(holder: &Option<Holder>) -> String {
    match holder {
        Some(holder) => holder.to_string(),
        None => "another process".to_owned(),
    }
}
