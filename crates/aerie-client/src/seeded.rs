//! Bugs that can be put back to test the tests; see [`medium::seeded_bugs`]. They are process-wide,
//! since a clerk serves many threads.

medium::seeded_bugs! {
    process-wide;

    /// A lock is released before the log is shipped.
    ReleaseBeforeShip,
    /// The membership count is that from before the locks were acquired.
    CountNotReread,
    /// Threads still get a lock that has been revoked.
    GrantsAfterRevoke,
    /// A hierarchical lock is lowered before the locks of descendants in use are there.
    AncestorFirst,
    /// A revoke that overtakes its grant is ignored.
    EarlyRevokeIgnored,
    /// A thread gets a guard while others have passes.
    GuardBesidePasses,
    /// A lock is lowered while threads have passes.
    LoweredBesidePasses,
    /// A thread that has counted its pass does not look again whether the clerk is open.
    PassUnseen,
}
