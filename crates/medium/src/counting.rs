//! Counts the accesses to a region.

use crate::units::{line_count, unit_count};
use crate::{MediumError, Pmem, Rule};
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of accesses to a region, up to some moment. The difference of two counts the accesses
/// in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Bytes stored through the cache.
    pub stored_bytes: u64,
    /// Bytes stored around the cache.
    pub nt_bytes: u64,
    /// Atomic stores of both kinds, of 1, 2, 4 or 8 bytes each.
    pub stores: u64,
    /// Lines flushed, counted at each flush.
    pub flushed_lines: u64,
    /// Fences, including those that failed.
    pub fences: u64,
}

impl Counts {
    /// Bytes stored in either way.
    pub fn bytes(&self) -> u64 {
        self.stored_bytes + self.nt_bytes
    }
}

impl Sub for Counts {
    type Output = Self;

    /// The counts since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        let since = u64::wrapping_sub;
        Self {
            stored_bytes: since(self.stored_bytes, earlier.stored_bytes),
            nt_bytes: since(self.nt_bytes, earlier.nt_bytes),
            stores: since(self.stores, earlier.stores),
            flushed_lines: since(self.flushed_lines, earlier.flushed_lines),
            fences: since(self.fences, earlier.fences),
        }
    }
}

/// Forwards everything to `P` and counts it. The counters of a call are not read together: a
/// snapshot taken while other threads work is only approximate.
pub struct Counting<P> {
    inner: P,
    stored_bytes: AtomicU64,
    nt_bytes: AtomicU64,
    stores: AtomicU64,
    flushed_lines: AtomicU64,
    fences: AtomicU64,
}

impl<P: Pmem> Counting<P> {
    /// All counts start at 0.
    pub fn new(inner: P) -> Self {
        Self {
            inner,
            stored_bytes: AtomicU64::new(0),
            nt_bytes: AtomicU64::new(0),
            stores: AtomicU64::new(0),
            flushed_lines: AtomicU64::new(0),
            fences: AtomicU64::new(0),
        }
    }

    /// The region below. Accesses to it directly are not counted.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// The counts now.
    pub fn snapshot(&self) -> Counts {
        Counts {
            stored_bytes: self.stored_bytes.load(Relaxed),
            nt_bytes: self.nt_bytes.load(Relaxed),
            stores: self.stores.load(Relaxed),
            flushed_lines: self.flushed_lines.load(Relaxed),
            fences: self.fences.load(Relaxed),
        }
    }

    fn count_stores(&self, bytes: &AtomicU64, off: u64, len: usize) {
        bytes.fetch_add(len as u64, Relaxed);
        self.stores.fetch_add(unit_count(off, len as u64), Relaxed);
    }
}

impl<P: Pmem> crate::layer::PmemLayer for Counting<P> {
    type Below = P;

    fn below(&self) -> &P {
        &self.inner
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.count_stores(&self.stored_bytes, off, bytes.len());
        self.inner.store(off, bytes);
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.count_stores(&self.nt_bytes, off, bytes.len());
        self.inner.store_nt(off, bytes);
    }

    fn flush(&self, off: u64, len: u64) {
        self.flushed_lines.fetch_add(line_count(off, len), Relaxed);
        self.inner.flush(off, len);
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        self.fences.fetch_add(1, Relaxed);
        self.inner.fence(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryPmem;

    #[test]
    fn regions_count_units_and_lines() {
        let pm = Counting::new(MemoryPmem::new(4096));
        pm.store_word(8, 1);
        let before = pm.snapshot();
        pm.store(6, &[1; 11]);
        pm.store_nt(64, &[2; 128]);
        pm.flush(63, 2);
        pm.flush(100, 0);
        pm.fence(Rule::DurableBeforeReturn).unwrap();
        let expected = Counts {
            stored_bytes: 11,
            nt_bytes: 128,
            stores: 3 + 16,
            flushed_lines: 2,
            fences: 1,
        };
        assert_eq!(pm.snapshot() - before, expected);
        assert_eq!(expected.bytes(), 139);
    }
}
