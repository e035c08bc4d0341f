//! The reasons why a file cannot be a medium.

use crate::users::{Claim, Holder};
use std::io;
use std::path::PathBuf;

/// An error of creating, opening or mapping a file.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A system call failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    System {
        /// The failed action ("open", "lock", "map", ...).
        doing: &'static str,
        /// The file of the action.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is read-only, and is to be written.
    #[error("{} is read-only; it can only be opened for reading (mount it with -o ro)", path.display())]
    ReadOnly {
        /// The file or device.
        path: PathBuf,
    },
    /// The file is a directory, a pipe, a character device other than DAX...
    #[error("{} is {kind}; a regular file, block device or DAX device is needed", path.display())]
    WrongKind {
        /// The file.
        path: PathBuf,
        /// The kind of file ("a directory", ...).
        kind: &'static str,
    },
    /// The file is empty, or does not consist of whole 4 KiB blocks.
    #[error("{} has {len_bytes} bytes; a multiple of 4096, and not 0, is needed", path.display())]
    WrongSize {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        len_bytes: u64,
    },
    /// The block size is not possible for the file.
    #[error("{} cannot have blocks of {block_bytes} bytes: a power of two from {sector_bytes} \
             to 65536 is needed", path.display())]
    BlockSize {
        /// The file or device.
        path: PathBuf,
        /// The requested size in bytes.
        block_bytes: u32,
        /// The smallest possible size in bytes: a sector of the disk.
        sector_bytes: u32,
    },
    /// The file is shorter than one block.
    #[error("{} has {len_bytes} bytes: not one block of {block_bytes}", path.display())]
    NoBlock {
        /// The file or device.
        path: PathBuf,
        /// Its size in bytes.
        len_bytes: u64,
        /// Bytes in a block.
        block_bytes: u32,
    },
    /// The file or device cannot flush, so that nothing on it becomes durable.
    #[error("{} cannot flush ({source}): a crash could leave anything on it; only \
             --unsafe-no-flush uses it all the same", path.display())]
    NoFlush {
        /// The file or device.
        path: PathBuf,
        /// The system's error for a flush.
        source: io::Error,
    },
    /// Another process, or another open of this one, has the file locked.
    #[error("{} is in use by {}", path.display(), name(holder))]
    InUse {
        /// The file.
        path: PathBuf,
        /// The process that has the lock, if it is visible.
        holder: Option<Holder>,
    },
    /// The kernel uses the file or device.
    #[error("{} is {claim}", path.display())]
    Claimed {
        /// The file or device.
        path: PathBuf,
        /// The kernel's use.
        claim: Claim,
    },
    /// The durability `dax` was requested and is not possible.
    #[error("{} cannot give durability 'dax': {reason}", path.display())]
    NoDax {
        /// The file.
        path: PathBuf,
        /// The reason.
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
