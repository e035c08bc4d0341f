//! The open logs of the program. A log is open at most once, and its region cannot be removed then.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::ops::Range;

/// The offsets of the open logs.
static OPEN: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// The locked list of open logs: no other thread opens or closes one.
pub(crate) struct OpenLogs(MutexGuard<'static, BTreeSet<u64>>);

/// Locks the list of open logs.
pub(crate) fn lock() -> OpenLogs {
    OpenLogs(OPEN.lock())
}

impl OpenLogs {
    /// Whether the log at `off` is open.
    pub(crate) fn is_open(&self, off: u64) -> bool {
        self.0.contains(&off)
    }

    /// Whether an open log begins in a range.
    pub(crate) fn has_any_in(&self, range: Range<u64>) -> bool {
        self.0.range(range).next().is_some()
    }

    pub(crate) fn insert(&mut self, off: u64) {
        self.0.insert(off);
    }

    pub(crate) fn remove(&mut self, off: u64) {
        self.0.remove(&off);
    }
}
