//! Bugs that can be put back, to test the tests. Built only with the feature
//! `seeded-bugs`; without it every question is answered no at compile time.

/// A bug that tests with crashes must find (3.6.5, and bugs seen in the wild).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// An append sets the new size first and sets it back, then goes on.
    SizeSetEarly = 1,
    /// A write damages the first byte of each data block and mends it.
    FirstByte,
    /// The commit store is split in two.
    CommitByMemcpy,
    /// A directory entry's length is stored before its inode number is valid.
    ReclenBeforeIno,
    /// The fence before the commit store is missing.
    NoFenceBeforeCommit,
    /// Height and root pointer are stored one after the other.
    HeightAndRootApart,
    /// What is committed is never flushed.
    NoFlushOfCommit,
    /// The redo log is applied before its header is durable.
    ApplyBeforeLog,
    /// Freed blocks are used again before the commit.
    ReuseBeforeCommit,
    /// A time that a caller chose is stored along with the change time, not after it.
    TimesAtOnce,
    /// What an aborted operation has stored is not written back: neither at its end, nor by
    /// who finds it there.
    AbortUnflushed,
    /// A mount does not write back what it reads and trusts.
    MountUnsettled,
    /// Of a subtree that is cut off or punched out only the topmost block is freed.
    DroppedTreeLeaks,
    /// A cut tree gets its lower root along with the size, not after it.
    LoweredAtOnce,
    /// A replay of the log does not write back the records that it reads.
    ReplayUnsettled,
    /// A replay leaves its record in the log.
    ReplayKeepsRecord,
    /// A new inode has the generation of the one that had its number before.
    SameGeneration,
    /// A new indirect block keeps what was in its null slots.
    IndirectNotCleared,
}

impl Bug {
    /// Every bug.
    pub const ALL: [Bug; 18] = [
        Bug::SizeSetEarly,
        Bug::FirstByte,
        Bug::CommitByMemcpy,
        Bug::ReclenBeforeIno,
        Bug::NoFenceBeforeCommit,
        Bug::HeightAndRootApart,
        Bug::NoFlushOfCommit,
        Bug::ApplyBeforeLog,
        Bug::ReuseBeforeCommit,
        Bug::TimesAtOnce,
        Bug::AbortUnflushed,
        Bug::MountUnsettled,
        Bug::DroppedTreeLeaks,
        Bug::LoweredAtOnce,
        Bug::ReplayUnsettled,
        Bug::ReplayKeepsRecord,
        Bug::SameGeneration,
        Bug::IndirectNotCleared,
    ];
}

/// Whether bugs can be put back: what only they need is left out otherwise.
pub(crate) const BUILT: bool = cfg!(feature = "seeded-bugs");

#[cfg(feature = "seeded-bugs")]
mod armed {
    use super::Bug;
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

    static ARMED: AtomicU8 = AtomicU8::new(0);
    static FIRED: AtomicU64 = AtomicU64::new(0);

    /// Puts one bug back, for the whole process, and clears the counter.
    pub fn arm(bug: Bug) {
        FIRED.store(0, Relaxed);
        ARMED.store(bug as u8, Relaxed);
    }

    /// Takes the bug out again.
    pub fn disarm() {
        ARMED.store(0, Relaxed);
    }

    /// How often the armed bug took effect.
    pub fn fired() -> u64 {
        FIRED.load(Relaxed)
    }

    pub(crate) fn hit(bug: Bug) -> bool {
        let hit = ARMED.load(Relaxed) == bug as u8;
        if hit {
            FIRED.fetch_add(1, Relaxed);
        }
        hit
    }
}

#[cfg(feature = "seeded-bugs")]
pub(crate) use armed::hit;
#[cfg(feature = "seeded-bugs")]
pub use armed::{arm, disarm, fired};

#[cfg(not(feature = "seeded-bugs"))]
#[inline(always)]
pub(crate) fn hit(_: Bug) -> bool {
    false
}
