//! A transaction as a record of a log: its time stamp, then runs. A run is a head word and the
//! words that follow it.
//!
//! The upper 48 bits of a head hold the number of the first word (its offset in words). The rest
//! holds the number of whole words that follow (15 bits), or a flag and a mask. With a mask one
//! word follows, of which the run changes the bytes in the mask. A commit and a replay leave the
//! others alone: they may belong to a variable that another thread changes without transactions.
//!
//! Runs that do not fit a log lie in an *overflow*: free pages of the heap, in one part or several.
//! The record then holds an [`Overflow`] instead of them, after the stamp.

use super::mask::{self, WHOLE};
use medium::{LINE_BYTES, MediumError, Pmem, WORD_BYTES};
use std::ops::Range;
use zerocopy::IntoBytes;

const LOW_BITS: u32 = 16;
const LOW_MAX: u64 = (1 << LOW_BITS) - 1;
/// A flag in the low bits of a head: they hold a mask, not a count.
const MASKED: u64 = 1 << (LOW_BITS - 1);

/// A run does not continue past a multiple of that many words. So all of it is in one region: the
/// neighbour may be another file.
const PAGE_WORDS: u64 = 4096 / WORD_BYTES;
const _: () = assert!(PAGE_WORDS < MASKED);

/// A word that a transaction writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word {
    /// Its offset in persistent memory.
    pub off: u64,
    /// The new bytes.
    pub word: u64,
    /// The bytes that are written; not 0.
    pub mask: u8,
}

