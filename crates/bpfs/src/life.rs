//! The life of an inode number. What is guaranteed: each life ends exactly once, never
//! while the inode has a name or a reference, and always after the last of them is gone.
//!
//! `tests/lifetime.rs` compiles this file, too, over atomics that a model checker
//! schedules; hence they are the parent's.

use super::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};

/// What keeps an inode, and whether its number stands for one.
#[derive(Debug, Default)]
pub(crate) struct Life {
    /// Set last when the inode is made, cleared under its lock when it is freed: what a
    /// dead inode number is told by.
    pub live: AtomicBool,
    /// Names that refer to the inode (a directory: 0 or 1, its subdirectories apart).
    pub names: AtomicU32,
    /// References of callers (lookups and opens).
    pub refs: AtomicU64,
}

impl Life {
    /// Begins a life, with one reference. All else that belongs to the inode is in place.
    pub fn begin(&self, names: u32) {
        self.names.store(names, SeqCst);
        self.refs.store(1, SeqCst);
        self.live.store(true, SeqCst);
    }

    /// Gives back `count` references of a live inode. Returns whether the last went; then
    /// the caller asks for the [`end`](Self::end).
    pub fn unref(&self, count: u64) -> bool {
        let take = |refs: u64| Some(refs.saturating_sub(count));
        let before = self.refs.fetch_update(SeqCst, SeqCst, take).unwrap_or(0);
        before > 0 && before <= count
    }

    /// Ends the life if nothing keeps it. Whoever took the last name or reference calls
    /// this, with the inode's lock held for writing; told true, it frees the contents and
    /// then gives the number back, before it lets go of the lock.
    pub fn end(&self) -> bool {
        // First whether it lives: a number that the other of two freed may be on its way to
        // a new life, with no counts as yet; a new life has its counts before it is live.
        let ends =
            self.live.load(SeqCst) && self.names.load(SeqCst) == 0 && self.refs.load(SeqCst) == 0;
        if ends {
            self.live.store(false, SeqCst);
        }
        ends
    }
}
