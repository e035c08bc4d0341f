//! Persistent memory whose zeros cost nothing.
//!
//! Zeros stored to a page that has never held anything else are dropped, and such a page
//! is neither read nor flushed: a sparse file underneath stays sparse. For building large
//! images only; it starts from the assumption that the region is all zeros.

use medium::{MediumError, Pmem};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const PAGE_BYTES: u64 = 4096;

/// To compare with: faster than looking at each byte.
static ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// A region of zeros at first; pages come into being when something is stored.
pub(super) struct Holes<P> {
    inner: P,
    /// One bit for each page that exists.
    pages: Box<[AtomicU64]>,
}

impl<P: Pmem> Holes<P> {
    /// Over a region that is all zeros.
    pub(super) fn new(inner: P) -> Self {
        let words = inner.len().div_ceil(PAGE_BYTES).div_ceil(64);
        Self {
            inner,
            pages: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Pages out of range count as existing: the region below reports them.
    fn exists(&self, page: u64) -> bool {
        page >= self.inner.len() / PAGE_BYTES
            || self.pages[(page / 64) as usize].load(Relaxed) >> (page % 64) & 1 == 1
    }

    fn bring_into_being(&self, page: u64) {
        if let Some(word) = self.pages.get((page / 64) as usize) {
            word.fetch_or(1 << (page % 64), Relaxed);
        }
    }

    /// Passes a store on, page by page, but for zeros that change nothing.
    fn store_by(&self, off: u64, bytes: &[u8], store: impl Fn(&P, u64, &[u8])) {
        for (page, off, part) in parts(off, bytes.len() as u64) {
            let bytes = &bytes[part];
            if self.exists(page) || *bytes != ZEROS[..bytes.len()] {
                self.bring_into_being(page);
                store(&self.inner, off, bytes);
            }
        }
    }
}

/// Splits a range at page boundaries: page, offset, and which part of the range.
fn parts(off: u64, len: u64) -> impl Iterator<Item = (u64, u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = off.saturating_add(done);
        let part = (PAGE_BYTES - at % PAGE_BYTES).min(len - done);
        let range = done as usize..(done + part) as usize;
        done += part;
        (part > 0).then_some((at / PAGE_BYTES, at, range))
    })
}

impl<P: Pmem> medium::layer::PmemLayer for Holes<P> {
    type Below = P;

    fn below(&self) -> &P {
        &self.inner
    }

    fn load(&self, off: u64) -> Result<u64, MediumError> {
        if self.exists(off / PAGE_BYTES) || !off.is_multiple_of(8) {
            return self.inner.load(off);
        }
        Ok(0)
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        parts(off, buf.len() as u64).try_for_each(|(page, off, part)| {
            if self.exists(page) {
                return self.inner.read(off, &mut buf[part]);
            }
            buf[part].fill(0);
            Ok(())
        })
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.store_by(off, bytes, P::store);
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.store_by(off, bytes, P::store_nt);
    }

    fn flush(&self, off: u64, len: u64) {
        for (page, off, part) in parts(off, len) {
            if self.exists(page) {
                self.inner.flush(off, part.len() as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use medium::{MemoryPmem, Recording, Rule};

    #[test]
    fn zeros_do_not_reach_the_region_and_the_rest_does() {
        let pm = Holes::new(Recording::new(MemoryPmem::new(4 * PAGE_BYTES)));
        pm.store_nt(0, &[0; 3 * PAGE_BYTES as usize]);
        pm.flush(0, 3 * PAGE_BYTES);
        assert!(pm.inner.take().is_empty());

        // Half zeros, half not, across a boundary: one page comes into being.
        let mut bytes = [0; 16];
        bytes[8..].fill(7);
        pm.store(PAGE_BYTES - 8, &bytes);
        let mut back = [1; 16];
        pm.read(PAGE_BYTES - 8, &mut back).unwrap();
        assert_eq!(back, bytes);
        assert!(!pm.exists(0) && pm.exists(1));
        assert_eq!(pm.load(PAGE_BYTES).unwrap(), 0x0707_0707_0707_0707);

        // Zeros over what exists are stored.
        pm.store(PAGE_BYTES, &[0; 8]);
        assert_eq!(pm.load(PAGE_BYTES).unwrap(), 0);
        assert_eq!(pm.inner.inner().load(PAGE_BYTES).unwrap(), 0);
    }

    #[test]
    fn errors_are_those_of_the_region() {
        let pm = Holes::new(MemoryPmem::new(PAGE_BYTES));
        assert!(pm.load(1 << 40).is_err());
        assert!(pm.load(4).is_err());
        assert!(pm.read(PAGE_BYTES - 4, &mut [0; 8]).is_err());
        pm.store(1 << 40, &[1]);
        assert!(pm.fence(Rule::DurableBeforeReturn).is_err());
    }
}
