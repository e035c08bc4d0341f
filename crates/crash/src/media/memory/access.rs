//! Reads and stores by programs that run on a [`StatePmem`]. A cell is decided when it is first
//! read.

use super::{Content, Inner, Pending, StatePmem, Undo, pick, push_new};
use crate::choice::mix;
use medium::recording::Event;
use medium::{LINE_BYTES, MediumError, Pmem, Rule, Unit, WORD_BYTES, units};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(super) fn zeroed(len: usize) -> Box<[AtomicU64]> {
    (0..len).map(|_| AtomicU64::new(0)).collect()
}

/// The bits `first..=last` of a bit set, as one mask for each of its words.
fn masks(first: usize, last: usize) -> impl Iterator<Item = (usize, u64)> {
    (first / 64..=last / 64).map(move |group| {
        let low = first.max(group * 64) % 64;
        let high = last.min(group * 64 + 63) % 64;
        (group, (u64::MAX >> (63 - high)) & (u64::MAX << low))
    })
}

/// The word after `unit` is stored over `old`.
pub(super) fn stored(unit: &Unit, old: u64) -> u64 {
    match u64::from(unit.len) {
        WORD_BYTES => u64::from_le_bytes(unit.bytes), // by far the most frequent
        _ => unit.apply(old),
    }
}

impl StatePmem {
    pub(super) fn cell_of(&self, word: usize) -> (u32, u32) {
        let words = (self.model.cell_bytes() / WORD_BYTES) as usize;
        ((word / words) as u32, (word % words) as u32)
    }

    pub(super) fn word_of(&self, cell: u32, slot: u32) -> usize {
        let words = (self.model.cell_bytes() / WORD_BYTES) as usize;
        cell as usize * words + slot as usize
    }

    fn is_open(&self, cell: u32) -> bool {
        self.open[cell as usize / 64].load(Relaxed) >> (cell % 64) & 1 == 1
    }

    /// Returns whether the bit changed.
    pub(super) fn set_open(&self, cell: u32, open: bool) -> bool {
        let bits = &self.open[cell as usize / 64];
        let mask = 1 << (cell % 64);
        let old = if open {
            bits.fetch_or(mask, Relaxed)
        } else {
            bits.fetch_and(!mask, Relaxed)
        };
        (old & mask != 0) != open
    }

    /// Writes a word with undo. `hashed`: the change belongs to the crash state, not to recovery.
    pub(super) fn put(&self, inner: &mut Inner, word: usize, value: u64, hashed: bool) {
        let old = self.words[word].load(Relaxed);
        if old != value {
            self.words[word].store(value, Relaxed); // only the lock's holder stores
            let at = word as u32;
            inner.undo.push(Undo::Word {
                word: at,
                old,
                hashed,
            });
            if hashed {
                inner.hash ^= mix(word as u64, old) ^ mix(word as u64, value);
            }
        }
    }

    /// The distinct contents that a crash may leave in `cell`. The first is the durable content.
    pub(super) fn contents(&self, pending: &Pending, cell: u32) -> Vec<Content> {
        let mut all = Vec::new();
        let durable = [Content::new()];
        let left = match &pending.left[..] {
            [] => &durable,
            left => left,
        };
        for content in left {
            let mut now = content.clone();
            push_new(&mut all, now.clone());
            for store in &pending.stores {
                let word = self.word_of(cell, store.slot);
                now.retain(|(w, _)| *w != word);
                if store.word != self.words[word].load(Relaxed) {
                    now.push((word, store.word));
                    now.sort_unstable();
                }
                push_new(&mut all, now.clone());
            }
        }
        all
    }

    /// [`contents`](Self::contents) of a cell that may have no pending stores.
    pub(super) fn contents_now(&self, inner: &Inner, cell: u32) -> Vec<Content> {
        let pending = inner.pending.get(&cell);
        pending.map_or_else(|| vec![Content::new()], |p| self.contents(p, cell))
    }

    pub(super) fn decide_as(&self, inner: &mut Inner, cell: u32, content: &[(usize, u64)]) {
        for (word, value) in content {
            self.put(inner, *word, *value, true);
        }
        if self.set_open(cell, false) {
            inner.undo.push(Undo::Open(cell));
        }
    }

    fn decide(&self, inner: &mut Inner, cell: u32) {
        if !self.is_open(cell) {
            return;
        }
        let contents = self.contents_now(inner, cell);
        let choices = contents.len() as u32;
        let mut choice = 0;
        if let (Some(policy), true) = (inner.tail, choices > 1) {
            choice = pick(policy, cell, choices) as usize;
            inner.tail_chose = true;
        } else if choices > 1 {
            let by = |policy| pick(policy, cell, choices);
            choice = inner.choices.take(cell, choices, by);
        }
        self.decide_as(inner, cell, &contents[choice]);
    }

    /// Decides the undecided cells of the words `first..=last`.
    fn look_at(&self, first: usize, last: usize) {
        let (from, _) = self.cell_of(first);
        let (to, _) = self.cell_of(last);
        for (group, mask) in masks(from as usize, to as usize) {
            let mut open = self.open[group].load(Relaxed) & mask;
            while open != 0 {
                let cell = group as u32 * 64 + open.trailing_zeros();
                self.decide(&mut self.inner.lock(), cell);
                open &= open - 1;
            }
        }
        if self.track.load(Relaxed) {
            for (group, mask) in masks(first, last) {
                self.seen[group].fetch_or(mask, Relaxed);
            }
        }
    }

