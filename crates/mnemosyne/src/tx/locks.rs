//! Who may touch what: a table of locks, each of which guards the lines that hash to it.

use medium::LINE_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a lock holds: a version, or its owner.
///
/// Free: twice the time stamp of the last commit that changed what it guards. Taken: twice
/// the owner's number, and 1. Taken by a commit that waits for readers: [`State::BLOCKED`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State(u64);

impl State {
    /// The owner has committed, and keeps the lock until others have ended. No owner has this
    /// number.
    pub const BLOCKED: Self = Self(u64::MAX);

    pub fn free(version: u64) -> Self {
        Self(version << 1)
    }

    pub fn taken(owner: u64) -> Self {
        Self(owner << 1 | 1)
    }

    /// The version, if it is free.
    pub fn version(self) -> Option<u64> {
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
    pub fn new(count: usize, version: u64) -> Self {
        let count = count.next_power_of_two();
        let State(word) = State::free(version);
        Self {
            table: (0..count).map(|_| AtomicU64::new(word)).collect(),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// The lock of the word at `off`.
    #[inline]
    pub fn of(&self, off: u64) -> LockIndex {
        (off / LINE_BYTES) as u32 & (self.table.len() - 1) as u32
    }

    #[inline]
    pub fn state(&self, lock: LockIndex) -> State {
        // Acquire: what the last owner stored is seen.
        State(self.table[lock as usize].load(Ordering::Acquire))
    }

    /// Takes a lock, if it is still as it was seen.
    #[inline]
    pub fn take(&self, lock: LockIndex, seen: State, owner: u64) -> bool {
        let taken = State::taken(owner);
        let lock = &self.table[lock as usize];
        lock.compare_exchange(seen.0, taken.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Marks a lock that its owner has taken as [`State::BLOCKED`].
    pub fn block(&self, lock: LockIndex) {
        let State(word) = State::BLOCKED;
        self.table[lock as usize].store(word, Ordering::Release);
    }

    /// Gives a lock back.
    #[inline]
    pub fn release(&self, lock: LockIndex, version: u64) {
        let State(word) = State::free(version);
        self.table[lock as usize].store(word, Ordering::Release);
    }
}
