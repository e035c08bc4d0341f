//! Bugs that can be put back to test the tests (3.6.5, and bugs seen in the wild); see
//! [`medium::seeded_bugs`]. They are process-wide, since a mount scans with several threads.

medium::seeded_bugs! {
    process-wide;

    /// An append first sets the new size and the old one again, then continues.
    SizeSetEarly,
    /// A write damages the first byte of each data block and mends it.
    FirstByte,
    /// The commit is stored byte by byte.
    CommitByMemcpy,
    /// A directory entry's length is stored before its inode number is valid.
    ReclenBeforeIno,
    /// The fence before the commit store is missing.
    NoFenceBeforeCommit,
    /// Height and root pointer are stored by two stores in sequence.
    HeightAndRootApart,
    /// The commit is never flushed.
    NoFlushOfCommit,
    /// The redo log is applied before its header is durable.
    ApplyBeforeLog,
    /// Freed blocks are used again before the commit.
    ReuseBeforeCommit,
    /// A time that a caller chose is stored together with the change time, not after it.
    TimesAtOnce,
    /// The stores of an aborted operation are not written back: neither at its end, nor by a
    /// later operation that relies on them.
    AbortUnflushed,
    /// A mount does not write back the bytes that it reads and trusts.
    MountUnflushed,
    /// Only the topmost block of a subtree that is cut off or punched out is freed.
    DroppedTreeLeaks,
    /// A cut tree gets its lower root together with the size, not after it.
    LoweredAtOnce,
    /// A replay of the log does not write back the records that it reads.
    ReplayUnflushed,
    /// A replay leaves its record in the log.
    ReplayKeepsRecord,
    /// A new inode has the generation of the one that had its number before.
    SameGeneration,
    /// A new indirect block keeps old contents in its null slots.
    IndirectNotCleared,
}

/// Whether bugs can be put back; code that only bugs need is left out otherwise.
pub(crate) const BUILT: bool = cfg!(any(test, feature = "seeded-bugs"));