    fn in_range(&self, off: u64, len: u64) -> Result<(), MediumError> {
        match off.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(MediumError::OutOfRange { off, len }),
        }
    }

    /// Whether a cell that these bytes touch is undecided.
    fn has_open(&self, off: u64, len: usize) -> bool {
        let last = off + (len as u64).max(1) - 1;
        let [from, to] = [off, last].map(|at| self.cell_of((at / WORD_BYTES) as usize).0 as usize);
        masks(from, to).any(|(group, mask)| self.open[group].load(Relaxed) & mask != 0)
    }

    /// Stores to decided cells without a trace. These are by far the most frequent stores: engines
    /// copy whole blocks.
    fn overwrite(&self, inner: &mut Inner, off: u64, bytes: &[u8]) {
        let head = bytes
            .len()
            .min(((WORD_BYTES - off % WORD_BYTES) % WORD_BYTES) as usize);
        let (head, rest) = bytes.split_at(head);
        let first = (off + head.len() as u64) / WORD_BYTES;
        let (whole, tail) = rest.as_chunks::<{ WORD_BYTES as usize }>();
        for (word, bytes) in (first as usize..).zip(whole) {
            self.put(inner, word, u64::from_le_bytes(*bytes), false);
        }
        let ends = [(off, head), (off + (bytes.len() - tail.len()) as u64, tail)];
        for unit in ends.into_iter().flat_map(|(off, bytes)| units(off, bytes)) {
            let word = (unit.off / WORD_BYTES) as usize;
            let old = self.words[word].load(Relaxed);
            self.put(inner, word, stored(&unit, old), false);
        }
    }

    /// Stores by recovery or by a program after it. An undecided cell that the store covers
    /// wholly needs no choice, since its old content is not read any more. A second crash before
    /// the store is durable may still bring that content back ([`Pending::left`]). A cell that is
    /// covered in part is decided here, so that such stores branch.
    fn store_now(&self, off: u64, bytes: &[u8], nt: bool) {
        let mut inner = self.inner.lock();
        if let Err(e) = self.in_range(off, bytes.len() as u64) {
            inner.failed.get_or_insert(e);
            return;
        }
        if inner.record.is_none() && !self.has_open(off, bytes.len()) {
            return self.overwrite(&mut inner, off, bytes);
        }
        let end = off + bytes.len() as u64;
        for unit in units(off, bytes) {
            let word = (unit.off / WORD_BYTES) as usize;
            let (cell, _) = self.cell_of(word);
            if self.is_open(cell) {
                let start = u64::from(cell) * self.model.cell_bytes();
                let covered = off <= start && start + self.model.cell_bytes() <= end;
                if covered {
                    self.decide_as(&mut inner, cell, &[]);
                } else {
                    self.decide(&mut inner, cell);
                }
            }
            let old = self.words[word].load(Relaxed);
            self.put(&mut inner, word, stored(&unit, old), false);
            if let Some(trace) = &mut inner.record {
                let event = if nt { Event::StoreNt } else { Event::Store };
                trace.push(event(unit));
            }
        }
    }
}

impl Pmem for StatePmem {
    fn len(&self) -> u64 {
        self.words.len() as u64 * WORD_BYTES
    }

    fn load(&self, off: u64) -> Result<u64, MediumError> {
        let word = (off / WORD_BYTES) as usize;
        if word >= self.words.len() || !off.is_multiple_of(WORD_BYTES) {
            let len = WORD_BYTES;
            return Err(MediumError::OutOfRange { off, len });
        }
        self.look_at(word, word);
        Ok(self.words[word].load(Relaxed))
    }

    fn read(&self, off: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.in_range(off, buf.len() as u64)?;
        if buf.is_empty() {
            return Ok(());
        }
        let mut word = (off / WORD_BYTES) as usize;
        let last = (off + buf.len() as u64 - 1) / WORD_BYTES;
        self.look_at(word, last as usize);
        let skip = (off % WORD_BYTES) as usize;
        let head = if skip == 0 {
            0
        } else {
            buf.len().min(8 - skip)
        };
        let (head, whole) = buf.split_at_mut(head);
        if !head.is_empty() {
            let bytes = self.words[word].load(Relaxed).to_le_bytes();
            head.copy_from_slice(&bytes[skip..skip + head.len()]);
            word += 1;
        }
        let mut chunks = whole.chunks_exact_mut(WORD_BYTES as usize);
        for (chunk, value) in chunks.by_ref().zip(&self.words[word..]) {
            chunk.copy_from_slice(&value.load(Relaxed).to_le_bytes());
        }
        let tail = chunks.into_remainder();
        if !tail.is_empty() {
            let bytes = self.words[last as usize].load(Relaxed).to_le_bytes();
            tail.copy_from_slice(&bytes[..tail.len()]);
        }
        Ok(())
    }

    fn store(&self, off: u64, bytes: &[u8]) {
        self.store_now(off, bytes, false);
    }

    fn store_nt(&self, off: u64, bytes: &[u8]) {
        self.store_now(off, bytes, true);
    }

    fn flush(&self, off: u64, len: u64) {
        if let Some(trace) = &mut self.inner.lock().record {
            let first = off / LINE_BYTES * LINE_BYTES;
            let end = off.saturating_add(len).min(self.len());
            let lines = (first..end).step_by(LINE_BYTES as usize);
            trace.extend(lines.map(|line| Event::Flush { line }));
        }
    }

    fn fence(&self, rule: Rule) -> Result<(), MediumError> {
        let mut inner = self.inner.lock();
        if let Some(trace) = &mut inner.record {
            trace.push(Event::Fence(rule));
        }
        inner.failed.map_or(Ok(()), Err)
    }
}
