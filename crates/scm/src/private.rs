//! Files that only this user can open.

use crate::error::ScmError;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Refuses a file that another user could open, also through a descriptor of it. `expected` is the
/// mode that it should have.
pub(crate) fn check_private(file: &File, path: &Path, expected: u32) -> Result<(), ScmError> {
    let what = path.display().to_string();
    let found = match file.metadata() {
        Ok(found) => found,
        Err(e) => return Err(ScmError::system("look at", what, e)),
    };
    let mode = found.mode() & 0o7777;
    if mode & 0o077 == 0 && found.uid() == rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Err(ScmError::Exposed {
        what,
        mode,
        owner: found.uid(),
        expected,
    })
}

/// `fallocate(2)` on that many bytes from an offset on, again after a signal.
pub(crate) fn allocate(
    file: &File,
    flags: FallocateFlags,
    (off, bytes): (u64, u64),
) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, flags, off, bytes))
}
