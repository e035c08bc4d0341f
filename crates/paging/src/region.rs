//! A region whose pages are in a pool: the interface for its mapping, and that for the pool.

use crate::frames::{PageId, PageStore};
use crate::moving::Shared;
use crate::pool::Pool;
use medium::MediumError;
use medium::pager::{Marker, PagedRegion};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::sync::{Arc, OnceLock};

/// The region as the interface for its mapping.
pub(crate) struct Paged {
    pub(crate) pool: Arc<Pool>,
    pub(crate) region: Arc<RegionFile>,
}

/// The region as the pool uses it.
pub(crate) struct RegionFile {
    pub(crate) slot: u16,
    /// Its first address.
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) page_bytes: u64,
    pub(crate) file: Arc<File>,
    /// Whether writes must survive a power failure.
    pub(crate) is_synced: bool,
    /// Marks the region as unreadable after a page was lost.
    pub(crate) marker: Marker,
    /// The reason why stores are not durable.
    pub(crate) failed: OnceLock<MediumError>,
}

impl RegionFile {
    /// The page at an address of the region.
    pub(crate) fn page_at(&self, address: u64) -> PageId {
        PageId {
            slot: self.slot,
            page: ((address - self.base) / self.page_bytes) as u32,
        }
    }

    /// Offset and length of a page in bytes; the last one may be shorter.
    pub(crate) fn extent(&self, page: u32) -> (u64, u64) {
        let off = u64::from(page) * self.page_bytes;
        (off, self.page_bytes.min(self.len.saturating_sub(off)))
    }

    pub(crate) fn fail(&self, error: MediumError) {
        let _ = self.failed.set(error);
    }

    /// Marks the region as unreadable at a page that cannot be loaded.
    pub(crate) fn lose(&self, page: u32) {
        self.marker.fail(self.extent(page).0);
    }
}

impl PageStore for RegionFile {
    fn read_page(&self, page: u32, buf: &mut [u8]) -> io::Result<()> {
        let (off, len) = self.extent(page);
        let (there, behind) = buf.split_at_mut(len as usize);
        behind.fill(0);
        self.file.read_exact_at(there, off)
    }

    fn write_page(&self, page: u32, bytes: &[u8]) -> io::Result<()> {
        let (off, len) = self.extent(page);
        self.file.write_all_at(&bytes[..len as usize], off)
    }

    fn sync(&self) -> io::Result<()> {
        match self.is_synced {
            true => self.file.sync_data(),
            false => Ok(()),
        }
    }
}

impl PagedRegion for Paged {
    fn mark(&self, off: u64, len: u64) {
        let Shared { frames, .. } = self.pool.shared();
        if len == 0 || !frames.pmem().has_write_back() {
            return;
        }
        // After the stores: their page is now in a frame, or durable in the file.
        fence(SeqCst);
        let residency = self.pool.shared().residency();
        let page_bytes = frames.page_bytes();
        let (first, last) = (off / page_bytes, (off + len - 1) / page_bytes);
        for page in first..=last {
            let id = PageId {
                slot: self.region.slot,
                page: page as u32,
            };
            let Some(frame) = residency.frame_of(id) else {
                continue;
            };
            let start = off.max(page * page_bytes);
            let end = (off + len).min((page + 1) * page_bytes);
            frames
                .pmem()
                .mark(frames.at(frame) + start % page_bytes, end - start);
        }
    }

    fn sync_marked(&self) -> Result<(), MediumError> {
        let synced = self.pool.shared().frames.pmem().complete_fence();
        // The pool's offsets are not those of the region.
        synced.map_err(|why| match why {
            MediumError::NotDurable { .. } => why,
            MediumError::OutOfRange { .. }
            | MediumError::Unreadable { .. }
            | MediumError::PowerCut => MediumError::NotDurable {
                errno: Errno::IO.raw_os_error(),
            },
        })?;
        self.region.failed.get().map_or(Ok(()), |e| Err(*e))
    }
}

impl Drop for Paged {
    fn drop(&mut self) {
        self.pool.shared().detach(&self.region);
    }
}
