//! Records of the redo log: words and where they belong.
//!
//! A record is a sequence of runs. A run is a word with the byte offset of its first word (48 bits) and
//! the number of its words (16 bits), and then the words.

use crate::error::{Result, damaged};
use std::ops::Range;

const OFF_BITS: u32 = 48;
const MOST: usize = u16::MAX as usize;

/// Encodes words that are sorted by their offsets.
pub(crate) fn encode(words: &[(u64, u64)]) -> Vec<u64> {
    let mut record = Vec::with_capacity(words.len() * 2);
    let is_next = |a: &(u64, u64), b: &(u64, u64)| a.0 + 8 == b.0;
    for run in words.chunk_by(is_next).flat_map(|run| run.chunks(MOST)) {
        record.push(run[0].0 | (run.len() as u64) << OFF_BITS);
        record.extend(run.iter().map(|(_, value)| value));
    }
    record
}

/// Calls `f` for each word of a record, in order, after a check of the whole record: words are home in
/// `home`. `at` is the byte offset of the log.
pub(crate) fn decode(
    record: &[u64],
    home: Range<u64>,
    at: u64,
    mut f: impl FnMut(u64, u64),
) -> Result<()> {
    for is_checked in [false, true] {
        let mut rest = record;
        while let [head, words @ ..] = rest {
            let off = head & ((1 << OFF_BITS) - 1);
            let count = (head >> OFF_BITS) as usize;
            let end = off + count as u64 * 8;
            let fits = off.is_multiple_of(8) && home.start <= off && end <= home.end;
            if count == 0 || count > words.len() || !fits {
                let why = format!("a record has a run of {count} words at {off:#x}");
                return Err(damaged("redo log", at, why));
            }
            let (run, next) = words.split_at(count);
            if is_checked {
                (off..)
                    .step_by(8)
                    .zip(run)
                    .for_each(|(off, value)| f(off, *value));
            }
            rest = next;
        }
    }
    Ok(())
}
