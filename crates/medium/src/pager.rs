//! Regions whose pages something else brings and removes: a pager.
//!
//! The crate `paging` is one. It knows mappings, and a mapping knows it by the two traits
//! here, so that this crate does not depend on it. What else it needs of the process is here
//! too.

use crate::{MappedPmem, MediumError};
use std::error::Error;
use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;

pub use crate::addresses::keep_from_children;
pub use crate::rcu::{barrier, prepare as prepare_barrier};
pub use crate::sigbus::Marker;

/// Why a pager refuses a region.
pub type PagerError = Box<dyn Error + Send + Sync>;

/// A region that is to be paged: addresses, and the file of its pages.
pub struct Unpaged {
    /// The number under which the pager has its pages.
    pub slot: u16,
    /// The first address.
    pub base: NonNull<u8>,
    /// The size in bytes.
    pub len: u64,
    /// Where pages are that are not in memory.
    pub file: Arc<File>,
    /// Marks the region as unreadable, until the [`PagedRegion`] is dropped.
    pub marker: Marker,
}

/// Brings pages of files into persistent memory when they are touched.
pub trait Pager {
    /// The memory into which it brings them, whose durability the regions have.
    fn memory(&self) -> &MappedPmem;

    /// Begins to bring and remove the pages of a region.
    ///
    /// # Errors
    /// Its own: for instance, it does not fit the region.
    ///
    /// # Safety
    /// The region's addresses must be anonymous memory to which nobody has stored yet, and
    /// which stays until the returned value is dropped.
    unsafe fn attach(self: Arc<Self>, region: Unpaged) -> Result<Box<dyn PagedRegion>, PagerError>;

    /// Maps the pages of the region in `slot` that are in memory over its file, read only.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach).
    ///
    /// # Safety
    /// `base..base + len` must be a mapping that is the caller's.
    unsafe fn overlay(&self, slot: u16, base: u64, len: u64) -> Result<(), PagerError>;
}

/// A region in use, as its mapping knows it. Its pages are no longer moved after the drop.
pub trait PagedRegion: Send + Sync {
    /// Notes that stores to `off..off + len` are to be durable at the next fence, where the
    /// flush of a line does not see to that.
    fn mark(&self, off: u64, len: u64);

    /// Waits until what was marked is durable.
    ///
    /// # Errors
    /// [`MediumError`]: something that was stored is not durable.
    fn settle(&self) -> Result<(), MediumError>;
}
