//! The limit of the sizes of files, `RLIMIT_FSIZE`: the kernel looks at it for its own files only.

use super::Process;
use crate::kernel::{self, Result};
use std::sync::atomic::Ordering::Relaxed;
use vfs::Errno;

impl Process {
    /// Asks for the limit: at the start, and after calls that set it. A child of `vfork` has one of its own, which it does
    /// not learn: the memory is its parent's.
    pub(crate) fn learn_size_limit(&self) {
        if !self.is_vfork_child() {
            let limit = kernel::limit(libc::RLIMIT_FSIZE).unwrap_or(u64::MAX);
            self.size_limit.store(limit, Relaxed);
        }
    }

    /// Whether there is a limit.
    pub(crate) fn limits_sizes(&self) -> bool {
        self.size_limit.load(Relaxed) != u64::MAX
    }

    /// The part of a write of `len` bytes that the limit permits. `EFBIG` and a signal without any.
    pub(crate) fn below_limit(&self, offset: u64, len: u64) -> Result<u64> {
        let left = self.size_limit.load(Relaxed).saturating_sub(offset);
        match left {
            0 if len > 0 => Err(self.exceeded()),
            left => Ok(len.min(left)),
        }
    }

    /// Whether a file may get another size. `EFBIG` and a signal if not.
    pub(crate) fn may_resize(&self, size: u64, new: u64) -> Result<()> {
        match new > size && new > self.size_limit.load(Relaxed) {
            true => Err(self.exceeded()),
            false => Ok(()),
        }
    }

    /// Sends the signal, which mostly ends the process: its changes are sent before.
    fn exceeded(&self) -> Errno {
        self.send();
        kernel::raise(libc::SIGXFSZ);
        Errno::FBIG
    }
}
