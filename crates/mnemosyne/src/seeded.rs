//! Bugs that can be put back, to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// Room of a log is used again before a crash can no longer bring back its records.
    ReuseBeforeTruncated,
    /// Words are stored in place before the log has them.
    HomeBeforeLog,
    /// Logs are truncated one by one, without the low water: the lost-update hole.
    NoLowWater,
    /// Records are given back before their words are durable in place.
    ReclaimBeforeHome,
    /// Words are written back by one thread, and another one's fence is taken for theirs.
    UnfencedWriteBack,
    /// A line that was written back by an earlier round counts as written back.
    WrittenBackBefore,
    /// Recovery does not write back what it brings in place.
    UnflushedRecovery,
    /// Recovery ends the life of records before their words are durable in place.
    LowWaterBeforeReplay,
    /// Recovery brings transactions in place log by log, and not in the order of their stamps.
    ReplayUnordered,
    /// Recovery brings in place what is below the low water, too.
    ReplayAll,
    /// A word of which some bytes were written is logged and stored as a whole.
    WholeWords,
    /// Recovery brings words in place as a whole of which some bytes were written.
    ReplayWhole,
    /// A word is stored without a log while a log has an older one for it.
    WordInLog,
    /// A word that is stored without a log is seen before it is durable.
    UnfencedWord,
    /// A record may be durable before what the transaction filled is.
    FillAfterLog,
    /// What the transaction filled by plain stores is not written back before its record.
    FillUnflushed,
    /// back before the record.
    UndoneUnflushed,
    /// A record may be durable before the overflow that it names.
    OverflowAfterLog,
    /// The pages of an overflow are handed out while a log names them.
    OverflowInLog,
    /// A block is handed out without its bit.
    BlockWithoutBit,
    /// A freed block is handed out while a recovery could bring back what was in it.
    FreshBlockInLog,
    /// A block whose free was rolled back counts as free.
    FreedByAbort,
    /// A region is there for others before its bytes are made.
    RegionBeforeBytes,
    /// A region may be there after a crash before its zeros are durable.
    UnfencedRegion,
    /// A part of the heap may be there after a crash before it is one.
    UnfencedSegment,
    /// A region's bytes go while a recovery could bring back what was in them.
    RegionInLog,
    /// What a repair stores is neither logged nor written back.
    UnloggedRepair,
    /// A word that was stored without a transaction is durable while a log has an older one.
    PlainStoreInLog,
}
