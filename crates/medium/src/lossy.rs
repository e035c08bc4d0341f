//! The cache that a power failure empties, for mappings that programs store to by themselves.
//!
//! [`PowerCut`](crate::PowerCut) has to see every store, and nobody sees those of a C program.
//! Here the mapping is private to the process, and lines go from it to the file when they are
//! flushed: a process that is killed leaves in the file what a power failure would.
//!
//! Guarantees:
//!
//! 1. What was flushed before a fence is in the file when that fence has returned.
//! 2. Of all else the file has lines as they were at some time: chance has some of them
//!    written when they are flushed, and some that nobody flushed, near those that are.
//!    No word is torn.

use crate::raw::Raw;
use crate::{LINE_BYTES, WORD_BYTES};
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes that are written at once, at most.
const PIECE_BYTES: u64 = 64 << 10;
/// How far from a flushed line chance looks for one that is not.
const NEAR_LINES: u64 = 64;

/// What is between a private mapping and its file.
pub(crate) struct LossyCache {
    file: Arc<File>,
    /// Held while lines are written, so that a fence whose lines another one took returns
    /// only after they are in the file.
    waiting: Mutex<Waiting>,
}

/// Lines that were flushed since the last fence, by their numbers.
struct Waiting {
    lines: Vec<Range<u64>>,
    rng: fastrand::Rng,
}

impl LossyCache {
    /// Nothing is on its way to `file`.
    pub(crate) fn new(file: Arc<File>) -> Self {
        let waiting = Waiting {
            lines: Vec::new(),
            rng: fastrand::Rng::new(),
        };
        Self {
            file,
            waiting: Mutex::new(waiting),
        }
    }

    /// Lets the lines of `off..off + len` go to the file until the next fence, or at once.
    pub(crate) fn flush(&self, raw: &Raw, off: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let lines = off / LINE_BYTES..(off + len).div_ceil(LINE_BYTES);
        let waiting = &mut *self.waiting.lock();
        waiting.lines.push(lines.clone());
        let early = waiting.some_of(lines.clone());
        self.write(raw, early)?;
        let last = raw.len() / LINE_BYTES;
        let near = lines.start.saturating_sub(NEAR_LINES)..(lines.end + NEAR_LINES).min(last);
        let line = waiting.rng.u64(near);
        let evicted = line..line + u64::from(waiting.rng.u8(..4) == 0);
        self.write(raw, evicted)
    }

    /// Sees to it that all that was flushed is in the file.
    pub(crate) fn fence(&self, raw: &Raw) -> io::Result<()> {
        let mut waiting = self.waiting.lock();
        waiting.lines.sort_unstable_by_key(|lines| lines.start);
        let mut written = 0;
        for lines in std::mem::take(&mut waiting.lines) {
            self.write(raw, lines.start.max(written)..lines.end)?;
            written = written.max(lines.end);
        }
        Ok(())
    }

    fn write(&self, raw: &Raw, lines: Range<u64>) -> io::Result<()> {
        let (mut off, end) = (lines.start * LINE_BYTES, lines.end * LINE_BYTES);
        while off < end {
            let len = (end - off).min(PIECE_BYTES);
            let words = (off..off + len).step_by(WORD_BYTES as usize);
            let bytes: Result<Vec<_>, _> =
                words.map(|at| raw.load(at).map(u64::to_le_bytes)).collect();
            let bytes = bytes.map_err(io::Error::other)?;
            self.file.write_all_at(bytes.as_flattened(), off)?;
            off += len;
        }
        Ok(())
    }
}

impl Waiting {
    /// None of these lines, or some that are one behind the other.
    fn some_of(&mut self, lines: Range<u64>) -> Range<u64> {
        let start = self.rng.u64(lines.clone());
        let end = self.rng.u64(start..=lines.end);
        match self.rng.bool() {
            true => start..end,
            false => start..start,
        }
    }
}
