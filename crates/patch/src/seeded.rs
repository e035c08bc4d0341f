//! Bugs that can be put back, to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// A block goes as it is, with changes that must wait.
    LoseRollback,
    /// The commit block is written without waiting for the log's other blocks.
    CommitWithoutBody,
    /// Replay takes a transaction without a commit block, and blocks whatever their
    /// checksums.
    ReplayUncommitted,
    /// Freed blocks are not revoked.
    NoRevoke,
    /// A block may get data while the transaction that freed it is not committed.
    ForgetEmptied,
    /// Data wait for the commit that must wait for them.
    DataAfterCommit,
    /// The tail of the log moves on before what it protects is home.
    TailBeforeHome,
    /// A logged block that began with the log's magic number does not get it back.
    LoseEscape,
}
