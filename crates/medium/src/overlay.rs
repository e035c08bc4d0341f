//! Stores that stay in memory, over a region that must not change.
//!
//! Guarantees: the region below is only read. Reads return what was stored here, and elsewhere
//! the contents below. Memory is taken for the words that were stored.

use crate::units::units;
use crate::{MediumError, Pmem, Rule, WORD_BYTES};
use hashbrown::HashMap;
use parking_lot::RwLock;

/// Keeps stores to `P` in memory: for trying something on a region that must not change, such
/// as its recovery.
pub struct Overlay<P> {
    inner: P,
    words: RwLock<HashMap<u64, u64>>,
}

impl<P: Pmem> Overlay<P> {
    /// An overlay without stores.
    pub fn new(inner: P) -> Self {
        Self {
            inner,
            words: RwLock::default(),
        }
    }

    /// Returns the region below, without the stores made here.
    pub fn into_inner(self) -> P {
        self.inner
    }

    /// The region below.
    pub fn inner(&self) -> &P {
        &self.inner
    }
}

impl<P: Pmem> crate::layer::PmemLayer for Overlay<P> {
    type Below = P;

    fn below(&self) -> &P {
        &self.inner
    }

    fn load(&self, off: u64) -> Result<u64, MediumError> {
        let under = self.inner.load(off)?;
        Ok(self.words.read().get(&off).copied().unwrap_or(under))
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.inner.read(off, buf)?;
        let words = self.words.read();
        if words.is_empty() {
            return Ok(());
        }
        let end = off + buf.len() as u64;
        for word in (off - off % WORD_BYTES..end).step_by(WORD_BYTES as usize) {
            let Some(stored) = words.get(&word) else {
                continue;
            };
            for (at, byte) in (word..).zip(stored.to_le_bytes()) {
                if (off..end).contains(&at) {
                    buf[(at - off) as usize] = byte;
                }
            }
        }
        Ok(())
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        let mut words = self.words.write();
        for unit in units(off, bytes) {
            let word = unit.off - unit.off % WORD_BYTES;
            // A word that cannot be loaded is not stored either: its next load fails.
            if let Ok(under) = self.inner.load(word) {
                let stored = words.entry(word).or_insert(under);
                *stored = unit.apply(*stored);
            }
        }
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        crate::layer::PmemLayer::store(self, off, bytes);
    }

    fn flush(&self, _off: u64, _len: u64) {}

    fn fence(&self, _: Rule) -> Result<(), MediumError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryPmem;

    #[test]
    fn the_region_below_is_not_stored_to() {
        let under = MemoryPmem::new(4096);
        under.store(0, &[1; 64]);
        let overlay = Overlay::new(&under);
        overlay.store(6, &[2; 5]);
        overlay.store_nt(24, &[3; 8]);
        overlay.store(4094, &[4; 8]);
        let mut seen = [0; 20];
        overlay.read(3, &mut seen).unwrap();
        let expected = [1, 1, 1, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
        assert_eq!(seen, expected);
        assert_eq!(overlay.load(24).unwrap(), u64::from_le_bytes([3; 8]));
        assert_eq!(under.load(24).unwrap(), u64::from_le_bytes([1; 8]));
        assert!(overlay.load(4096).is_err());
        overlay.fence(Rule::DurableBeforeReturn).unwrap();
    }
}
