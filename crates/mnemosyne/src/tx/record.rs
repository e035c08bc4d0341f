//! A transaction as a record of a log: its time stamp, then runs. A run is a head word and the
//! words that follow it.
//!
//! The head holds the number of the first word (48 bits, the offset in words) and either how
//! many whole words follow (15 bits), or a flag and the mask of the bytes that the one word
//! that follows changes. A masked run leaves the other bytes alone, in place and in a replay:
//! they may belong to a variable that another thread changes without transactions.
//!
//! Runs that do not fit a log lie in an *overflow*: free pages of the heap. The record then holds,
//! behind the stamp, an [`Overflow`] instead of them.

use super::mask::{self, WHOLE};
use medium::{LINE_BYTES, MediumError, Pmem, WORD_BYTES};
use std::ops::Range;
use zerocopy::IntoBytes;

const LOW_BITS: u32 = 16;
const LOW_MAX: u64 = (1 << LOW_BITS) - 1;
/// In the low bits of a head: they hold a mask, and not a count.
const MASKED: u64 = 1 << (LOW_BITS - 1);

/// Where a run ends at the latest: at a multiple of so many words, so that all of it is in one
/// region, whose neighbour may be another file.
const PAGE_WORDS: u64 = 4096 / WORD_BYTES;
const _: () = assert!(PAGE_WORDS < MASKED);

/// A word that a transaction writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word {
    /// Its offset in persistent memory.
    pub off: u64,
    /// Its bytes.
    pub word: u64,
    /// Which of them are written; not 0.
    pub mask: u8,
}

/// Replaces `record` by one that writes these words. Returns how many there are.
pub(super) fn encode(record: &mut Vec<u64>, words: impl Iterator<Item = Word>) -> usize {
    record.clear();
    record.push(0); // the stamp
    let (mut head, mut next, mut written) = (0, None, 0);
    for Word { off, word, mask } in words {
        let number = off / WORD_BYTES;
        let place = number << LOW_BITS;
        if mask == WHOLE {
            if next != Some(number) || number.is_multiple_of(PAGE_WORDS) {
                head = record.len();
                record.push(place);
            }
            record[head] += 1;
            record.push(word);
            next = Some(number + 1);
        } else {
            record.extend([place | MASKED | u64::from(mask), word & mask::bits(mask)]);
            next = None;
        }
        written += 1;
    }
    written
}

/// Stores the stamp of the commit in a record.
pub(super) fn set_stamp(record: &mut [u64], stamp: u64) {
    record[0] = stamp;
}

/// Consecutive words of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run<'a> {
    /// The offset of the first one.
    pub off: u64,
    /// At least one word.
    pub words: &'a [u64],
    /// Which bytes of each are written; all of them if there is more than one word.
    pub mask: u8,
}

impl<'a> Run<'a> {
    /// Decodes the first run. `None`: there is none.
    fn split_first(record: &'a [u64]) -> Option<(Self, &'a [u64])> {
        let (&head, rest) = record.split_first()?;
        let low = head & LOW_MAX;
        let (count, mask) = match low & MASKED {
            0 => (low as usize, WHOLE),
            _ => (1, u8::try_from(low & !MASKED).ok()?),
        };
        let (words, rest) = rest.split_at_checked(count)?;
        let off = (head >> LOW_BITS) * WORD_BYTES;
        let run = Self { off, words, mask };
        (count > 0 && mask != 0).then_some((run, rest))
    }

    /// Bytes from the first word to the end of the last.
    pub fn bytes(&self) -> u64 {
        self.words.len() as u64 * WORD_BYTES
    }

    /// The offsets of its bytes.
    pub fn range(&self) -> Range<u64> {
        self.off..self.off.saturating_add(self.bytes())
    }

    /// Cuts it before word `count`; the rest may be empty.
    pub fn split_at(self, count: usize) -> (Self, Self) {
        let (words, rest) = self.words.split_at(count.min(self.words.len()));
        let off = self.off + words.len() as u64 * WORD_BYTES;
        (
            Self { words, ..self },
            Self {
                off,
                words: rest,
                ..self
            },
        )
    }

