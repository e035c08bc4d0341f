//! Bugs that can be put back to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// New pages are not durable before the record that points to them.
    NoInitFence,
    /// Words are stored home before their record is durable.
    HomeBeforeLog,
    /// A record is truncated before its words are durable at home.
    ReclaimBeforeHome,
    /// A page that a transaction has freed is used again by the same transaction.
    ReuseAtOnce,
    /// No fence after the number of an epoch.
    NoEpochFence,
    /// Contents of files are not durable before the record that shows them.
    ContentsNotFenced,
    /// A recovery truncates the log before the words of its records are durable.
    ReplayNotFenced,
    /// A recovery stores words at home while their record may be in the caches only.
    ReplayBeforeLog,
    /// A roll-back keeps the words of what it rolls back.
    RollBackForgotten,
    /// Pages of an object that loses readers keep them.
    NotNarrowed,
    /// Pages lose readers after the change is durable, not before.
    NarrowedLate,
    /// Pages gain readers before the change is durable.
    WidenedEarly,
    /// A page is used for an object although others may read the page.
    ReusedAsItIs,
    /// A page that gains readers has remains.
    RemainsKept,
    /// Opening a store repairs no readers.
    NotRepaired,
    /// Two open transactions change the same object.
    ClaimedTwice,
    /// Claims end before the record is truncated.
    ClaimsEndEarly,
    /// A recovery replays the first log only.
    OneLogReplayed,
    /// A roll-back frees a page of headers of which another transaction has taken one.
    HeadersTakenBack,
    /// New headers are not zeros.
    HeadersNotCleared,
    /// Others take headers of a new page before its zeros are durable.
    HeadersNotFenced,
    /// A speculation keeps private lines of memory that the service has freed.
    FreedKept,
    /// A speculation drops changes of files that the service has not run.
    ChangedDropped,
    /// A speculation forgets that it has deleted an object.
    NotBuried,
    /// A directory moves beside other transactions.
    MovedBeside,
}
