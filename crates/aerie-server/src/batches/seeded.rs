//! Bugs that can be put back to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// Locks and permissions of the changed object are not checked.
    AuthorityNotAsked,
    /// An extent that was created can be added twice.
    ExtentAddedTwice,
    /// An extent need not be in the client's reserve.
    ForeignExtent,
    /// Contents of a file that look like a header are taken for an object.
    ForgedHeader,
    /// An operation may end with conditions outstanding.
    OutstandingAccepted,
    /// An object with entries may be deleted.
    DeletedWithEntries,
    /// An entry may be removed under the id of another object.
    OtherObjectRemoved,
    /// A refused operation is not undone.
    RefusedNotUndone,
    /// Memory of the reserve that a refused operation has taken is lost.
    ReserveLost,
    /// The parts of an operation need not be those of its kind.
    ShapeNotChecked,
}
