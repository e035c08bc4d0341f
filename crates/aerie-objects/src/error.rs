//! Errors.

use crate::ObjectId;
use medium::MediumError;
use wordlog::LogError;

/// Errors of storage objects.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The memory has no storage objects of this version.
    #[error("no store of objects: {0}")]
    NotAStore(String),
    /// A structure violates the format.
    #[error("{structure} at byte {at:#x} is damaged: {why}")]
    Damaged {
        /// The kind of the structure.
        structure: &'static str,
        /// Byte offset of the structure or of the word.
        at: u64,
        /// The damage.
        why: String,
    },
    /// No page is free.
    #[error("the store is full")]
    Full,
    /// The transaction is too large for the log.
    #[error("a transaction of {words} words does not fit into the log, which takes {most}")]
    TooLarge {
        /// Words of the record.
        words: u64,
        /// The most words of a record.
        most: u64,
    },
    /// The id denotes no object: its header is free, or of another kind.
    #[error("there is no {0}")]
    NoObject(ObjectId),
    /// No page of an object can have this index.
    #[error("no page can have index {0}")]
    NoIndex(u64),
    /// The collection is in a collection already.
    #[error("{0} is in a collection already")]
    HasParent(ObjectId),
    /// The collection would contain itself.
    #[error("{0} would be inside itself")]
    Cycle(ObjectId),
    /// The collection has entries.
    #[error("{0} has entries")]
    NotEmpty(ObjectId),
    /// The key is empty or longer than [`KEY_MAX`](crate::KEY_MAX).
    #[error("a key of {0} bytes: it must have 1 to {max}", max = crate::KEY_MAX)]
    KeyLength(usize),
    /// The key is in the collection already.
    #[error("the collection has the key already")]
    KeyExists,
    /// Too many keys have the same hash.
    #[error("the collection has too many keys with one hash")]
    Crowded,
    /// The object changed during each of many attempts to read it.
    #[error("{0} changes too fast to be read")]
    Unstable(ObjectId),
    /// The protection of pages cannot be changed.
    #[error("cannot protect pages: {0}")]
    Protection(String),
    /// Another open transaction changes the object, or the change must run in a transaction that runs alone.
    #[error("another transaction is in the way")]
    Claimed,
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The memory.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

impl Error {
    /// Whether this process may not read a page, which the service reads for it.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Medium(MediumError::Denied { .. }))
    }
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

pub(crate) fn damaged(structure: &'static str, at: u64, why: impl Into<String>) -> Error {
    let why = why.into();
    Error::Damaged { structure, at, why }
}
