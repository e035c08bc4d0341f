//! Bugs that can be put back to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// Room of a log is reused while a crash can still bring back its records.
    ReuseBeforeTruncated,
    /// Words are stored at their addresses before the log has them.
    HomeBeforeLog,
    /// Logs are truncated one by one, without the low water: the lost-update hole.
    NoLowWater,
    /// Records are given back before their words are durable at their addresses.
    ReclaimBeforeHome,
    /// One thread writes words back, and the fence of another thread counts for them.
    UnfencedWriteBack,
    /// A line that was written back by an earlier round counts as written back.
    WrittenBackBefore,
    /// Recovery does not write back the words that it replays.
    UnflushedRecovery,
    /// Recovery ends the life of records before their words are durable at their addresses.
    LowWaterBeforeReplay,
    /// Recovery replays log by log, not in the order of the stamps.
    ReplayUnordered,
    /// Recovery also replays records below the low water.
    ReplayAll,
    /// A word is logged and stored as a whole although only some of its bytes were written.
    WholeWords,
    /// Recovery replays a word as a whole although only some of its bytes were written.
    ReplayWhole,
    /// A word is stored without a log while a log has an older value of it.
    WordInLog,
    /// A word that is stored without a log is visible before it is durable.
    UnfencedWord,
    /// A record may be durable before the stores that fill blocks of its transaction.
    FillAfterLog,
    /// Plain stores that fill a block are not written back before the record.
    FillUnflushed,
    /// Bytes that were streamed, then restored by plain stores when an inner transaction was
    /// cancelled, are not written back before the record.
    UndoneUnflushed,
    /// A record may be durable before the overflow that it names.
    OverflowAfterLog,
    /// The pages of an overflow are reused while a log names them.
    OverflowInLog,
    /// A block is handed out without setting its bit.
    BlockWithoutBit,
    /// A freed block is handed out while recovery could restore its old contents.
    FreshBlockInLog,
    /// A block whose free was rolled back counts as free.
    FreedByAbort,
    /// A region is visible to other threads before its bytes exist.
    RegionBeforeBytes,
    /// A region may exist after a crash before its zeros are durable.
    UnfencedRegion,
    /// A part of the heap may exist after a crash before it is formatted.
    UnfencedSegment,
    /// A region's bytes are freed while recovery could restore their old contents.
    RegionInLog,
    /// The stores of a repair are neither logged nor written back.
    UnloggedRepair,
    /// A word that was stored without a transaction is durable while a log has an older value.
    PlainStoreInLog,
}
