//! Bugs that can be put back to test the tests; see [`medium::seeded_bugs`]. They are process-wide,
//! since a model check has many threads.

medium::seeded_bugs! {
    process-wide;

    /// A lock is granted when its holder has been asked for it, and not when the holder has answered.
    GrantBeforeAnswer,
    /// A release is believed though it refers to an older grant.
    StaleRelease,
    /// A batch of a session that has ended is accepted.
    OldEpochAccepted,
}
