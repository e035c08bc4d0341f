//! Files whose pages in the kernel's page cache may be stale.
//!
//! Writes that bypass the page cache drop the pages that they replace. Kernels without
//! "fuse: Invalidate the page cache after FOPEN_DIRECT_IO write" drop them before the write
//! only: a read during the write brings the old data back. Guarantee: once the last writer
//! of a file has closed it, the next open for reading drops all its pages.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The files that the kernel refers to.
#[derive(Debug, Default)]
pub(super) struct Written(Mutex<HashMap<u64, Known>>);

/// A file that the kernel refers to.
#[derive(Debug, Default)]
struct Known {
    /// The references that the kernel has and will forget.
    references: u64,
    /// Opens for writing.
    writers: u64,
    /// Whether it was opened for writing, and not for reading since the last writer closed it.
    is_stale: bool,
}

impl Written {
    /// The kernel gets a reference to the inode: called before the reply that gives it.
    pub(super) fn refer(&self, ino: u64) {
        self.files().entry(ino).or_default().references += 1;
    }

    /// A writer opens the inode.
    pub(super) fn open(&self, ino: u64) {
        let mut files = self.files();
        let file = files.entry(ino).or_default();
        file.writers += 1;
        file.is_stale = true;
    }

    /// A writer closed the inode.
    pub(super) fn close(&self, ino: u64) {
        self.give_back(ino, 0, 1);
    }

    /// Whether the pages of an inode that is opened for reading are up to date: the caller
    /// has the kernel drop them otherwise.
    pub(super) fn keeps_cache(&self, ino: u64) -> bool {
        let mut files = self.files();
        let Some(file) = files.get_mut(&ino) else {
            return true;
        };
        let keeps = !file.is_stale;
        file.is_stale = file.writers > 0;
        keeps
    }

    /// The kernel gives back `count` references. With the last one it has dropped the inode
    /// and its pages; before, it may still have both.
    pub(super) fn forget(&self, ino: u64, count: u64) {
        self.give_back(ino, count, 0);
    }

    /// The last close and the last reference come in any order.
    fn give_back(&self, ino: u64, references: u64, writers: u64) {
        let mut files = self.files();
        if let Some(file) = files.get_mut(&ino) {
            file.references = file.references.saturating_sub(references);
            file.writers = file.writers.saturating_sub(writers);
            if file.references == 0 && file.writers == 0 {
                files.remove(&ino);
            }
        }
    }

    fn files(&self) -> MutexGuard<'_, HashMap<u64, Known>> {
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
        written.refer(7);
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
        written.refer(7);
        written.open(7);
        written.close(7);
        written.forget(7, 1);
        assert!(written.files().is_empty());
        assert!(written.keeps_cache(7));
        written.forget(7, 1);
    }

    #[test]
    fn files_that_are_open_for_writing_are_not_forgotten() {
        let written = Written::default();
        written.refer(7);
        written.open(7);
        written.forget(7, 1);
        assert!(!written.keeps_cache(7));
        written.close(7);
        assert!(written.files().is_empty());
    }

    /// The kernel forgets one reference and keeps the inode if, for example, two lookups of it
    /// were under way.
    #[test]
    fn pages_stay_stale_until_the_last_reference_is_forgotten() {
        let written = Written::default();
        written.refer(7);
        written.refer(7);
        written.open(7);
        written.close(7);
        written.forget(7, 1);
        assert!(!written.keeps_cache(7));
        written.open(7);
        written.close(7);
        written.forget(7, 1);
        assert!(written.files().is_empty());
    }
}
