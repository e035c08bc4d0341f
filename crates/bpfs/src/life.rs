//! The life of an inode number. Guarantee: each life ends exactly once, after the last name and
//! the last reference of the inode are gone.
//!
//! `tests/lifetime.rs` also compiles this file, over atomics that a model checker schedules.
//! That is why the atomics are imported from the parent module.

use super::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

/// The names and references that keep an inode, and whether its number is in use.
#[derive(Debug, Default)]
pub(crate) struct Life {
    /// Whether the inode number is alive. Set last when the inode is made, cleared under its
    /// lock when it is freed.
    pub live: AtomicBool,
    /// Names of the inode. A directory has 0 or 1; its subdirectories are not counted.
    pub names: AtomicU32,
    /// References of callers (lookups and opens).
    pub refs: AtomicU64,
}

impl Life {
    /// Begins a life, with one reference. All other state of the inode is set before.
    pub(crate) fn begin(&self, names: u32) {
        self.names.store(names, SeqCst);
        self.refs.store(1, SeqCst);
        self.live.store(true, SeqCst);
    }

    /// Gives back `count` references of a live inode. Returns whether they were the last; the
    /// caller then calls [`end`](Self::end).
    pub(crate) fn unref(&self, count: u64) -> bool {
        let take = |refs: u64| Some(refs.saturating_sub(count));
        let before = self.refs.fetch_update(SeqCst, SeqCst, take).unwrap_or(0);
        before > 0 && before <= count
    }

    /// Ends the life if no name and no reference is left, and returns whether it did. The
    /// operation that removes the last name or reference calls this, with the inode's lock held
    /// for writing. On true it frees the contents, gives the number back, and releases the
    /// lock, in this order.
    pub(crate) fn end(&self) -> bool {
        // `live` is read first: another thread may have freed the number, and may be beginning
        // a new life whose counts are not set yet. A new life sets its counts before `live`.
        let ends =
            self.live.load(SeqCst) && self.names.load(SeqCst) == 0 && self.refs.load(SeqCst) == 0;
        if ends {
            self.live.store(false, SeqCst);
        }
        ends
    }
}
