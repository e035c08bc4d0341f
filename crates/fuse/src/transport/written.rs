//! Files whose pages in the kernel's page cache may be stale.
//!
//! Writes that bypass the page cache drop the pages that they replace. Kernels without
//! "fuse: Invalidate the page cache after FOPEN_DIRECT_IO write" drop them before the write
//! only: a read during the write brings the old data back. Guarantee: once the last writer
//! of a file has closed it, the next open for reading drops all its pages.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The files that are open for writing, or were and have not been opened for reading since.
#[derive(Debug, Default)]
pub(super) struct Written(Mutex<HashMap<u64, u64>>);

impl Written {
    /// A writer opens the inode.
    pub(super) fn open(&self, ino: u64) {
        *self.writers().entry(ino).or_default() += 1;
    }

    /// A writer closed the inode.
    pub(super) fn close(&self, ino: u64) {
        if let Some(writers) = self.writers().get_mut(&ino) {
            *writers = writers.saturating_sub(1);
        }
    }

    /// Whether the pages of an inode that is opened for reading are up to date: the caller
    /// has the kernel drop them otherwise.
    pub(super) fn keeps_cache(&self, ino: u64) -> bool {
        let mut writers = self.writers();
        match writers.get(&ino) {
            None => true,
            Some(0) => {
                writers.remove(&ino);
                false
            }
            Some(_) => false,
        }
    }

    /// The kernel has dropped the inode, and its pages with it.
    pub(super) fn forget(&self, ino: u64) {
        let mut writers = self.writers();
        if writers.get(&ino) == Some(&0) {
            writers.remove(&ino);
        }
    }

    /// Inodes and how many writers have each open.
    fn writers(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        // Every change is a single step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_dropped_beside_writers_and_once_after_them() {
        let written = Written::default();
        assert!(written.keeps_cache(7));
        written.open(7);
        written.open(7);
        assert!(!written.keeps_cache(7));
        written.close(7);
        assert!(!written.keeps_cache(7));
        assert!(!written.keeps_cache(7));
        written.close(7);
        assert!(!written.keeps_cache(7));
        assert!(written.keeps_cache(7));
        assert!(written.keeps_cache(8));
    }

    #[test]
    fn forgotten_inodes_take_no_memory() {
        let written = Written::default();
        written.open(7);
        written.forget(7);
        assert!(!written.keeps_cache(7));
        written.close(7);
        written.forget(7);
        assert!(written.writers().is_empty());
        assert!(written.keeps_cache(7));
    }
}
