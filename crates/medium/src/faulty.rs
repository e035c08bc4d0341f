//! A region with faults in it, for tests.
//!
//! Guarantees: every load or read that touches an unreadable line returns
//! [`MediumError::Unreadable`] with that line's offset. Stores to the line do not repair it.
//! All other calls work as without faults.

use crate::units::lines;
use crate::{LINE_BYTES, MediumError, Pmem, Rule};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

/// Forwards everything to `P`, except where a fault was set.
pub struct Faulty<P> {
    inner: P,
    unreadable: RwLock<BTreeSet<u64>>,
    /// Whether there are faults: avoids the lock while there are none.
    any: AtomicBool,
    /// Error number with which fences fail, or 0.
    fence_errno: AtomicI32,
}

impl<P: Pmem> Faulty<P> {
    /// A region without faults yet.
    pub fn new(inner: P) -> Self {
        Self {
            inner,
            unreadable: RwLock::default(),
            any: AtomicBool::new(false),
            fence_errno: AtomicI32::new(0),
        }
    }

    /// The region below, without the faults.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// Makes the lines that `off..off + len` touches unreadable.
    pub fn fail_lines(&self, off: u64, len: u64) {
        let len = len.min(self.len().saturating_sub(off));
        self.faults().extend(lines(off, len));
        self.any.store(true, SeqCst);
    }

    /// Makes every fence fail with [`MediumError::NotDurable`].
    pub fn fail_fence(&self, errno: i32) {
        self.fence_errno.store(errno, SeqCst);
    }

    /// Removes all faults.
    pub fn heal(&self) {
        self.faults().clear();
        self.any.store(false, SeqCst);
        self.fence_errno.store(0, SeqCst);
    }

    fn faults(&self) -> RwLockWriteGuard<'_, BTreeSet<u64>> {
        self.unreadable
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn readable(&self, off: u64, len: u64) -> Result<(), MediumError> {
        if !self.any.load(SeqCst) || len == 0 {
            return Ok(());
        }
        let faults = self
            .unreadable
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let touched = off - off % LINE_BYTES..off.saturating_add(len);
        match faults.range(touched).next() {
            Some(&off) => Err(MediumError::Unreadable { off }),
            None => Ok(()),
        }
    }
}

impl<P: Pmem> crate::layer::PmemLayer for Faulty<P> {
    type Below = P;

    fn below(&self) -> &P {
        &self.inner
    }

    fn load(&self, off: u64) -> Result<u64, MediumError> {
        let word = self.inner.load(off)?;
        self.readable(off, crate::WORD_BYTES)?;
        Ok(word)
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.readable(off, buf.len() as u64)?;
        self.inner.read(off, buf)
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        self.inner.fence(rule)?;
        match self.fence_errno.load(SeqCst) {
            0 => Ok(()),
            errno => Err(MediumError::NotDurable { errno }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryPmem;

    #[test]
    fn only_faulty_lines_are_unreadable() {
        let pm = Faulty::new(MemoryPmem::new(4096));
        pm.fail_lines(130, 1);
        let error = MediumError::Unreadable { off: 128 };
        assert_eq!(pm.load(128), Err(error));
        assert_eq!(pm.load(184), Err(error));
        assert_eq!(pm.load(120), Ok(0));
        assert_eq!(pm.load(192), Ok(0));
        assert_eq!(pm.read(0, &mut [0; 4096]), Err(error));
        assert_eq!(pm.read(191, &mut [0; 1]), Err(error));
        assert_eq!(pm.read(0, &mut [0; 128]), Ok(()));
        assert_eq!(pm.read(192, &mut [0; 64]), Ok(()));
        assert_eq!(pm.read(130, &mut []), Ok(()));
        pm.store_word(128, 5);
        assert_eq!(pm.load(128), Err(error));
        assert_eq!(pm.fence(Rule::DurableBeforeReturn), Ok(()));
        pm.heal();
        assert_eq!(pm.load(128), Ok(5));
    }

    #[test]
    fn a_fence_fails_with_the_error_set() {
        let pm = Faulty::new(MemoryPmem::new(4096));
        pm.fail_fence(5);
        assert_eq!(
            pm.fence(Rule::DurableBeforeReturn),
            Err(MediumError::NotDurable { errno: 5 })
        );
        assert_eq!(
            pm.fence(Rule::DurableBeforeReturn),
            Err(MediumError::NotDurable { errno: 5 })
        );
        pm.heal();
        assert_eq!(pm.fence(Rule::DurableBeforeReturn), Ok(()));
    }
}
