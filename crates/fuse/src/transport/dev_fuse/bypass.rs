//! Which files bypass the kernel's page cache.

use super::DevFuse;
use crate::transport::written::Written;
use fuser::{FopenFlags, INodeNo, InitFlags, KernelConfig, OpenAccMode, OpenFlags};
use vfs::Ctx;

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

impl DevFuse {
    /// The opens that bypass the kernel's page cache. Writes must if the file system promises that
    /// each is atomic. The price is a request for each open, and for each read of a file
    /// that is open for writing.
    ///
    /// Without [`mappable`](Self::mappable), nothing bypasses it: the server then sees the reads that
    /// the cache does not serve.
    pub(super) fn bypass(&self) -> Bypass {
        let for_writers = !self.read_only && self.ops.has_atomic_writes();
        if !self.mappable {
            if for_writers {
                self.warned.call_once(|| {
                    tracing::warn!(
                        "this kernel (before 6.6) splits writes that begin inside a page which \
                         it has not cached: such writes are not atomic"
                    );
                });
            }
            Bypass::Nothing
        } else if self.sees_reads {
            Bypass::Everything
        } else if for_writers {
            Bypass::Writers
        } else {
            Bypass::Nothing
        }
    }

    /// Whether `SEEK_HOLE` and `SEEK_DATA` find the right places. The kernel asks for that before it writes pages of
    /// mappings back: data of a page could be a hole. Where opens reach the server, they write such pages back.
    pub(super) fn knows_holes(&self) -> bool {
        self.read_only || self.bypass() != Bypass::Nothing
    }

    /// Makes a write durable whose file is open with `O_SYNC` or `O_DSYNC`: the kernel sends no fsync after a
    /// write that bypasses its cache. A write of pages of mappings has no such flags of a caller.
    pub(super) fn sync_after(&self, cx: &Ctx, ino: INodeNo, flags: OpenFlags) -> vfs::Result<()> {
        match flags.0 & libc::O_SYNC {
            0 => Ok(()),
            _ if cx.is_write_back => Ok(()),
            which => self.ops.fsync(cx, ino.0, which != libc::O_SYNC),
        }
    }

    /// Asks for what the page cache's bypass needs.
    pub(super) fn negotiate_bypass(&mut self, config: &mut KernelConfig) {
        let mut offered = |flag| config.add_capabilities(flag).is_ok();
        self.mappable = offered(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        if !self.mappable && self.sees_reads {
            tracing::warn!(
                "this kernel (before 6.6) cannot map files that bypass its page cache: with \
                 strictatime, reads that the cache serves do not change access times; with \
                 other programs on the file system, their changes may be missed"
            );
        }
        if !self.sees_reads || !self.mappable {
            offered(InitFlags::FUSE_CACHE_SYMLINKS);
        }
    }
}
