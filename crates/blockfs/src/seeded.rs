//! Bugs that can be put back, to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// A name may reach the medium before its inode.
    NameBeforeInode,
    /// A block may be filled anew before the pointers of its former owner are gone.
    ReuseBeforeNullify,
    /// A rename may remove the old name before the new one is there.
    OldNameFirst,
    /// A pointer may reach the medium before what it points to.
    PointBeforeFill,
    /// An open file without a name may lose its blocks before its name is gone.
    EmptyBeforeUnlink,
    /// A name of a file may be removed before another one is there.
    UnlinkBeforeLink,
    /// An fsync may not wait for the zeroing of the rest of a block that a file was cut in.
    ForgetClearedTail,
    /// A file may grow before the rest of its last block is zeros.
    GrowBeforeClear,
    /// A further name may reach the medium before what its file's first name waits for.
    SecondNameBeforeInode,
    /// A further name of a directory may reach the medium before the one that it has.
    NamesAtOnce,
    /// A name may be removed before the directory with the other one has a name.
    UnlinkBeforePath,
    /// A name of a directory may be removed while its name before that one is there.
    RemoveBeforeOldName,
    /// A directory may lose its name before what was moved out of it has another one.
    DirectoryBeforeContents,
    /// A directory may be moved below one that still has a name in it.
    RingOfNames,
    /// An fsync takes the zeroing of the rest of a cut block for durable, and does not wait for it.
    ClearedCountsAsSynced,
    /// A file may grow over blocks that a crash has left past its size.
    GrowOverLeft,
    /// An fsync of a new file may not wait for its name.
    FsyncWithoutName,
    /// An fsync may not wait for the names of the new directories above.
    FsyncWithoutPath,
    /// An fdatasync may not wait for a new size.
    FdatasyncWithoutSize,
    /// An fdatasync may not wait for overwritten data, nor for the pointers to new blocks.
    FdatasyncWithoutData,
    /// A mount does not flush the device's cache, in which a killed server may have left changes.
    MountUnflushed,
}
