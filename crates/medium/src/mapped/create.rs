//! Makes files that are to be mapped.

use super::target::{check_kind, system};
use crate::lock::{Access, lock};
use crate::open_error::OpenError;
use crate::touched::PAGE_BYTES;
use rustix::fs::{FileType, Mode, OFlags};
use std::fs::File;
use std::path::Path;

/// The moment at which the blocks of a new file are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reserve {
    /// At the first store to a block. If the file system is full by then, the region
    /// fails with [`MediumError::Unreadable`](crate::MediumError::Unreadable).
    #[default]
    Sparse,
    /// When the file is made.
    Whole,
}

/// Makes the regular file at `path` (new or existing) `len_bytes` long and all zeros.
///
/// # Errors
/// [`OpenError`] if the size is not a positive multiple of 4096, the file is in use
/// or not regular, or a system call fails. A file that is in use is not changed.
pub fn create_file(
    path: impl AsRef<Path>,
    len_bytes: u64,
    reserve: Reserve,
) -> Result<(), OpenError> {
    create(path.as_ref(), len_bytes, reserve, OFlags::empty(), 0o666)
}

/// Creates a file as [`create_file`] does, readable and writable by its owner only.
///
/// # Errors
/// As [`create_file`]; [`OpenError::System`] also if the name exists, for example as a link
/// that another user made.
pub fn create_private_file(
    path: impl AsRef<Path>,
    len_bytes: u64,
    reserve: Reserve,
) -> Result<(), OpenError> {
    create(path.as_ref(), len_bytes, reserve, OFlags::EXCL, 0o600)
}

fn create(
    path: &Path,
    len_bytes: u64,
    reserve: Reserve,
    flags: OFlags,
    mode: u32,
) -> Result<(), OpenError> {
    if len_bytes == 0 || !len_bytes.is_multiple_of(PAGE_BYTES) {
        let path = path.to_owned();
        return Err(OpenError::WrongSize { path, len_bytes });
    }
    if let Ok(stat) = rustix::fs::stat(path) {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => {
                let (path, kind) = (path.to_owned(), "a block device, whose size is fixed");
                return Err(OpenError::WrongKind { path, kind });
            }
            kind => check_kind(path, kind)?,
        }
    }
    // The open does not truncate: the file may be in use until the lock succeeds.
    let flags = flags | OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(mode));
    let file = File::from(file.map_err(|e| system("create", path, e))?);
    lock(path, &file, Access::Write)?;
    let resize = |len| rustix::fs::ftruncate(&file, len).map_err(|e| system("resize", path, e));
    // The first call fails if the size is impossible, before any contents are lost.
    for len in [len_bytes, 0, len_bytes] {
        resize(len)?;
    }
    if reserve == Reserve::Whole {
        let flags = rustix::fs::FallocateFlags::empty();
        let reserved = rustix::fs::fallocate(&file, flags, 0, len_bytes);
        reserved.map_err(|e| system("reserve space for", path, e))?;
    }
    Ok(())
}
