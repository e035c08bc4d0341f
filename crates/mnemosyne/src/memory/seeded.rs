//! Bugs that can be put back, to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// A new file has its name before its contents and its length are durable.
    NameBeforeContents,
    /// A new file counts as made before its name is durable.
    NameNotSynced,
    /// A new file counts as made before its contents and its length are durable.
    ContentsNotSynced,
    /// A directory has something in it before its own name is durable.
    DirectoryNotSynced,
    /// What a process that was killed has made is used before its name is durable.
    FoundNotSynced,
    /// The slot of a removed region is free, and a crash may bring back its file.
    RemovalNotSynced,
    /// The note of the boot is made after something was stored.
    NoteAfterStores,
    /// The note of the boot is not durable when something is stored.
    NoteNotSynced,
    /// The note of the boot is removed before the files are durable.
    NoteRemovedBeforeSync,
}
