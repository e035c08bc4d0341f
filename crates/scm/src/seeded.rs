//! Bugs that can be put back, to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// The phase of the intent may be durable before its fields.
    PhaseBeforeFields,
    /// Room is allocated before the intent is durable.
    RoomBeforeIntent,
    /// An identity is committed before room and contents are durable.
    CommitBeforeContents,
    /// The old place is punched before the commit is durable.
    PunchBeforeCommit,
    /// The intent is cleared before the identities are durable.
    ClearBeforeIdentities,
    /// The intent is cleared before the old place is punched durably.
    ClearBeforePunch,
    /// The intent is used again before its clearing is durable.
    ReuseBeforeClear,
    /// The seal of a record may be durable before the record.
    SealBeforeRecord,
    /// The old version of a record is removed before the new one is durable.
    RemoveBeforeReplaced,
    /// A partition's record may be durable before its empty identity table.
    PartitionBeforeTable,
}
