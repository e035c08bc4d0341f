//! Bounds what is not persistent yet: the persister begins early when there is much, and callers run a
//! round themselves when there is too much. Nothing fails. A round takes only a part of much.

use crossbeam_utils::CachePadded;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Instant;

/// Changed inodes of a thread, or changes of names, or bytes written, with which the persister begins.
/// A new inode in memory takes at most 1 KiB.
const EARLY_INODES: usize = 16 << 10;
const EARLY_BYTES: u64 = 64 << 20;
/// As many times that much, callers wait.
const MOST: usize = 4;

/// The most that a round takes if others can follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portion {
    /// Dirty nodes.
    pub nodes: usize,
    /// Names and pages of data.
    pub units: usize,
    /// Names that are taken before the data of their inodes are counted.
    pub names: usize,
}

impl Portion {
    /// That of a mount.
    pub(crate) const OF_MOUNT: Self = Self {
        nodes: 512,
        units: 4096,
        names: 256,
    };
    /// The smallest one.
    pub(crate) const LEAST: Self = Self {
        nodes: 1,
        units: 1,
        names: 1,
    };
}

/// The amount of changes, and the calls of the persister.
#[derive(Default)]
pub(crate) struct Pressure {
    /// Bytes written since the last round began.
    bytes: CachePadded<AtomicU64>,
    has_too_many_inodes: AtomicBool,
    /// Whether the persister was asked to begin.
    is_due: AtomicBool,
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl Pressure {
    /// A thread has this many inodes with changes, or changes of names.
    pub(crate) fn has_inodes(&self, inodes: usize) {
        if inodes >= EARLY_INODES {
            self.call();
        }
        if inodes >= MOST * EARLY_INODES {
            self.has_too_many_inodes.store(true, SeqCst);
        }
    }

    /// Counts bytes of data.
    pub(crate) fn add_bytes(&self, bytes: u64) {
        let bytes = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        if bytes >= EARLY_BYTES {
            self.call();
        }
    }

    /// Whether a caller must make changes persistent before it returns.
    pub(crate) fn is_too_high(&self) -> bool {
        self.has_too_many_inodes.load(SeqCst)
            || self.bytes.load(Relaxed) >= MOST as u64 * EARLY_BYTES
    }

    /// A round takes all changes.
    pub(crate) fn begin_round(&self) {
        self.has_too_many_inodes.store(false, SeqCst);
        self.bytes.store(0, Relaxed);
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
        pressure.add_bytes(EARLY_BYTES - 1);
        pressure.has_inodes(EARLY_INODES - 1);
        assert!(!pressure.is_due.load(SeqCst));
        pressure.add_bytes(1);
        assert!(pressure.wait(late), "without the time");
        assert!(!pressure.is_too_high());
        pressure.add_bytes((MOST as u64 - 1) * EARLY_BYTES);
        assert!(pressure.is_too_high());
        pressure.begin_round();
        assert!(!pressure.is_too_high());
        pressure.has_inodes(EARLY_INODES);
        assert!(pressure.wait(late) && !pressure.is_too_high());
        pressure.has_inodes(MOST * EARLY_INODES);
        assert!(pressure.is_too_high());
        pressure.end();
        assert!(!pressure.wait(late));
    }
}
