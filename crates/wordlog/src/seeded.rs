//! Bugs that can be put back, to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// A flush of a log does not wait for the appended words.
    UnfencedLog,
    /// A base log stores its end before the records are durable.
    TailBeforeRecords,
    /// Recovery leaves words of an append that a crash cut off.
    Unscrubbed,
    /// Recovery leaves words of an append that a crash cut off, at the start of the ring.
    ScrubbedToEnd,
    /// Recovery leaves wrong torn bits in the records that it frees.
    ScrubbedToOldHead,
    /// Recovery scrubs without a fence, and later appends may be durable before.
    UnfencedScrub,
    /// Recovery frees the records of a log, and does not write that back.
    UnflushedHead,
    /// The torn bit is the same in every pass over the ring.
    NoFlip,
    /// A new log may be found before all of it is durable.
    UnfencedFormat,
    /// Room of a log is used again while a crash can still bring back its records.
    ReuseBeforeTruncated,
}
