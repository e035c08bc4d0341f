//! A transaction as a record of a log: its time stamp, then runs of words. A run is one word
//! that holds its first word's number (48 bits, the offset in words) and how many there are
//! (16 bits), and these.

use medium::WORD_BYTES;

const COUNT_BITS: u32 = 16;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// Puts a transaction into `record`, which it replaces. Returns how many words it wrote.
pub(super) fn encode(record: &mut Vec<u64>, words: impl Iterator<Item = (u64, u64)>) -> usize {
    record.clear();
    record.push(0); // the stamp
    let (mut head, mut next, mut written) = (0, None, 0);
    for (off, word) in words {
        let number = off / WORD_BYTES;
        if next != Some(number) || record[head] & COUNT_MAX == COUNT_MAX {
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

/// Where the words of a run are: offset and length, in bytes.
pub(super) fn place(head: u64) -> (u64, u64) {
    let (number, count) = (head >> COUNT_BITS, head & COUNT_MAX);
    (number * WORD_BYTES, count * WORD_BYTES)
}

/// The stamp of a record that [`encode`] made, and the heads of its runs.
pub(super) fn heads(record: &[u64]) -> (u64, impl Iterator<Item = u64>) {
    let mut at = 1;
    let heads = std::iter::from_fn(move || {
        let head = *record.get(at)?;
        at += 1 + (head & COUNT_MAX) as usize;
        Some(head)
    });
    (record[0], heads)
}

/// A transaction that was found in a log.
pub(super) struct Transaction<'a> {
    /// When it committed, among all.
    pub stamp: u64,
    runs: &'a [u64],
}

impl<'a> Transaction<'a> {
    /// `None`: it is none.
    pub fn decode(record: &'a [u64]) -> Option<Self> {
        let (&stamp, runs) = record.split_first()?;
        let mut rest = runs;
        while let Some((&head, words)) = rest.split_first() {
            let count = (head & COUNT_MAX) as usize;
            (_, rest) = words.split_at_checked(count).filter(|_| count > 0)?;
        }
        Some(Self { stamp, runs })
    }

    /// The offset of each run, and its words.
    pub fn runs(&self) -> impl Iterator<Item = (u64, &'a [u64])> + use<'a> {
        let mut rest = self.runs;
        std::iter::from_fn(move || {
            let (&head, words) = rest.split_first()?;
            let (run, more) = words.split_at((head & COUNT_MAX) as usize);
            rest = more;
            Some((place(head).0, run))
        })
    }
}