    /// Stores the bytes that are written, and no others.
    pub fn store<P: Pmem>(&self, pm: &P) {
        if self.mask == WHOLE {
            return pm.store(self.off, self.words.as_bytes());
        }
        let bytes = self.words.as_bytes();
        for span in mask::spans(self.mask) {
            pm.store(self.off + span.start as u64, &bytes[span]);
        }
    }
}

/// The runs of a record that [`encode`] made.
pub(super) fn runs(record: &[u64]) -> impl Iterator<Item = Run<'_>> {
    let mut rest = record.get(1..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (run, more) = Run::split_first(rest)?;
        rest = more;
        Some(run)
    })
}

/// Where the runs of a record are that is too long for a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overflow {
    /// The offset of the first word.
    pub off: u64,
    /// How many words there are.
    words: u64,
    /// Their CRC.
    crc: u64,
}

impl Overflow {
    /// Bytes that the runs of a record take: whole lines.
    pub fn bytes_for(record: &[u64]) -> u64 {
        let words = record.len() as u64 - 1;
        (words * WORD_BYTES).next_multiple_of(LINE_BYTES)
    }

    /// Streams the runs of a record to `off`, where [`bytes_for`](Self::bytes_for) it are free.
    pub fn store<P: Pmem>(pm: &P, off: u64, record: &mut Vec<u64>) -> Self {
        let (len, bytes) = (record.len(), Self::bytes_for(record));
        record.resize(1 + (bytes / WORD_BYTES) as usize, 0);
        pm.store_nt(off, record[1..].as_bytes());
        record.truncate(len);
        Self {
            off,
            words: len as u64 - 1,
            crc: crc32c::crc32c(record[1..].as_bytes()).into(),
        }
    }

    /// The record that names it.
    pub fn encode(&self, stamp: u64) -> [u64; 4] {
        let place = (self.off / WORD_BYTES) << LOW_BITS;
        [stamp, place, self.words, self.crc]
    }

    /// `None`: the record is not one that names an overflow.
    pub fn decode(record: &[u64]) -> Option<Self> {
        let &[_, place, words, crc] = record else {
            return None;
        };
        let off = (place >> LOW_BITS) * WORD_BYTES;
        let is_one = place & LOW_MAX == 0 && words > 0;
        is_one.then_some(Self { off, words, crc })
    }

    /// Where it ends, or the largest offset.
    pub fn end(&self) -> u64 {
        let bytes = self.words.saturating_mul(WORD_BYTES);
        self.off.saturating_add(bytes)
    }

    /// The record that it is a part of, with the runs; `None`: these are not what was stored, or
    /// more than there is memory for.
    pub fn load<P: Pmem>(&self, pm: &P, stamp: u64) -> Result<Option<Vec<u64>>, MediumError> {
        let mut record = Vec::new();
        let len = usize::try_from(self.words).ok();
        if len.is_none_or(|len| record.try_reserve_exact(len + 1).is_err()) {
            return Ok(None);
        }
        record.resize(self.words as usize + 1, stamp);
        let runs = record[1..].as_mut_bytes();
        pm.read(self.off, runs)?;
        let is_whole = u64::from(crc32c::crc32c(runs)) == self.crc;
        Ok(is_whole.then_some(record))
    }
}

/// A transaction that was found in a log.
pub(super) struct Transaction<'a> {
    /// When it committed, among all.
    pub stamp: u64,
    record: &'a [u64],
}

impl<'a> Transaction<'a> {
    /// Decodes a record; `None`: it is not a transaction.
    pub fn decode(record: &'a [u64]) -> Option<Self> {
        let (&stamp, mut rest) = record.split_first()?;
        while !rest.is_empty() {
            (_, rest) = Run::split_first(rest)?;
        }
        Some(Self { stamp, record })
    }

    /// Its runs.
    pub fn runs(&self) -> impl Iterator<Item = Run<'a>> + use<'a> {
        runs(self.record)
    }
}
