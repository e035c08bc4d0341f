//! Anonymous memory: a region that ends with the process.

use crate::raw::Raw;
use crate::{LINE_BYTES, MediumError, Pmem, Rule, WORD_BYTES};
use std::ptr::NonNull;
use std::sync::OnceLock;

/// Persistent memory made of plain memory, for tests and as the lower limit in benchmarks.
/// Flush and fence cost nothing; a crash of the process loses everything. Pages that were never
/// stored to take no memory.
pub struct MemoryPmem {
    raw: Raw,
    failed: OnceLock<MediumError>,
}

impl MemoryPmem {
    /// A zeroed region of `len` bytes, rounded up to a whole line.
    pub fn new(len: u64) -> Self {
        let len = len.next_multiple_of(LINE_BYTES);
        let words = vec![0u64; (len / WORD_BYTES) as usize].into_boxed_slice();
        let base = NonNull::from(Box::leak(words)).cast();
        Self {
            // SAFETY: the box is leaked, so only `raw` reaches the words until `drop`
            // takes them back; `u64`s are 8-byte aligned.
            raw: unsafe { Raw::new(base, len) },
            failed: OnceLock::new(),
        }
    }

    /// A region with the bytes of another one.
    ///
    /// # Errors
    /// As [`read`](Pmem::read) of the other region.
    pub fn copy_of(other: &impl Pmem) -> Result<Self, MediumError> {
        let mut bytes = vec![0; other.len() as usize];
        other.read(0, &mut bytes)?;
        let copy = Self::new(other.len());
        copy.store(0, &bytes);
        Ok(copy)
    }
}

impl Drop for MemoryPmem {
    fn drop(&mut self) {
        let words = (self.raw.len() / WORD_BYTES) as usize;
        if let Ok(base) = self.raw.at(0, 0) {
            let words = std::ptr::slice_from_raw_parts_mut(base.cast::<u64>(), words);
            // SAFETY: this is the box that `new` leaked, and `raw` is not used again.
            drop(unsafe { Box::from_raw(words) });
        }
    }
}

impl Pmem for MemoryPmem {
    #[inline]
    fn len(&self) -> u64 {
        self.raw.len()
    }

    #[inline]
    fn load(&self, off: u64) -> Result<u64, MediumError> {
        self.raw.load(off)
    }

    #[inline]
    fn load_words(&self, off: u64, words: &mut [u64]) -> Result<(), MediumError> {
        self.raw.load_words(off, words)
    }

    #[inline]
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.raw.read(off, buf)
    }

    #[inline]
    fn store(&self, off: u64, bytes: &[u8]) {
        if let Err(e) = self.raw.store(off, bytes) {
            let _ = self.failed.set(e);
        }
    }

    #[inline]
    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.store(off, bytes);
    }

    #[inline]
    fn flush(&self, _off: u64, _len: u64) {}

    #[inline]
    fn fence(&self, _: Rule) -> Result<(), MediumError> {
        self.failed.get().map_or(Ok(()), |e| Err(*e))
    }
}
