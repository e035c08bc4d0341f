//! Loads: what readers of storage objects need of the memory.

use crate::error::{Result, damaged};
use crate::layout::PAGE;
use medium::{Pmem, WORD_BYTES};

/// Memory that holds storage objects, as a reader sees it. Another process may change it at any time.
pub trait Load {
    /// Bytes of the partition.
    fn len_bytes(&self) -> u64;

    /// Loads the aligned word at byte `off` in one instruction.
    ///
    /// # Errors
    /// [`Error::Medium`](crate::Error::Medium) if it is not readable or outside the partition.
    fn load(&self, off: u64) -> Result<u64>;

    /// Loads the aligned words from byte `off` on, each as [`load`](Self::load) does.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn load_words(&self, off: u64, words: &mut [u64]) -> Result<()> {
        for (n, word) in (0..).zip(words) {
            *word = self.load(off.saturating_add(n * WORD_BYTES))?;
        }
        Ok(())
    }

    /// Copies bytes.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn read(&self, off: u64, buf: &mut [u8]) -> Result<()>;

    /// The page at the byte offset `page`, which was loaded from `at`.
    ///
    /// # Errors
    /// [`Error::Damaged`](crate::Error::Damaged) if it is not in the partition.
    #[inline]
    fn page(&self, page: u64, at: u64) -> Result<u64> {
        let is_page = page.is_multiple_of(PAGE) && page != 0 && page < self.len_bytes();
        match is_page {
            true => Ok(page),
            false => Err(damaged("pointer", at, format!("{page:#x} is not a page"))),
        }
    }
}

impl<P: Pmem + ?Sized> Load for P {
    fn len_bytes(&self) -> u64 {
        self.len()
    }

    #[inline]
    fn load(&self, off: u64) -> Result<u64> {
        Ok(Pmem::load(self, off)?)
    }

    #[inline]
    fn load_words(&self, off: u64, words: &mut [u64]) -> Result<()> {
        Ok(Pmem::load_words(self, off, words)?)
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<()> {
        Ok(Pmem::read(self, off, buf)?)
    }
}
