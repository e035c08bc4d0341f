//! A part of some memory, as memory of its own.
//!
//! Guarantee: no access leaves the part.

use medium::{MediumError, Pmem, Rule};

/// The `bytes` bytes from `base` on of other memory.
pub struct Piece<P> {
    below: P,
    base: u64,
    bytes: u64,
}

impl<P: Pmem> Piece<P> {
    /// A part, if the memory has it.
    pub(crate) fn new(below: P, base: u64, bytes: u64) -> Option<Self> {
        let is_inside = base
            .checked_add(bytes)
            .is_some_and(|end| end <= below.len());
        is_inside.then_some(Self { below, base, bytes })
    }

    fn at(&self, off: u64, len: usize) -> Result<u64, MediumError> {
        let len = len as u64;
        match off.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(self.base + off),
            _ => Err(MediumError::OutOfRange { off, len }),
        }
    }

    /// The offset below; outside of the part, one that the memory below reports at the next fence.
    fn at_or_error(&self, off: u64, len: usize) -> u64 {
        self.at(off, len).unwrap_or(u64::MAX)
    }
}

impl<P: Pmem> Pmem for Piece<P> {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn load(&self, off: u64) -> Result<u64, MediumError> {
        self.below.load(self.at(off, 8)?)
    }

    fn load_words(&self, off: u64, words: &mut [u64]) -> Result<(), MediumError> {
        let at = self.at(off, size_of_val(words))?;
        self.below.load_words(at, words)
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.below.read(self.at(off, buf.len())?, buf)
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.below.store(self.at_or_error(off, bytes.len()), bytes);
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.below
            .store_nt(self.at_or_error(off, bytes.len()), bytes);
    }

    fn flush(&self, off: u64, len: u64) {
        self.below.flush(self.at_or_error(off, len as usize), len);
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        self.below.fence(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use medium::MemoryPmem;

    #[test]
    fn no_access_leaves_the_part() {
        let memory = MemoryPmem::new(256);
        assert!(Piece::new(&memory, 128, 136).is_none());
        assert!(Piece::new(&memory, u64::MAX, 8).is_none());
        let piece = Piece::new(&memory, 64, 64).unwrap();
        piece.store_word(56, 7);
        piece.fence(Rule::DurableBeforeReturn).unwrap();
        assert_eq!((piece.load(56), memory.load(120)), (Ok(7), Ok(7)));
        assert!(piece.load(64).is_err());
        assert!(piece.read(60, &mut [0; 8]).is_err());
        piece.store_word(64, 8);
        assert_eq!(memory.load(128), Ok(0));
        assert!(piece.fence(Rule::DurableBeforeReturn).is_err());
    }
}
