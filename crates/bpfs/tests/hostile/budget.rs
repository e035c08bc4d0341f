//! Persistent memory that gives out: a loop over the medium that does not end becomes a
//! failure, without a clock. (One that never touches the medium hangs the test.)

use medium::{MediumError, MemoryPmem, Pmem};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Memory that panics after so many accesses.
pub struct Budget {
    pub pm: MemoryPmem,
    left: AtomicU64,
}

impl Budget {
    pub fn new(pm: MemoryPmem, accesses: u64) -> Self {
        Self {
            pm,
            left: AtomicU64::new(accesses),
        }
    }

    fn spend(&self) {
        let left = self
            .left
            .fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        assert!(left.is_ok(), "too many accesses: it does not end");
    }
}

impl Pmem for Budget {
    fn len(&self) -> u64 {
        self.pm.len()
    }

    fn load(&self, off: u64) -> Result<u64, MediumError> {
        self.spend();
        self.pm.load(off)
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.spend();
        self.pm.read(off, buf)
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.spend();
        self.pm.store(off, bytes);
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.spend();
        self.pm.store_nt(off, bytes);
    }

    fn flush(&self, off: u64, len: u64) {
        self.pm.flush(off, len);
    }

    fn fence(&self) -> Result<(), MediumError> {
        self.pm.fence()
    }
}
