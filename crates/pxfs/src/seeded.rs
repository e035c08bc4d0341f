//! Bugs that can be put back to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// A page of a write need not be in the client's reserve.
    ForeignPage,
    /// A new object gets a header that the client has not reserved, in place of a refusal.
    ForeignObject,
    /// A client that is not trusted acts for another user.
    AnyCaller,
    /// A client that is not trusted says that an open file permits a call, and is believed.
    ClaimBelieved,
    /// Locks need not cover a changed object.
    CoverNotAsked,
    /// A file that was not opened for writing is written.
    OpenNotAsked,
    /// An operation has any time.
    AnyTime,
    /// A refused operation is not undone.
    RefusedNotUndone,
    /// Memory of the reserve that a refused operation has taken is lost.
    ReserveLost,
    /// A client that is not trusted names inodes in directories that it may not search.
    PathNotSearched,
    /// A client that is not trusted has stored the contents of a write.
    StoredByAnyone,
    /// A client that is not trusted uses inodes of a directory that it may list, and not search.
    ListedReached,
    /// A put does not look at the permissions of the file that it replaces.
    PutOverAnything,
    /// Users read what is in directories that they may not search.
    ParentIgnored,
    /// A client ships before the contents that it has stored are durable.
    StoredNotFlushed,
    /// A ship does not wait until pages are durable that were filled around the caches.
    FilledNotFenced,
    /// A ship counts for calls that were recorded after it.
    ShipEndedLate,
    /// A ship beside calls drops what was recorded meanwhile from what the client sees.
    DroppedBeside,
    /// A client goes on with what the service has refused.
    RefusalKept,
    /// A client relies on where paths led before a change.
    PathsKept,
    /// Bytes that a batch cuts off and covers again become zeros before it is durable.
    ZerosBeforeCut,
    /// A client stores zeros beyond the end of a file over contents that a call has cut off which was not shipped.
    ZerosOverUncut,
    /// A batch deletes an object that another one has begun to hold.
    HeldUnclaimed,
}
