//! The raw word log: records of words in a ring of persistent memory (section 3.2.4).
//!
//! # Guarantees
//!
//! - **L1** Every record that was appended before [`Appender::flush`] returned is found after a
//!   crash, in order, until it is truncated.
//! - **L2** A record is found whole or not at all. If it is not found, neither are those
//!   after it.
//! - **L3** One thread appends while another reads and truncates, and neither waits for the
//!   other. An append to a full log fails.
//! - **L4** A flipped bit in the first line or in a flushed record is reported as damage.
//!   Otherwise it has no effect on the records that are found.
//!
//! # Two kinds
//!
//! A [`Kind::Base`] log fences the records, then stores where they end, and fences that. A
//! [`Kind::TornBit`] log needs one fence. The top bit of each word denotes the pass over the
//! ring in which it was stored, so that a missing word is detected.
//!
//! If exactly one word of a record seems to be missing, the checksum decides. The torn bit of a
//! present word may have flipped, or the old word may have had the same value. A record that
//! lacks one word passes by chance in one of 2^32 cases. With two missing words, no checksum is
//! needed.
//!
//! The bytes are in `format.md`. A log is a first line and then the ring. The first line
//! holds the start of the oldest record (the *head*) and, in a base log, the end of the last
//! one (the *tail*). A *position* counts words since the log was made.
//!
//! # Example
//!
//! ```
//! use medium::MemoryPmem;
//! use std::sync::Arc;
//! use wordlog::{Kind, Unrecovered};
//!
//! let pm = Arc::new(MemoryPmem::new(64 << 10));
//! wordlog::format(&pm, 0, 64 << 10, Kind::TornBit)?;
//! let (mut appender, mut consumer) = Unrecovered::open(pm, 0)?.keep()?;
//! appender.append(&[1, 2, 3])?;
//! appender.flush()?; // durable from here on, by one fence
//! let mut words = Vec::new();
//! consumer.next(&mut words)?;
//! assert_eq!(words, [1, 2, 3]);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
#![warn(unreachable_pub)]
#![forbid(unsafe_code)]

mod bits;
mod recovery;
pub mod sealed;
pub mod seeded;
#[cfg(test)]
mod tests;

pub use recovery::Unrecovered;

use crate::sealed::seal;
use crate::seeded::{Bug, hit};
use bits::{Found, Head};
use medium::{LINE_BYTES, MediumError, Pmem, Rule, WORD_BYTES};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// Words in a line.
const LINE: u64 = LINE_BYTES / WORD_BYTES;
/// Words of the head of a record.
const RECORD_HEAD: u64 = 2;
/// The largest position. No log is used long enough to exceed it.
const POSITION_MAX: u64 = 1 << 62;
/// "SELVLOG" and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SELVLOG\x01");

// Byte offsets of the words of the first line.
const AT_MAGIC: u64 = 0;
const AT_KIND: u64 = 8;
const AT_WORDS: u64 = 16;
const AT_HEAD: u64 = 24;
const AT_TAIL: u64 = 32;

/// The way in which a log marks its own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// A bit in each word: one fence per flush.
    #[default]
    TornBit,
    /// The position of the end: two fences per flush, and no bits to shift.
    Base,
}

/// Errors of a log, or of a request.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log is full; truncation frees room.
    #[error("the log is full: {needed} more words do not fit into {free}")]
    Full {
        /// Words of the ring that the record takes.
        needed: u64,
        /// Words of the ring that are free.
        free: u64,
    },
    /// The record is longer than the log can ever hold.
    #[error("a record of {words} words is too long for a log that takes {most}")]
    TooLong {
        /// Words in the record.
        words: u64,
        /// The most words that fit.
        most: u64,
    },
    /// There is no log of this version.
    #[error("log at {start:#x}: {what}")]
    NotALog {
        /// Byte offset of the log.
        start: u64,
        /// The damage.
        what: String,
    },
    /// A durable record has changed.
    #[error("log at {start:#x}: the record at position {position} is damaged")]
    Damaged {
        /// Byte offset of the log.
        start: u64,
        /// Position of the record.
        position: u64,
    },
    /// The memory cannot be read, or a store is not durable.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, LogError>;

/// The place of the ring of a log, and its kind.
#[derive(Debug, Clone, Copy)]
struct Ring {
    /// Byte offset of the first line.
    start: u64,
    kind: Kind,
    /// Words in the ring: whole lines.
    words: u64,
}

impl Ring {
    fn damaged(&self, position: u64) -> LogError {
        let start = self.start;
        LogError::Damaged { start, position }
    }

    /// Byte offset of a position.
    fn byte(&self, position: u64) -> u64 {
        self.byte_of(position % self.words)
    }

    /// Byte offset of a word of the ring.
    fn byte_of(&self, word: u64) -> u64 {
        self.start + LINE_BYTES + word * WORD_BYTES
    }

