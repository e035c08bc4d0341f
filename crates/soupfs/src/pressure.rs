//! Bounds what is not persistent yet: the persister begins early when there is much, and callers run a
//! round themselves when there is too much. Nothing fails.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

/// Changed inodes, and written bytes, with which the persister begins. An inode in memory takes less
/// than 1 KiB.
const EARLY: Amount = Amount {
    inodes: 16 << 10,
    bytes: 64 << 20,
};
/// As many times that much, callers wait.
const MOST: u64 = 4;

/// What was changed since the last round began.
struct Amount {
    inodes: u64,
    bytes: u64,
}

/// The amount of changes, and the calls of the persister.
#[derive(Default)]
pub(crate) struct Pressure {
    inodes: AtomicU64,
    bytes: AtomicU64,
    /// Whether the persister was asked to begin.
    is_due: AtomicBool,
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Pressure {
    /// Counts an inode that has changes from now on.
    pub(crate) fn add_inode(&self) {
        let inodes = self.inodes.fetch_add(1, SeqCst) + 1;
        if inodes >= EARLY.inodes {
            self.call();
        }
    }

    /// Counts bytes of data.
    pub(crate) fn add_bytes(&self, bytes: u64) {
        let bytes = self.bytes.fetch_add(bytes, SeqCst) + bytes;
        if bytes >= EARLY.bytes {
            self.call();
        }
    }

    /// Whether a caller must make changes persistent before it returns.
    pub(crate) fn is_too_high(&self) -> bool {
        self.inodes.load(SeqCst) >= MOST * EARLY.inodes
            || self.bytes.load(SeqCst) >= MOST * EARLY.bytes
    }

    /// A round takes all changes.
    pub(crate) fn begin_round(&self) {
        self.inodes.store(0, SeqCst);
        self.bytes.store(0, SeqCst);
    }

    fn call(&self) {
        if !self.is_due.swap(true, SeqCst) {
            // The persister holds the lock while it decides to wait.
            drop(self.is_over.lock());
            self.changed.notify_all();
        }
    }

    /// Waits until a round is due, at the latest at `next`. Returns false if there is to be none.
    pub(crate) fn wait(&self, next: Instant) -> bool {
        let mut is_over = self.is_over.lock();
        while !*is_over && !self.is_due.load(SeqCst) {
            if self.changed.wait_until(&mut is_over, next).timed_out() {
                break;
            }
        }
        self.is_due.store(false, SeqCst);
        !*is_over
    }

    /// Ends the waits of the persister.
    pub(crate) fn end(&self) {
        *self.is_over.lock() = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn much_calls_the_persister_and_more_holds_up_callers() {
        let pressure = Pressure::default();
        let late = Instant::now() + Duration::from_secs(600);
        pressure.add_bytes(EARLY.bytes - 1);
        assert!(!pressure.is_due.load(SeqCst));
        pressure.add_bytes(1);
        assert!(pressure.wait(late), "without the time");
        assert!(!pressure.is_too_high());
        pressure.add_bytes((MOST - 1) * EARLY.bytes);
        assert!(pressure.is_too_high());
        pressure.begin_round();
        assert!(!pressure.is_too_high());
        (0..EARLY.inodes).for_each(|_| pressure.add_inode());
        assert!(pressure.wait(late));
        pressure.end();
        assert!(!pressure.wait(late));
    }
}
