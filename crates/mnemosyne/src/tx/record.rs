//! A transaction as a record of a log: its time stamp, then runs of words. A run is one word
//! that holds its first word's number (48 bits, the offset in words) and how many there are
//! (16 bits), and these.

use medium::WORD_BYTES;

const COUNT_BITS: u32 = 16;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Where a run ends at the latest: at a multiple of so many words, so that all of it is in one
/// region, whose neighbour may be another file.
const PAGE_WORDS: u64 = 4096 / WORD_BYTES;
const _: () = assert!(PAGE_WORDS <= COUNT_MAX);

/// Puts a transaction into `record`, which it replaces. Returns how many words it wrote.
pub(super) fn encode(record: &mut Vec<u64>, words: impl Iterator<Item = (u64, u64)>) -> usize {
    record.clear();
    record.push(0); // the stamp
    let (mut head, mut next, mut written) = (0, None, 0);
    for (off, word) in words {
        let number = off / WORD_BYTES;
        if next != Some(number) || number.is_multiple_of(PAGE_WORDS) {
            head = record.len();
            record.push(number << COUNT_BITS);
        }
        record[head] += 1;
        record.push(word);
        next = Some(number + 1);
        written += 1;
    }
    written
}

/// Says when it was committed.
pub(super) fn set_stamp(record: &mut [u64], stamp: u64) {
    record[0] = stamp;
}

/// The offset of each run of a record that [`encode`] made, and its words.
pub(super) fn runs(record: &[u64]) -> impl Iterator<Item = (u64, &[u64])> {
    let mut rest = record.get(1..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (&head, words) = rest.split_first()?;
        let (run, more) = words.split_at((head & COUNT_MAX) as usize);
        rest = more;
        Some(((head >> COUNT_BITS) * WORD_BYTES, run))
    })
}

/// A transaction that was found in a log.
pub(super) struct Transaction<'a> {
    /// When it committed, among all.
    pub stamp: u64,
    record: &'a [u64],
}

impl<'a> Transaction<'a> {
    /// `None`: it is none.
    pub fn decode(record: &'a [u64]) -> Option<Self> {
        let (&stamp, mut rest) = record.split_first()?;
        while let Some((&head, words)) = rest.split_first() {
            let count = (head & COUNT_MAX) as usize;
            (_, rest) = words.split_at_checked(count).filter(|_| count > 0)?;
        }
        Some(Self { stamp, record })
    }

    /// The offset of each run, and its words.
    pub fn runs(&self) -> impl Iterator<Item = (u64, &'a [u64])> + use<'a> {
        runs(self.record)
    }
}
