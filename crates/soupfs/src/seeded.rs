//! Bugs that can be put back to test the tests; see [`medium::seeded_bugs`]. They are process-wide,
//! since a persister has a thread of its own.

medium::seeded_bugs! {
    process-wide;

    /// A dentry is published before its inode is persistent.
    PublishBeforeInode,
    /// A dentry is published before its name is persistent.
    PublishBeforeName,
    /// A dentry is published before it is persistent itself, with its link to the next one.
    PublishBeforeDentry,
    /// No fence between the new structures and the links to them.
    NoInitFence,
    /// No fence after the links that publish.
    NoPublishFence,
    /// Of several persisters only one fences new structures.
    InitPartWithoutFence,
    /// Of several persisters only one fences links that publish.
    PublishPartWithoutFence,
    /// Of several persisters only one fences pointers, attributes and link counts.
    FinishPartWithoutFence,
    /// Of several persisters only one fences greater sizes.
    GrowPartWithoutFence,
    /// No fence after greater sizes, tables, and modes.
    NoGrowFence,
    /// The old name of a rename is removed before the new one is there.
    RemoveBeforeAdd,
    /// Memory is free before the removal of what led to it is persistent.
    FreeBeforeRemoval,
    /// No fence after pointers, attributes and link counts.
    NoFinishFence,
    /// Latest links of an older epoch are believed.
    StaleEpoch,
    /// A greater size before the bytes of the blocks.
    SizeBeforeData,
    /// The last line of a block is not flushed.
    LastLineNotFlushed,
    /// An open file without a name changes in place before the removals of its names are persistent.
    GoneEarly,
    /// Blocks that were cut off are free before the pointers to them are removed.
    FreeBeforeCut,
    /// An allocation bit that is not set before there is a pointer.
    BitAfterPointer,
    /// A name in a new directory does not wait for the directory's own.
    ChildBeforeParent,
    /// A removal does not wait for the other new names of the inode.
    RemovalBeforeOthers,
    /// The removal of a directory does not wait for what was moved out of it.
    RemovalBeforeMoves,
    /// The move of a directory does not wait for the move before it.
    MovesAtOnce,
    /// A directory gets two names at once.
    TwoParents,
    /// The removal of one of two names of a directory takes the directory.
    TwinTaken,
    /// A directory that loses the name in its parent keeps the parent.
    ParentKept,
    /// `fsync` of a file leaves out the names that its own waits for.
    FsyncWithoutPath,
    /// An `fsync` runs beside others that change the same inodes.
    NothingClaimed,
    /// An `fsync` runs beside others that change the same chains.
    ChainsUnclaimed,
    /// An `fsync` counts a directory while another one stores the parent's mode beside the count: it neither
    /// claims the parent nor looks whether another one has.
    ParentUnclaimed,
    /// An `fsync` of a name does not wait for the rights of its directory, which another one stores.
    RightsUnchecked,
    /// An `fsync` changes a chain in a table that another one is about to link.
    PathUnchecked,
    /// A sync in portions ends without a round that takes everything.
    NoLastRound,
    /// A round forgets the changes that others have taken.
    TakenForgotten,
    /// A bit is set in a word of the bitmap that others may have changed since it was read.
    MarkUnlocked,
    /// A round forgets that calls have changed a node meanwhile.
    ListedLate,
    /// A round forgets blocks that calls have written meanwhile.
    StagedForgotten,
    /// A directory leaves memory while only its latest view splits a chain.
    ForgottenSlots,
    /// Rounds begin once in the time of the bound.
    OneRoundPerBound,
    /// A round of all nodes leaves out one of several.
    NodeLeftOut,
    /// Stores that a killed server has not flushed are not flushed later.
    NotAdopted,
    /// A mount takes a boot that is not known for another one.
    UnknownBoot,
    /// No fence after the number of a mount's epoch.
    NoEpochFence,
    /// No fence between the removal of an older signature and the parts of a new file system.
    NoEraseFence,
    /// No fence between the parts of a new file system and its signature.
    NoMakeFence,
    /// No fence after the signature of a new file system.
    NoMadeFence,
    /// No fence between the last bits that an unmount clears and its mark.
    CleanBeforeFree,
    /// No fence after the mark of an unmount.
    NoCleanFence,
    /// An unmount forgets that an earlier crash may have left something.
    RemainsForgotten,
    /// A repair builds on stores that a killed server has not flushed.
    RepairNotAdopted,
    /// A repair does not record its boot, so that the next one takes its stores for flushed.
    RepairUnmarked,
}
