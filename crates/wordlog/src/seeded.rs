//! Bugs that can be put back, to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// A flush of a log does not wait for what was appended.
    UnfencedLog,
    /// A base log says where it ends before the records are there.
    TailBeforeRecords,
    /// Recovery leaves words of an append that a crash cut short.
    Unscrubbed,
    /// Recovery leaves those words of a cut append that lie at the start of the ring.
    ScrubbedToEnd,
    /// Recovery scrubs, and what is appended may be durable before.
    UnfencedScrub,
    /// Recovery gives back the records of a log, and does not write that back.
    UnflushedHead,
    /// The torn bit is the same in every pass over the ring.
    NoFlip,
    /// A log may be found whole before the rest of it is made.
    UnfencedFormat,
    /// Room of a log is used again before a crash can no longer bring back its records.
    ReuseBeforeTruncated,
}
