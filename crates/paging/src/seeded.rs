//! Bugs that can be put back, to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// A frame's entry may be durable before the page is in the frame.
    EntryBeforeCopy,
    /// A page is stored to before the entry of its frame is durable.
    EntryNotDurable,
    /// A frame that changed is taken for one that did not, and not written back.
    ChangeNotSeen,
    /// Entries are cleared before the pages are durable in their files.
    ReleaseBeforeSync,
    /// A frame is used again before a crash can no longer bring back its entry.
    ReuseBeforeReleased,
    /// A frame goes although its page was used again while it was written back.
    UsedAgainNotSeen,
}