    /// The torn bit of a word that was stored at this position.
    fn torn_bit(&self, position: u64) -> u64 {
        self.torn_bit_of(position / self.words)
    }

    /// The torn bit of words that were stored in this pass over the ring.
    fn torn_bit_of(&self, pass: u64) -> u64 {
        match self.kind {
            Kind::TornBit if hit(Bug::NoFlip) => 1 << 63,
            Kind::TornBit => (!pass & 1) << 63,
            Kind::Base => 0,
        }
    }

    /// Words of the ring that a record of `words` words takes.
    fn taken(&self, words: u64) -> u64 {
        let all = words.saturating_add(RECORD_HEAD);
        let stored = match self.kind {
            Kind::TornBit => all.saturating_add(all.div_ceil(63)),
            Kind::Base => all,
        };
        stored.checked_next_multiple_of(LINE).unwrap_or(u64::MAX)
    }

    /// The longest record that `free` words of the ring, whole lines, can take.
    fn room(&self, free: u64) -> Option<u64> {
        let stream = match self.kind {
            Kind::TornBit => free - free.div_ceil(64),
            Kind::Base => free,
        };
        Some(stream.checked_sub(RECORD_HEAD)?.min(Head::LEN_MAX))
    }

    /// The longest record. A line stays free, so that full and empty logs differ.
    fn longest(&self) -> u64 {
        self.room(self.words - LINE).unwrap_or(0)
    }
}

/// The state that both halves of a log share.
#[derive(Debug)]
struct Shared {
    /// The oldest position in use.
    head: AtomicU64,
    /// The position up to which all records are durable.
    flushed: AtomicU64,
}

/// The half of a log that appends.
#[derive(Debug)]
pub struct Appender<P> {
    pm: P,
    ring: Ring,
    shared: Arc<Shared>,
    tail: u64,
    /// The words of the record that is appended.
    packed: Vec<u64>,
}

/// The half of a log that reads and truncates.
#[derive(Debug)]
pub struct Consumer<P> {
    pm: P,
    ring: Ring,
    shared: Arc<Shared>,
    next: u64,
}

/// Words of the longest record of a log of `len` bytes.
pub fn longest(len: u64, kind: Kind) -> u64 {
    let words = (len / LINE_BYTES).saturating_sub(1) * LINE;
    let start = 0;
    let ring = Ring { start, kind, words };
    ring.room(words.saturating_sub(LINE)).unwrap_or(0)
}

/// Whether a log begins at byte `start`.
pub fn is_at<P: Pmem>(pm: &P, start: u64) -> bool {
    pm.load(start + AT_MAGIC).is_ok_and(|word| word == MAGIC)
}

/// Byte offset of a position from the start of a log of `len` bytes.
pub fn byte_of(len: u64, position: u64) -> u64 {
    let words = len.saturating_sub(LINE_BYTES) / WORD_BYTES;
    LINE_BYTES + position % words.max(1) * WORD_BYTES
}

/// Makes an empty log of `len` bytes at byte `start`, both multiples of [`LINE_BYTES`]; at
/// least three lines. Old contents are lost.
///
/// # Errors
/// [`LogError::NotALog`] if start or length are not those of a log; errors of the memory.
pub fn format<P: Pmem>(pm: &P, start: u64, len: u64, kind: Kind) -> Result<()> {
    let fits = start.checked_add(len).is_some_and(|end| end <= pm.len());
    let lines = len / LINE_BYTES;
    if !start.is_multiple_of(LINE_BYTES) || !len.is_multiple_of(LINE_BYTES) || lines < 3 || !fits {
        let what = format!("there is no room for a log of {len} bytes");
        return Err(LogError::NotALog { start, what });
    }
    // An old log must not be found while it is overwritten.
    pm.store_word(start + AT_MAGIC, 0);
    pm.flush(start, LINE_BYTES);
    pm.fence(Rule::NullifyBeforeReuse)?;
    for line in 1..lines {
        pm.store_nt(start + line * LINE_BYTES, &[0; LINE_BYTES as usize]);
    }
    pm.store_word(start + AT_KIND, seal((kind == Kind::TornBit).into()));
    pm.store_word(start + AT_WORDS, seal((lines - 1) * LINE));
    pm.store_word(start + AT_HEAD, 0);
    pm.store_word(start + AT_TAIL, 0);
    pm.flush(start, LINE_BYTES);
    // All other words are durable before the magic number.
    if !hit(Bug::UnfencedFormat) {
        pm.fence(Rule::InitialiseBeforePoint)?;
    }
    pm.store_word(start + AT_MAGIC, MAGIC);
    pm.flush(start, LINE_BYTES);
    Ok(pm.fence(Rule::DurableBeforeReturn)?)
}

