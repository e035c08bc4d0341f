//! Bugs that can be put back, to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// A new indirect block keeps its old contents.
    IndirectNotCleared,
    /// A new inode keeps the block pointers that were in its place.
    InodeNotCleared,
    /// A new indirect block may be filled before the pointers of its former owner are gone.
    IndirectBeforeReuse,
    /// A new block of a directory may be filled before those pointers are gone.
    DirectoryBeforeReuse,
    /// A directory may grow by a block before the block is filled.
    GrowBeforeFill,
    /// A pointer may reach the medium before its block is marked as used.
    PointBeforeBit,
    /// An attribute block may be free before an inode that has shared it is off it.
    SharerForgotten,
    /// A new inode has the generation of the one that had its number before.
    SameGeneration,
    /// A name that is made again may reach the medium before its removal elsewhere.
    NameTwice,
    /// The seconds and the nanoseconds of a time may reach the medium in two writes.
    HalfTime,
    /// A mount counts generations from 0 again.
    GenerationsRestart,
}
