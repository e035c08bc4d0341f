//! The words that transactions read and write.

use medium::{MediumError, Pmem};

/// Words by address, some of which are persistent.
///
/// In Rust an address is an offset in persistent memory, and every [`Pmem`] is a space. If a
/// compiler hands over a program's loads and stores, it is a machine address, also of volatile
/// memory. Volatile words are isolated and rolled back like the others, but not logged.
pub trait Space: Send + Sync {
    /// The persistent memory, which has persistent words and the logs.
    type Pmem: Pmem + Clone;

    /// The persistent memory.
    fn pmem(&self) -> &Self::Pmem;

    /// Loads the word at `at`, a multiple of 8.
    ///
    /// # Errors
    /// [`MediumError`] if the word cannot be read or does not exist.
    fn load_at(&self, at: u64) -> Result<u64, MediumError>;

    /// Copies `buf.len()` bytes, which lie in one line.
    ///
    /// # Errors
    /// As [`load_at`](Self::load_at).
    fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError>;

    /// Stores those bytes of a volatile word whose bits in `mask` are set; the lowest bit is that
    /// of the first byte. Never called for a word that could not be loaded.
    fn store_at(&self, at: u64, word: u64, mask: u8);

    /// The offset of a word in persistent memory, or `None` if it is volatile.
    fn offset(&self, at: u64) -> Option<u64>;

    /// The address of an offset, the inverse of [`offset`](Self::offset).
    fn address(&self, off: u64) -> u64;
}

impl<P: Pmem + Clone> Space for P {
    type Pmem = P;

    fn pmem(&self) -> &P {
        self
    }

    #[inline]
    fn load_at(&self, at: u64) -> Result<u64, MediumError> {
        self.load(at)
    }

    #[inline]
    fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.read(at, buf)
    }

    fn store_at(&self, _at: u64, _word: u64, _mask: u8) {
        // No word is volatile.
    }

    #[inline]
    fn offset(&self, at: u64) -> Option<u64> {
        Some(at)
    }

    #[inline]
    fn address(&self, off: u64) -> u64 {
        off
    }
}
