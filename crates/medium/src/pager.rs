//! The interface of pagers, which bring and remove the pages of regions.
//!
//! The crate `paging` has one. It depends on this crate, and not the reverse: a mapping reaches
//! its pager by the two traits here. The functions of this crate that a pager needs are exported
//! here, too.

use crate::MediumError;
use crate::cpu::LineFlush;
use crate::durability::EffectiveDurability;
use std::error::Error;
use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;

pub use crate::addresses::keep_from_children;
pub use crate::rcu::{barrier, prepare as prepare_barrier};
pub use crate::sigbus::Marker;

/// The reason why a pager refuses a region.
pub type PagerError = Box<dyn Error + Send + Sync>;

/// A region that is to be paged: addresses, and the file of its pages.
pub struct Unpaged {
    /// The number under which the pager has its pages.
    pub slot: u16,
    /// The first address.
    pub base: NonNull<u8>,
    /// The size in bytes.
    pub len: u64,
    /// The file of the pages that are not in memory.
    pub file: Arc<File>,
    /// Marks the region as unreadable, until the [`PagedRegion`] is dropped.
    pub marker: Marker,
}

/// The way in which stores to a mapping become durable
/// ([`MappedPmem::flushing`](crate::MappedPmem::flushing)).
#[derive(Debug, Clone, Copy)]
pub struct Flushing {
    pub(crate) durability: EffectiveDurability,
    /// The flush instruction, if flushes have an effect.
    pub(crate) line_flush: Option<LineFlush>,
}

/// Brings pages of files into persistent memory when they are touched.
pub trait Pager {
    /// The way in which stores to the memory for the pages become durable. The regions have the
    /// same.
    fn flushing(&self) -> Flushing;

    /// Begins to bring and remove the pages of a region.
    ///
    /// # Errors
    /// The pager's own; for example, it does not match the region.
    ///
    /// # Safety
    /// The region's addresses must be anonymous memory to which nothing was stored yet. They
    /// must stay until the returned value is dropped.
    unsafe fn attach(self: Arc<Self>, region: Unpaged) -> Result<Box<dyn PagedRegion>, PagerError>;

    /// Maps the pages of the region in `slot` that are in memory over its file, read-only.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach).
    ///
    /// # Safety
    /// `base..base + len` must be a mapping that the caller owns.
    unsafe fn overlay(&self, slot: u16, base: u64, len: u64) -> Result<(), PagerError>;
}

/// A region in use by its mapping. After the drop its pages are not moved any more.
pub trait PagedRegion: Send + Sync {
    /// Records that stores to `off..off + len` must be durable at the next fence, where the
    /// flush of a line does not ensure that.
    fn mark(&self, off: u64, len: u64);

    /// Waits until the marked bytes are durable.
    ///
    /// # Errors
    /// [`MediumError`]: some stores are not durable.
    fn sync_marked(&self) -> Result<(), MediumError>;
}
