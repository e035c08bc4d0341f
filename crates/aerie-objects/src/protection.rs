//! The protection of pages from users who may not read the objects in them (paper section 4.2.4).
//!
//! A store without protection is one piece of memory, of which each reader sees all. With protection,
//! each page has [`Readers`]. The layer above derives those of an object ([`Policy`]); this crate gives
//! them to the object's pages, by a [`Guard`].

use crate::error::Result;
use crate::load::Load;
use crate::reading::object::parent;
use crate::superblock::Superblock;
use crate::{ObjectId, Readers};
use std::sync::Arc;

/// The contents of pages that get other readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// They stay.
    Kept,
    /// The pages become zeros.
    Dropped,
}

/// The memory's protection. It is durable. A crash during a change leaves it undone or done.
pub trait Guard: Send + Sync {
    /// The readers of the page at this byte offset.
    ///
    /// # Errors
    /// Errors of the memory.
    fn readers(&self, page: u64) -> Result<Readers>;

    /// Gives other readers to `pages` pages from this byte offset on, which have the same readers now.
    ///
    /// # Errors
    /// [`Error::Full`](crate::Error::Full) if the system has no room for them;
    /// [`Error::Protection`](crate::Error::Protection).
    fn protect(&self, page: u64, pages: u64, readers: Readers, contents: Contents) -> Result<()>;
}

/// The readers of an object's pages. They depend on its kind, parent and first two own words, and on
/// those of the objects above it. They are nobody for an object without a parent, except for the root.
pub type Policy = fn(&dyn Load, &Superblock, ObjectId) -> Result<Readers>;

/// The protection of a store.
#[derive(Clone)]
pub struct Protection {
    /// Protects pages.
    pub guard: Arc<dyn Guard>,
    /// Derives the readers of objects.
    pub policy: Policy,
}

impl Protection {
    /// The readers of an object's header: those of the collection that it is in. The headers of the
    /// superblock's collections, and of those in the collection of attributes, have no secrets.
    pub(crate) fn of_header(
        &self,
        memory: &dyn Load,
        superblock: &Superblock,
        object: ObjectId,
    ) -> Result<Readers> {
        if superblock.collections().contains(&object) {
            return Ok(Readers::Everyone);
        }
        match parent(memory, object)? {
            Some(above) if above == superblock.attributes => Ok(Readers::Everyone),
            Some(above) => (self.policy)(memory, superblock, above),
            None => Ok(Readers::NOBODY),
        }
    }
}
