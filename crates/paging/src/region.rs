//! A region whose pages are in a pool: its file and addresses.

use crate::frames::{PageId, PageStore};
use medium::MediumError;
use medium::pager::Marker;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

/// The file and the addresses of a region.
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
