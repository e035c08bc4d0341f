//! Bugs that can be put back to test the tests; see [`medium::seeded_bugs`]. They are process-wide,
//! since a model check has many threads.

medium::seeded_bugs! {
    process-wide;

    /// An exclusive intent is compatible with a hierarchical lock.
    IntentBesideTree,
}
