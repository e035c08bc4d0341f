//! Bugs that can be put back to test the tests; see [`medium::seeded_bugs`].

medium::seeded_bugs! {
    /// A new file gets its name before its contents and its length are durable.
    NameBeforeContents,
    /// A new file counts as made before its name is durable.
    NameNotSynced,
    /// A new file counts as made before its contents and its length are durable.
    ContentsNotSynced,
    /// A directory has files before its own name is durable.
    DirectoryNotSynced,
    /// Files of a killed process are used before their names are durable.
    FoundNotSynced,
    /// The slot of a removed region is free while a crash may restore its file.
    RemovalNotSynced,
    /// The note of the boot is made after a store.
    NoteAfterStores,
    /// The note of the boot is not durable before a store.
    NoteNotSynced,
    /// The note of the boot is removed before the files are durable.
    NoteRemovedBeforeSync,
    /// An orderly end makes plain stores durable only if there is a note of the boot.
    OnlyNotedSynced,
}
