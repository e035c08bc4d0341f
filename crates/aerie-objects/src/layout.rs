//! The bytes of a partition; `format.md` describes them.

/// Bytes of a page, the unit of allocation.
pub const PAGE: u64 = 4096;
/// Words of a page of pointers.
pub const FANOUT: u64 = PAGE / 8;
/// Most levels of pointers between an object and a page of its contents.
pub const MAX_HEIGHT: u64 = 4;
/// The least number of pages of a partition.
pub const MIN_PAGES: u64 = 32;

/// The first bytes.
pub const MAGIC: [u8; 8] = *b"SELVAERI";
/// Version of the format of a store with one redo log.
pub const VERSION: u64 = 1;
/// Version of the format of a store with several redo logs.
pub const VERSION_OF_SEVERAL: u64 = 2;
/// Most redo logs of a store.
pub const LOGS_MAX: u64 = 16;
/// Least bytes of a redo log.
pub const LOG_MIN: u64 = 4 * PAGE;

/// Offsets in the superblock.
pub mod at {
    /// Version of the format (lower half), and the number of redo logs if there are several (upper half).
    pub const VERSION: u64 = 8;
    /// Bytes of the partition.
    pub const BYTES: u64 = 16;
    /// Byte offset of the first redo log. The others follow it.
    pub const LOG: u64 = 24;
    /// Bytes of the first redo log.
    pub const LOG_BYTES: u64 = 32;
    /// UUID (16 bytes).
    pub const UUID: u64 = 40;
    /// The root collection.
    pub const ROOT: u64 = 56;
    /// The collection of objects without a name that are in use.
    pub const OPEN: u64 = 64;
    /// The collection of files with extended attributes of objects.
    pub const ATTRIBUTES: u64 = 72;
    /// CRC-32 of the 80 bytes before it.
    pub const CRC: u64 = 80;
    /// Number of times that the store was opened for changes.
    pub const EPOCH: u64 = 88;
}

/// Words of the header of an object, by their number.
pub mod header {
    /// Kind (8 bits), generation (the other 56). 0: the header is free.
    pub const KIND: u64 = 0;
    /// Number of entries that lead to the object.
    pub const MEMBERS: u64 = 1;
    /// Root of the tree of pages: byte offset of a page, with the height in the low bits; 0: no pages.
    pub const ROOT: u64 = 2;
    /// Number of pages of the object, those of its tree too.
    pub const PAGES: u64 = 3;
    /// Bytes of an mFile; buckets of a collection.
    pub const SIZE: u64 = 4;
    /// Entries of a collection.
    pub const ENTRIES: u64 = 5;
    /// Odd while the service changes the object; another even number after each change.
    pub const VERSION: u64 = 6;
    /// The collection with the only entry for the object. 0 without an entry; also for an mFile that has or
    /// had several.
    pub const PARENT: u64 = 7;
    /// The first word that belongs to the layer above.
    pub const OWN: u64 = 8;
    /// Number of words that belong to the layer above.
    pub const OWN_WORDS: u64 = 8;
}
const _: () = assert!((header::OWN + header::OWN_WORDS) * 8 == super::id::HEADER_BYTES);

/// Bytes of a bucket of a collection.
pub const BUCKET: u64 = 1024;
/// Buckets in a page.
pub const BUCKETS: u64 = PAGE / BUCKET;
/// Most bytes of a key.
pub const KEY_MAX: usize = 255;
