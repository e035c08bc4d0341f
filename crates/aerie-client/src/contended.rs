//! Files that other clients have needed lately. Their contents are overwritten beside readers.

use aerie_proto::locks::LockId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use vfs::sync::Mutex;

/// A file counts for this time after a lock of it was lowered.
const CONTENTION: Duration = Duration::from_secs(1);
/// Files that are remembered.
const MOST: usize = 1024;

/// The files, and when each lost a lock.
#[derive(Default)]
pub(crate) struct Contended {
    is_any: AtomicBool,
    files: Mutex<HashMap<LockId, Instant>>,
}

impl Contended {
    /// Notes that a lock is lowered.
    pub(crate) fn add(&self, file: LockId) {
        let mut files = self.files.lock();
        if files.len() >= MOST {
            files.clear();
        }
        files.insert(file, Instant::now());
        self.is_any.store(true, Relaxed);
    }

    /// Whether a lock of the file was lowered lately.
    pub(crate) fn has(&self, file: LockId) -> bool {
        if !self.is_any.load(Relaxed) {
            return false;
        }
        let mut files = self.files.lock();
        let is_recent = files.get(&file).is_some_and(|at| at.elapsed() < CONTENTION);
        if !is_recent && files.remove(&file).is_some() {
            self.is_any.store(!files.is_empty(), Relaxed);
        }
        is_recent
    }
}
