//! Which files bypass the kernel's page cache.

use crate::transport::written::Written;
use fuser::{FopenFlags, OpenAccMode, OpenFlags};

/// Which opens of files reach the server, and which files bypass the kernel's page cache.
///
/// The kernel splits a write through its page cache that begins inside a page which it does
/// not hold. A write that bypasses the cache is one request, up to [`MAX_IO_BYTES`](super::MAX_IO_BYTES).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bypass {
    /// No open reaches the server; the page cache serves all files.
    Nothing,
    /// Files that are open for writing bypass the cache; the cache serves all others.
    Writers,
    /// All files bypass the cache, and no listing or link target is cached: the server
    /// sees every read.
    Everything,
}

impl Bypass {
    /// The answer to an open of `ino` with these flags, which counts among `written`. `None`: the
    /// kernel need not send further opens.
    pub(super) fn of(self, ino: u64, flags: OpenFlags, written: &Written) -> Option<FopenFlags> {
        match self {
            Bypass::Nothing => None,
            Bypass::Everything => Some(FopenFlags::FOPEN_DIRECT_IO),
            Bypass::Writers if !reads_only(flags) => {
                written.open(ino);
                Some(FopenFlags::FOPEN_DIRECT_IO)
            }
            Bypass::Writers if written.keeps_cache(ino) => Some(FopenFlags::FOPEN_KEEP_CACHE),
            Bypass::Writers => Some(FopenFlags::empty()),
        }
    }
}

pub(super) fn reads_only(flags: OpenFlags) -> bool {
    flags.acc_mode() == OpenAccMode::O_RDONLY
}

pub(super) fn leaves_atime(flags: OpenFlags) -> bool {
    flags.0 & libc::O_NOATIME != 0
}
