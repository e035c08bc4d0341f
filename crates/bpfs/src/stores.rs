//! Stores: to the medium, with the flushes and fences that make them durable.

use crate::error::Res;
use crate::seeded::{Bug, hit};
use medium::{LINE_BYTES, Pmem, Rule};
use smallvec::SmallVec;

/// Below this length, bytes go through the cache: streaming part of a line is slow.
const STREAM_FROM: usize = 256;

/// Stores on their way to the medium.
pub(crate) struct Stores<'v, P: Pmem> {
    pm: &'v P,
    /// Lines stored to through the cache and not yet flushed: first and last of each run.
    dirty: SmallVec<[(u64, u64); 8]>,
    /// A write-back has begun that a fence must wait for.
    unfenced: bool,
}

impl<'v, P: Pmem> Stores<'v, P> {
    #[inline]
    pub(crate) fn new(pm: &'v P) -> Self {
        Self {
            pm,
            dirty: SmallVec::new(),
            unfenced: false,
        }
    }

    /// Stores bytes in place.
    #[inline(always)] // with a constant length it is a few instructions
    pub(crate) fn store(&mut self, addr: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.pm.store(addr, bytes);
        self.rely_on(addr, bytes.len() as u64);
    }

    /// Has these bytes flushed, even if another operation or process stored them. A killed
    /// server may have left bytes that were read in the caches only. A store that relies on
    /// them needs them durable.
    #[inline(always)]
    pub(crate) fn rely_on(&mut self, addr: u64, len: u64) {
        let (first, last) = (addr / LINE_BYTES, (addr + len - 1) / LINE_BYTES);
        match self.dirty.last_mut() {
            // Neighbouring fields share a line: flush it once.
            Some(run) if run.0 <= first && first <= run.1 => run.1 = run.1.max(last),
            _ => self.dirty.push((first, last)),
        }
    }

    /// Stores bytes that will not be read soon, or many.
    pub(crate) fn fill(&mut self, addr: u64, bytes: &[u8]) {
        if bytes.len() < STREAM_FROM {
            self.store(addr, bytes);
        } else {
            self.pm.store_nt(addr, bytes);
            self.unfenced = true;
        }
    }

    /// Stores a word, as the narrowest aligned store that covers what changes.
    #[inline]
    pub(crate) fn put_word(&mut self, addr: u64, value: u64) -> Res<()> {
        let changed = self.pm.load(addr)? ^ value;
        if changed == 0 {
            if !hit(Bug::AbortUnflushed) {
                self.rely_on(addr, 8);
            }
            return Ok(());
        }
        let value = value.to_le_bytes();
        let (first, last) = (
            changed.trailing_zeros() as usize / 8,
            7 - changed.leading_zeros() as usize / 8,
        );
        match first ^ last {
            0 => self.store(addr + first as u64, &value[first..=first]),
            1 => self.store(addr + (first & 6) as u64, &value[first & 6..][..2]),
            2..4 => self.store(addr + (first & 4) as u64, &value[first & 4..][..4]),
            _ => self.store(addr, &value),
        }
        Ok(())
    }

    /// The one store that commits.
    #[inline]
    pub(crate) fn commit_word(&mut self, addr: u64, value: u64) -> Res<()> {
        if hit(Bug::CommitByMemcpy) {
            for (i, byte) in value.to_le_bytes().iter().enumerate() {
                self.store(addr + i as u64, &[*byte]);
            }
            return Ok(());
        }
        self.put_word(addr, value)?;
        if hit(Bug::NoFlushOfCommit) {
            self.dirty.pop();
        }
        Ok(())
    }

    /// Starts to write back all stores so far.
    #[inline]
    pub(crate) fn flush(&mut self) {
        for (first, last) in &self.dirty {
            let lines = last - first + 1;
            self.pm.flush(first * LINE_BYTES, lines * LINE_BYTES);
            self.unfenced = true;
        }
        self.dirty.clear();
    }

    /// Makes all stores so far durable.
    pub(crate) fn barrier(&mut self, rule: Rule) -> Res<()> {
        self.flush();
        if std::mem::take(&mut self.unfenced) {
            self.pm.fence(rule)?;
        }
        Ok(())
    }

    /// Whether stores are not flushed yet.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Gives up the flushes: after an error nothing can be promised.
    pub(crate) fn forget(&mut self) {
        self.dirty.clear();
    }
}
