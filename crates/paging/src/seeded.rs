//! Bugs that can be seeded, to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// A frame's entry may be durable before the page is in the frame.
    EntryBeforeCopy,
    /// A page is stored to before the entry of its frame is durable.
    EntryNotDurable,
    /// A frame that changed is treated as unchanged, and not written back.
    ChangeNotSeen,
    /// Entries are cleared before the pages are durable in their files.
    ReleaseBeforeSync,
    /// A frame is used again while a crash can still restore its entry.
    ReuseBeforeReleased,
    /// A frame is released although its page was used again during its write-back.
    UsedAgainNotSeen,
}
