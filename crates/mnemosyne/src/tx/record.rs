//! A transaction as a record of a log: its time stamp, then runs. A run is a head word and the
//! words that follow it.
//!
//! The head holds the number of the first word (48 bits, the offset in words) and either how
//! many whole words follow (15 bits), or a flag and the mask of the bytes that the one word
//! that follows changes. A masked run leaves the other bytes alone, in place and in a replay:
//! they may belong to a variable that another thread changes without transactions.

use super::mask::{self, WHOLE};
use medium::{Pmem, WORD_BYTES};
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
