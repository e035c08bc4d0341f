//! Bugs that can be put back, to test the tests (3.6.5, and bugs seen in the wild); see
//! [`medium::seeded_bugs`]. A mount scans with several threads.

medium::seeded_bugs! {
    process-wide;

    /// An append sets the new size first and sets it back, then goes on.
    SizeSetEarly,
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

/// Whether bugs can be put back: what only they need is left out otherwise.
pub(crate) const BUILT: bool = cfg!(any(test, feature = "seeded-bugs"));
