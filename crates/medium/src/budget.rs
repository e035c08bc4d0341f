//! A region that panics after a number of accesses, for tests: an endless loop over the medium
//! becomes a failure, without a clock. (A loop without accesses hangs the test.)

use crate::{MediumError, Pmem};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Forwards a number of accesses to `P`, and panics at the next one.
pub struct Budget<P> {
    inner: P,
    left: AtomicU64,
}

impl<P: Pmem> Budget<P> {
    /// Permits `accesses` accesses.
    pub fn new(inner: P, accesses: u64) -> Self {
        let left = AtomicU64::new(accesses);
        Self { inner, left }
    }

    /// The region underneath.
    pub fn into_inner(self) -> P {
        self.inner
    }

    fn spend(&self) {
        let left = self
            .left
            .fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        assert!(left.is_ok(), "too many accesses: it does not end");
    }
}

impl<P: Pmem> crate::layer::PmemLayer for Budget<P> {
    type Below = P;

    fn below(&self) -> &P {
        &self.inner
    }

    fn load(&self, off: u64) -> Result<u64, MediumError> {
        self.spend();
        self.inner.load(off)
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.spend();
        self.inner.read(off, buf)
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.spend();
        self.inner.store(off, bytes);
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.spend();
        self.inner.store_nt(off, bytes);
    }
}
