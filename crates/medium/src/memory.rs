//! Anonymous memory: a region that lives and dies with the process.

use crate::{MediumError, Pmem, WORD_BYTES};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Persistent memory made of plain memory. Flush and fence cost nothing; a crash of
/// the process loses everything. For tests and as the floor in benchmarks.
pub struct MemoryPmem {
    words: Box<[AtomicU64]>,
    failed: OnceLock<MediumError>,
}

impl MemoryPmem {
    /// A zeroed region of `len` bytes, rounded up to a whole line.
    pub fn new(len: u64) -> Self {
        let words = len.next_multiple_of(crate::LINE_BYTES) / WORD_BYTES;
        let words = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self {
            words,
            failed: OnceLock::new(),
        }
    }

    fn in_range(&self, off: u64, len: u64) -> Result<(), MediumError> {
        match off.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(MediumError::OutOfRange { off, len }),
        }
    }
}

impl Pmem for MemoryPmem {
    fn len(&self) -> u64 {
        self.words.len() as u64 * WORD_BYTES
    }

    fn load(&self, off: u64) -> Result<u64, MediumError> {
        match self.words.get((off / WORD_BYTES) as usize) {
            Some(word) if off.is_multiple_of(WORD_BYTES) => Ok(word.load(Relaxed)),
            _ => Err(MediumError::OutOfRange {
                off,
                len: WORD_BYTES,
            }),
        }
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.in_range(off, buf.len() as u64)?;
        let mut at = off;
        let mut rest = buf;
        while !rest.is_empty() {
            let skip = (at % WORD_BYTES) as usize;
            let take = rest.len().min(8 - skip);
            let word = self.words[(at / WORD_BYTES) as usize]
                .load(Relaxed)
                .to_le_bytes();
            let (head, tail) = rest.split_at_mut(take);
            head.copy_from_slice(&word[skip..skip + take]);
            rest = tail;
            at += take as u64;
        }
        Ok(())
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        if let Err(e) = self.in_range(off, bytes.len() as u64) {
            let _ = self.failed.set(e);
            return;
        }
        let mut at = off;
        let mut rest = bytes;
        while !rest.is_empty() {
            let skip = (at % WORD_BYTES) as usize;
            let take = rest.len().min(8 - skip);
            let slot = &self.words[(at / WORD_BYTES) as usize];
            // Merge under a compare-exchange: a neighbour may store the rest of the word.
            let merge = |old: u64| {
                let mut word = old.to_le_bytes();
                word[skip..skip + take].copy_from_slice(&rest[..take]);
                Some(u64::from_le_bytes(word))
            };
            let _ = slot.fetch_update(Relaxed, Relaxed, merge);
            rest = &rest[take..];
            at += take as u64;
        }
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.store(off, bytes);
    }

    fn flush(&self, _off: u64, _len: u64) {}

    fn fence(&self) -> Result<(), MediumError> {
        self.failed.get().map_or(Ok(()), |e| Err(*e))
    }
}
