//! Bugs that can be put back, to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// A block is written with changes that must wait.
    LoseRollback,
    /// A patch that heads a block-level cycle becomes hard.
    HardInCycle,
    /// The commit block is written without waiting for the log's other blocks.
    CommitWithoutBody,
    /// Replay accepts a transaction without a commit block, and blocks with wrong checksums.
    ReplayUncommitted,
    /// Freed blocks are not revoked.
    NoRevoke,
    /// Data are written to a block while the transaction that freed it is not committed.
    ForgetEmptied,
    /// Data wait for the commit instead of the commit for the data.
    DataAfterCommit,
    /// The tail of the log passes a transaction before its blocks are home.
    TailBeforeHome,
    /// Replay does not restore the magic number at the start of an escaped block.
    LoseEscape,
    /// A group waits for a part of the group before it.
    GroupReleasedEarly,
    /// A group waits for nothing of an earlier group that is partly durable.
    GroupPartlyDurable,
    /// The sync of a group does not wait for the groups before it.
    GroupSyncedAlone,
    /// A journal drops the order of a group from data that are not logged.
    GroupLostByData,
    /// A transaction of a later group does not wait for data of an earlier one.
    GroupBeforeData,
    /// The mode without order drops that of groups, too.
    GroupLostByAsync,
}