/// The checksum of a record.
fn checksum(position: u64, len: u64, flushed: u64, words: &[u64]) -> u64 {
    let head = [position, len, flushed];
    crc32c::crc32c_append(crc32c::crc32c(head.as_bytes()), words.as_bytes()).into()
}

impl<P: Pmem> Appender<P> {
    /// Appends a record. Returns the position of its end. The record is durable after the next
    /// [`flush`](Self::flush), and may be before.
    ///
    /// # Errors
    /// [`LogError::Full`], [`LogError::TooLong`]: nothing was appended.
    pub fn append(&mut self, words: &[u64]) -> Result<u64> {
        let len = words.len() as u64;
        let most = self.ring.longest();
        if len > most {
            return Err(LogError::TooLong { words: len, most });
        }
        let needed = self.ring.taken(len);
        // Acquire: the consumer has read the old words before they are overwritten.
        let used = self.tail - self.shared.head.load(Ordering::Acquire);
        let free = self.ring.words - LINE - used;
        if needed > free {
            return Err(LogError::Full { needed, free });
        }
        let flushed = self.shared.flushed.load(Ordering::Relaxed);
        let crc = checksum(self.tail, len, flushed, words);
        let head = Head { len, crc, flushed }.encode();
        bits::pack(self.ring.kind, [&head, words], &mut self.packed);
        bits::store(&self.pm, self.ring, self.tail, &mut self.packed);
        debug_assert_eq!(self.packed.len() as u64, needed);
        self.tail += needed;
        Ok(self.tail)
    }

    /// Makes all appended records durable.
    ///
    /// # Errors
    /// Errors of the memory: the records may not be durable.
    pub fn flush(&mut self) -> Result<()> {
        if self.shared.flushed.load(Ordering::Relaxed) == self.tail {
            return Ok(());
        }
        if self.ring.kind == Kind::Base {
            // The words are durable before the tail that makes them valid.
            if !hit(Bug::TailBeforeRecords) {
                self.pm.fence(Rule::DataBeforeCommit)?;
            }
            let at = self.ring.start + AT_TAIL;
            self.pm.store_word(at, seal(self.tail));
            self.pm.flush(at, WORD_BYTES);
        }
        if !hit(Bug::UnfencedLog) {
            self.pm.fence(Rule::DurableBeforeReturn)?;
        }
        // Release: the consumer sees the words.
        self.shared.flushed.store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Words that the next record may have; `None`: there is no room for a record.
    pub fn room(&self) -> Option<u64> {
        let used = self.tail - self.shared.head.load(Ordering::Acquire);
        self.ring.room(self.ring.words - LINE - used)
    }
}

impl<P: Pmem> Consumer<P> {
    /// Reads the oldest flushed record that was not read yet into `words`, which it replaces.
    /// Returns the position of its end, or `None` if there is none.
    ///
    /// # Errors
    /// [`LogError::Damaged`], and errors of the memory.
    pub fn next(&mut self, words: &mut Vec<u64>) -> Result<Option<u64>> {
        if self.next == self.shared.flushed.load(Ordering::Acquire) {
            return Ok(None);
        }
        match bits::record(&self.pm, self.ring, self.next, words)? {
            Found::Record { end } => {
                self.next = end;
                Ok(Some(end))
            }
            Found::Missing | Found::Damaged => Err(self.ring.damaged(self.next)),
        }
    }

    /// The position of the next record that [`next`](Self::next) reads.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Frees the room of all records that end at `position` or before, read or not. `position`
    /// must be the end of a flushed record, or not change the head. This is durable, so that no
    /// crash brings the records back.
    ///
    /// # Errors
    /// Errors of the memory: the records may or may not be found after a crash.
    pub fn truncate(&mut self, position: u64) -> Result<()> {
        self.note_head(position);
        // The head is durable before its words are overwritten.
        if !hit(Bug::ReuseBeforeTruncated) {
            self.pm.fence(Rule::NullifyBeforeReuse)?;
        }
        self.release(position);
        Ok(())
    }

    /// The first half of [`truncate`](Self::truncate): stores the new head, and starts to write
    /// it back. Callers truncate several logs with one fence in this way.
    pub fn note_head(&mut self, position: u64) {
        let flushed = self.shared.flushed.load(Ordering::Relaxed);
        debug_assert!(position <= flushed, "L1: only what is there is truncated");
        let at = self.ring.start + AT_HEAD;
        self.pm.store_word(at, seal(position));
        self.pm.flush(at, WORD_BYTES);
    }

    /// The second half, after that fence: frees the room.
    pub fn release(&mut self, position: u64) {
        self.next = self.next.max(position);
        // Release: the appender overwrites words that were read and that no crash brings back.
        self.shared.head.store(position, Ordering::Release);
    }
}
