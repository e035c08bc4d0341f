//! Stores before the commit, without a log, to blocks that the transaction itself has allocated.

use super::{TxSession, words_of};
use crate::error::{Interrupted, Uncommitted};
use crate::seeded::{Bug, hit};
use crate::tx::{Core, Space};
use medium::{LINE_BYTES, Pmem, Rule};
use std::ops::Range;

/// Bytes from which a store to a block of the transaction is streamed past the caches.
const STREAMED: usize = 512;
/// The number of ranges that may overlap before they are merged.
const FEW_RANGES: usize = 256;

/// The stores of a transaction to its own blocks, which its commit has to write back.
#[derive(Default)]
pub(super) struct Filled {
    /// Whether there are any stores, perhaps streamed ones.
    pub(super) any: bool,
    /// The byte ranges of lines that were stored to; some overlap.
    lines: Vec<Range<u64>>,
    /// The number of ranges at which to merge them.
    most: usize,
}

impl Filled {
    #[inline]
    fn add(&mut self, off: u64, len: u64) {
        if len == 0 {
            return;
        }
        let new = off / LINE_BYTES * LINE_BYTES..(off + len).next_multiple_of(LINE_BYTES);
        match self.lines.last_mut() {
            // Usually the next store is to the same line or the next one.
            Some(last) if last.start <= new.start && new.start <= last.end => {
                last.end = last.end.max(new.end);
            }
            _ => self.push(new),
        }
    }

    fn push(&mut self, new: Range<u64>) {
        self.lines.push(new);
        if self.lines.len() > self.most {
            self.merge();
            self.most = FEW_RANGES.max(2 * self.lines.len());
        }
    }

    /// Merges ranges that touch.
    fn merge(&mut self) {
        self.lines.sort_unstable_by_key(|lines| lines.start);
        self.lines.dedup_by(|next, last| {
            let touches = next.start <= last.end;
            if touches {
                last.end = last.end.max(next.end);
            }
            touches
        });
    }

    /// All lines, each once.
    fn lines(&mut self) -> &[Range<u64>] {
        self.merge();
        &self.lines
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.any = false;
        self.lines.clear();
    }
}

impl<S: Space> TxSession<S> {
    /// Copies `bytes` to offset `off` at once, without a log. No other thread can reach the memory
    /// before this transaction commits, and recovery does not write to it. The bytes are durable
    /// before the commit; if it fails, their contents are undefined. A return to a savepoint does
    /// not undo them, except in words that were stored before.
    ///
    /// # Errors
    /// [`Interrupted`].
    pub(crate) fn fill(&mut self, off: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        let end = off + bytes.len() as u64;
        // Take the line locks so that concurrent readers of the freed block conflict.
        for line in (off / LINE_BYTES * LINE_BYTES..end).step_by(LINE_BYTES as usize) {
            let is_first = self.own(self.address(line))?;
            if !is_first {
                let (from, to) = (line.max(off), end.min(line + LINE_BYTES));
                let part = &bytes[(from - off) as usize..(to - off) as usize];
                self.write_again(self.address(from), part)?;
            }
        }
        self.is_changed = true;
        self.may_fill()?;
        let pm = self.core.space.pmem();
        let head = (off.wrapping_neg() % LINE_BYTES).min(bytes.len() as u64) as usize;
        let (head, rest) = bytes.split_at(head);
        let (lines, tail) = rest.split_at(rest.len() - rest.len() % LINE_BYTES as usize);
        pm.store_nt(off + head.len() as u64, lines);
        self.filled.any = true;
        for (at, part) in [(off, head), (end - tail.len() as u64, tail)] {
            pm.store(at, part);
            self.filled.add(at, part.len() as u64);
        }
        Ok(())
    }

    /// Stores `bytes` at offset `off` at once, in a block that this transaction allocated, under
    /// the conditions of [`may_fill`](Self::may_fill). They are durable before the commit. If they
    /// `may_be_undone`, so are the old bytes that the caller may restore by plain stores.
    #[inline]
    pub(crate) fn store_in_own(&mut self, off: u64, bytes: &[u8], may_be_undone: bool) {
        let pm = self.core.space.pmem();
        let is_streamed = bytes.len() >= STREAMED;
        match is_streamed {
            true => pm.store_nt(off, bytes),
            false => pm.store(off, bytes),
        }
        let is_durable = is_streamed && (!may_be_undone || hit(Bug::UndoneUnflushed));
        let len = if is_durable { 0 } else { bytes.len() };
        self.note_filled(off, len as u64);
    }

    /// Makes stores of the caller at `off..off + len` durable before the commit; if `len` is 0, its
    /// streamed stores anywhere. They are to blocks that this transaction allocated, under the
    /// conditions of [`may_fill`](Self::may_fill).
    #[inline]
    pub(crate) fn note_filled(&mut self, off: u64, len: u64) {
        self.filled.any = true;
        self.filled.add(off, len);
    }

    /// Fails after a failed commit: it may have released a block that a log still has.
    ///
    /// # Errors
    /// [`Interrupted::Conflict`]; the next [`begin`](Self::begin) fails.
    pub(crate) fn may_fill(&self) -> Result<(), Interrupted> {
        self.core.check().map_err(|_| Interrupted::Conflict)
    }

    /// Updates those words from `at` on that the commit will store.
    fn write_again(&mut self, at: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        words_of(at, bytes.len(), |word_at, range, in_word| {
            if let Some(written) = self.writes.get_mut(word_at) {
                let mut word = written.word.to_le_bytes();
                word[in_word].copy_from_slice(&bytes[range]);
                written.word = u64::from_le_bytes(word);
            }
            Ok(())
        })
    }

    /// Makes the stores to the transaction's own blocks durable before its record.
    pub(super) fn fence_filled(core: &Core<S>, filled: &mut Filled) -> Result<(), Uncommitted> {
        if !filled.any {
            return Ok(());
        }
        let pm = core.space.pmem();
        if !hit(Bug::FillUnflushed) {
            for lines in filled.lines() {
                pm.flush(lines.start, lines.end - lines.start);
            }
        }
        if hit(Bug::FillAfterLog) {
            return Ok(());
        }
        let fenced = pm.fence(Rule::DataBeforeCommit);
        fenced.map_err(|error| Uncommitted::Failed(core.fail(error.into())))
    }
}
