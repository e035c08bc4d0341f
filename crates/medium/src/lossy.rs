//! The cache that a power failure empties, for mappings that programs store to by themselves.
//!
//! [`PowerCut`](crate::PowerCut) has to see every store, and nobody sees those of a C program.
//! Here the mapping is of a copy in memory, and lines go from it to the file when they are flushed:
//! a process that is killed leaves in the file what a power failure would.
//!
//! Guarantees:
//!
//! 1. What was flushed before a fence is in the file when that fence has returned.
//! 2. Of all else the file has lines as they were at some time: chance has some of them
//!    written when they are flushed, and at flushes and fences some that nobody flushed, near
//!    those that are and anywhere. No word is torn.

use crate::raw::Raw;
use crate::{LINE_BYTES, WORD_BYTES};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes that are written at once, at most.
const PIECE_BYTES: u64 = 64 << 10;
/// How far from a flushed line chance looks for others that were stored to.
const NEAR_LINES: u64 = 64;
/// How many lines it looks at elsewhere.
const FAR_LINES: u64 = 2048;

/// What is between a mapping and its file.
pub(crate) struct LossyCache {
    /// What is mapped.
    copy: Arc<File>,
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
    /// Nothing is on its way from `copy`, which is mapped, to `file`.
    pub(crate) fn new(copy: Arc<File>, file: Arc<File>) -> Self {
        let waiting = Waiting {
            lines: Vec::new(),
            rng: fastrand::Rng::new(),
        };
        Self {
            copy,
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
        match waiting.rng.u8(..4) {
            0 => self.evict(raw, lines.start, NEAR_LINES, &mut waiting.rng),
            _ => Ok(()),
        }
    }

    /// Writes some of the lines around `line` that differ from those in the file: a cache may
    /// write back any line at any time.
    fn evict(&self, raw: &Raw, line: u64, around: u64, rng: &mut fastrand::Rng) -> io::Result<()> {
        let last = raw.len() / LINE_BYTES;
        let lines = line.saturating_sub(around)..(line + around).min(last);
        let mut old = vec![0; ((lines.end - lines.start) * LINE_BYTES) as usize];
        self.file
            .read_exact_at(&mut old, lines.start * LINE_BYTES)?;
        let mut new = vec![0; old.len()];
        raw.read(lines.start * LINE_BYTES, &mut new)
            .map_err(io::Error::other)?;
        let pairs = old
            .chunks(LINE_BYTES as usize)
            .zip(new.chunks(LINE_BYTES as usize));
        for (line, _) in lines.zip(pairs).filter(|(_, (old, new))| old != new) {
            if rng.bool() {
                self.write(raw, line..line + 1)?;
            }
        }
        Ok(())
    }

    /// What is mapped, for those who map it once more.
    pub(crate) fn copy(&self) -> &Arc<File> {
        &self.copy
    }

    /// Sees to it that all that was flushed is in the file.
    pub(crate) fn fence(&self, raw: &Raw) -> io::Result<()> {
        let waiting = &mut *self.waiting.lock();
        if raw.len() > 0 && waiting.rng.u8(..8) == 0 {
            let line = waiting.rng.u64(..raw.len() / LINE_BYTES);
            self.evict(raw, line, FAR_LINES, &mut waiting.rng)?;
        }
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

/// A copy of a file, in memory.
pub(crate) fn copy_of(file: &File, len: u64) -> io::Result<File> {
    let copy = File::from(memfd_create("selvedge", MemfdFlags::CLOEXEC)?);
    copy.set_len(len)?;
    let mut piece = vec![0; PIECE_BYTES as usize];
    for at in (0..len).step_by(piece.len()) {
        let piece = &mut piece[..PIECE_BYTES.min(len - at) as usize];
        file.read_exact_at(piece, at)?;
        if piece.iter().any(|byte| *byte != 0) {
            copy.write_all_at(piece, at)?;
        }
    }
    Ok(copy)
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