/// Replaces `record` by one that writes these words. Returns the number of words.
pub(super) fn encode(record: &mut Vec<u64>, words: impl Iterator<Item = Word>) -> usize {
    record.clear();
    record.push(0); // the stamp
    let (mut head, mut next, mut written) = (0, None, 0);
    for Word { off, word, mask } in words {
        let number = off / WORD_BYTES;
        let upper = number << LOW_BITS;
        if mask == WHOLE {
            if next != Some(number) || number.is_multiple_of(PAGE_WORDS) {
                head = record.len();
                record.push(upper);
            }
            record[head] += 1;
            record.push(word);
            next = Some(number + 1);
        } else {
            record.extend([upper | MASKED | u64::from(mask), word & mask::bits(mask)]);
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
    /// The words to store, at least one.
    pub words: &'a [u64],
    /// The bytes of each word that are written; all of them if there is more than one word.
    pub mask: u8,
}

impl<'a> Run<'a> {
    /// Decodes the first run, if there is one.
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
    pub(super) fn bytes(&self) -> u64 {
        self.words.len() as u64 * WORD_BYTES
    }

    /// The byte offsets of the words.
    pub(super) fn range(&self) -> Range<u64> {
        self.off..self.off.saturating_add(self.bytes())
    }

    /// Splits the run before word `count`. The rest may be empty.
    pub(super) fn split_at(self, count: usize) -> (Self, Self) {
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

    /// Stores the bytes in the mask, and no others.
    pub(super) fn store<P: Pmem>(&self, pm: &P) {
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

/// The location of runs that are too long for a log, as consecutive parts. A run may begin in one
/// part and end in the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Overflow(Vec<Part>);

/// A part of an overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// The offset of the first word.
    pub off: u64,
    /// The number of words.
    words: u64,
    /// Their CRC.
    crc: u64,
}

/// Words of a record that name a part.
const PART_WORDS: usize = 3;

impl Part {
    /// The offset of the end, or the largest offset.
    pub(super) fn end(&self) -> u64 {
        let bytes = self.words.saturating_mul(WORD_BYTES);
        self.off.saturating_add(bytes)
    }

    fn encode(self) -> [u64; PART_WORDS] {
        let first = (self.off / WORD_BYTES) << LOW_BITS;
        [first, self.words, self.crc]
    }

    /// Decodes a part. `None`: the words are the head of a run, or nothing.
    fn decode([first, words, crc]: [u64; PART_WORDS]) -> Option<Self> {
        let off = (first >> LOW_BITS) * WORD_BYTES;
        let is_one = first & LOW_MAX == 0 && words > 0;
        is_one.then_some(Self { off, words, crc })
    }
}

impl Overflow {
    /// The bytes that the runs of a record take, in whole lines.
    pub(super) fn bytes_for(record: &[u64]) -> u64 {
        let words = record.len() as u64 - 1;
        (words * WORD_BYTES).next_multiple_of(LINE_BYTES)
    }

    /// The number of parts that a record of that many words can name; at least one.
    pub(super) fn most_parts(words: u64) -> usize {
        (words.saturating_sub(1) as usize / PART_WORDS).max(1)
    }

    /// Streams the runs of a record to `ranges`: free lines, at least
    /// [`bytes_for`](Self::bytes_for) the record.
    pub(super) fn store<P: Pmem>(pm: &P, ranges: &[Range<u64>], record: &mut Vec<u64>) -> Self {
        let (len, bytes) = (record.len(), Self::bytes_for(record));
        // Fill the rest of the last line.
        record.resize(1 + (bytes / WORD_BYTES) as usize, 0);
        let (mut parts, mut at) = (Vec::with_capacity(ranges.len()), 1);
        for range in ranges {
            let room = (range.end - range.start) / WORD_BYTES;
            let end = record.len().min(at + room as usize);
            pm.store_nt(range.start, record[at..end].as_bytes());
            let words = &record[at..end.min(len)];
            parts.push(Part {
                off: range.start,
                words: words.len() as u64,
                crc: crc32c::crc32c(words.as_bytes()).into(),
            });
            at = end;
        }
        record.truncate(len);
        Self(parts)
    }

    /// The record that names the overflow.
    pub(super) fn encode(&self, stamp: u64) -> Vec<u64> {
        let parts = self.0.iter().flat_map(|part| part.encode());
        std::iter::once(stamp).chain(parts).collect()
    }

    /// Decodes a record that names an overflow.
    pub(super) fn decode(record: &[u64]) -> Option<Self> {
        let (parts, rest) = record.get(1..)?.as_chunks();
        let parts: Option<Vec<_>> = parts.iter().map(|part| Part::decode(*part)).collect();
        let parts = parts.filter(|parts| rest.is_empty() && !parts.is_empty());
        parts.map(Self)
    }

    /// The parts, in order.
    pub(super) fn parts(&self) -> &[Part] {
        &self.0
    }

    /// Loads the whole record, with its runs. `None`: the parts have changed, or are larger than
    /// memory.
    pub(super) fn load<P: Pmem>(
        &self,
        pm: &P,
        stamp: u64,
    ) -> Result<Option<Vec<u64>>, MediumError> {
        let mut record = vec![stamp];
        for part in &self.0 {
            let (at, len) = (record.len(), usize::try_from(part.words).ok());
            if len.is_none_or(|len| record.try_reserve(len).is_err()) {
                return Ok(None);
            }
            record.resize(at + part.words as usize, 0);
            let words = record[at..].as_mut_bytes();
            pm.read(part.off, words)?;
            if u64::from(crc32c::crc32c(words)) != part.crc {
                return Ok(None);
            }
        }
        Ok(Some(record))
    }
}

/// A transaction that was found in a log.
pub(super) struct Transaction<'a> {
    /// Its order among all commits.
    pub stamp: u64,
    record: &'a [u64],
}

impl<'a> Transaction<'a> {
    /// Decodes a record, if it is a transaction.
    pub(super) fn decode(record: &'a [u64]) -> Option<Self> {
        let (&stamp, mut rest) = record.split_first()?;
        while !rest.is_empty() {
            (_, rest) = Run::split_first(rest)?;
        }
        Some(Self { stamp, record })
    }

    /// Its runs.
    pub(super) fn runs(&self) -> impl Iterator<Item = Run<'a>> + use<'a> {
        runs(self.record)
    }
}
