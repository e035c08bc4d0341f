//! A table of locks, each of which guards the lines that hash to it.

use medium::LINE_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};

/// The contents of a lock: a version or its owner.
///
/// A free lock holds twice the time stamp of the last commit that changed its lines. A taken one
/// holds twice the owner's number, plus 1. A commit that waits for readers sets [`State::BLOCKED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State(u64);

impl State {
    /// The owner has committed, and keeps the lock until its readers have ended. No owner has this
    /// number.
    pub(super) const BLOCKED: Self = Self(u64::MAX);

    pub(super) fn free(version: u64) -> Self {
        Self(version << 1)
    }

    pub(super) fn taken(owner: u64) -> Self {
        Self(owner << 1 | 1)
    }

    /// The version of a free lock.
    pub(super) fn version(self) -> Option<u64> {
        (self.0 & 1 == 0).then_some(self.0 >> 1)
    }
}

/// Indices into the table.
pub(super) type LockIndex = u32;

#[derive(Debug)]
pub(super) struct Locks {
    table: Box<[AtomicU64]>,
}

impl Locks {
    /// At least `count` locks, all free and of version `version`.
    pub(super) fn new(count: usize, version: u64) -> Self {
        let count = count.next_power_of_two();
        let State(word) = State::free(version);
        Self {
            table: (0..count).map(|_| AtomicU64::new(word)).collect(),
        }
    }

    /// The number of locks.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// The lock of the word at `off`.
    #[inline]
    pub(super) fn of(&self, off: u64) -> LockIndex {
        (off / LINE_BYTES) as u32 & (self.table.len() - 1) as u32
    }

    #[inline]
    pub(super) fn state(&self, lock: LockIndex) -> State {
        // Acquire: the stores of the last owner are visible.
        State(self.table[lock as usize].load(Ordering::Acquire))
    }

    /// Takes a lock if its state is still `seen`.
    #[inline]
    pub(super) fn try_take(&self, lock: LockIndex, seen: State, owner: u64) -> bool {
        let taken = State::taken(owner);
        let lock = &self.table[lock as usize];
        lock.compare_exchange(seen.0, taken.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Marks a lock that its owner holds as [`State::BLOCKED`].
    pub(super) fn block(&self, lock: LockIndex) {
        let State(word) = State::BLOCKED;
        self.table[lock as usize].store(word, Ordering::Release);
    }

    /// Releases a lock with a new version.
    #[inline]
    pub(super) fn release(&self, lock: LockIndex, version: u64) {
        let State(word) = State::free(version);
        self.table[lock as usize].store(word, Ordering::Release);
    }
}
