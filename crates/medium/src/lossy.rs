//! The cache that a power failure empties, for mappings that programs store to by themselves.
//!
//! [`PowerCut`](crate::PowerCut) has to see every store, and nobody sees those of a C program.
//! Here the mapping is of a copy in memory, and lines go from it to the file when they are flushed:
//! a process that is killed leaves in the file what a power failure would.
//!
//! Guarantees:
//!
//! 1. When a fence has returned, the file has each line that its thread flushed before, as the
//!    line was at the flush or later.
//! 2. Of all else the file has lines as they were at some time: chance has some of them
//!    written when they are flushed, and at flushes and fences some that nobody flushed, near
//!    those that are and anywhere. No word is torn.
//! 3. The contents of a line in the file never give way to older ones.
//!
//! A store that follows the flush of its line is not covered by that flush, as it is not by the
//! processor's instruction. So a flush copies the lines, and the fence writes the copies.

use crate::raw::Raw;
use crate::{LINE_BYTES, WORD_BYTES};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::thread::{Pid, gettid};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes that are compared or written at once, at most.
const PIECE_BYTES: u64 = 64 << 10;
/// How far from a flushed line chance looks for others that were stored to.
const NEAR_LINES: u64 = 64;
/// How many lines it looks at elsewhere.
const FAR_LINES: u64 = 2048;

type Line = [u8; LINE_BYTES as usize];

/// What is between a mapping and its file.
pub(crate) struct LossyCache {
    /// What is mapped.
    copy: Arc<File>,
    file: Arc<File>,
    /// Held while lines are read and written, so that the file gets their contents in the order
    /// in which they were copied.
    flushed: Mutex<Flushed>,
}

/// Lines that were flushed, and are not in the file yet.
#[derive(Default)]
struct Flushed {
    /// By their numbers: what flushes found there, the oldest first and one of each thread.
    lines: HashMap<u64, Vec<(Pid, Line)>>,
    /// The lines of each thread; some may be in the file since.
    of_threads: HashMap<Pid, Vec<u64>>,
    rng: fastrand::Rng,
}

impl LossyCache {
    /// Nothing is on its way from `copy`, which is mapped, to `file`.
    pub(crate) fn new(copy: Arc<File>, file: Arc<File>) -> Self {
        Self {
            copy,
            file,
            flushed: Mutex::default(),
        }
    }

    /// What is mapped, for those who map it once more.
    pub(crate) fn copy(&self) -> &Arc<File> {
        &self.copy
    }

    /// Lets the lines of `off..off + len`, as they are, go to the file until this thread's next
    /// fence, or at once.
    pub(crate) fn flush(&self, raw: &Raw, off: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let lines = off / LINE_BYTES..(off + len).div_ceil(LINE_BYTES);
        let (flushed, me) = (&mut *self.flushed.lock(), gettid());
        self.compare(raw, lines.clone(), |line, now, is_in_file| {
            // What a flush found before is older than this.
            if !is_in_file || flushed.lines.contains_key(&line) {
                flushed.add(me, line, *now);
            }
        })?;
        let early = flushed.some_of(lines.clone());
        self.write_back(raw, early, flushed)?;
        match flushed.rng.u8(..4) {
            0 => self.evict(raw, lines.start, NEAR_LINES, flushed),
            _ => Ok(()),
        }
    }

    /// Sees to it that all that this thread flushed is in the file.
    pub(crate) fn fence(&self, raw: &Raw) -> io::Result<()> {
        let flushed = &mut *self.flushed.lock();
        if raw.len() > 0 && flushed.rng.u8(..8) == 0 {
            let line = flushed.rng.u64(..raw.len() / LINE_BYTES);
            self.evict(raw, line, FAR_LINES, flushed)?;
        }
        let due = flushed.take_those_of(gettid());
        self.write(due)
    }

    /// Sees to it that all that any thread flushed is in the file.
    pub(crate) fn fence_all(&self) -> io::Result<()> {
        let flushed = &mut *self.flushed.lock();
        let due = flushed.take_all();
        self.write(due)
    }

    /// Writes some of the lines around `line` that differ from those in the file: a cache may
    /// write back any line at any time.
    fn evict(&self, raw: &Raw, line: u64, around: u64, flushed: &mut Flushed) -> io::Result<()> {
        let last = raw.len() / LINE_BYTES;
        let lines = line.saturating_sub(around)..(line + around).min(last);
        let mut chosen = Vec::new();
        self.compare(raw, lines, |line, _, is_in_file| {
            if !is_in_file && flushed.rng.bool() {
                chosen.push(line);
            }
        })?;
        let mut each = chosen.into_iter();
        each.try_for_each(|line| self.write_back(raw, line..line + 1, flushed))
    }

    /// Calls `each` with lines as they are, and whether the file has them so.
    fn compare(
        &self,
        raw: &Raw,
        lines: Range<u64>,
        mut each: impl FnMut(u64, &Line, bool),
    ) -> io::Result<()> {
        for piece in pieces(lines) {
            let now = contents(raw, &piece)?;
            let mut in_file = vec![[0; LINE_BYTES as usize]; now.len()];
            let bytes = in_file.as_flattened_mut();
            self.file.read_exact_at(bytes, piece.start * LINE_BYTES)?;
            for (line, (now, in_file)) in piece.zip(now.iter().zip(&in_file)) {
                each(line, now, now == in_file);
            }
        }
        Ok(())
    }

    /// Writes lines as they are. What flushes found there is older.
    fn write_back(&self, raw: &Raw, lines: Range<u64>, flushed: &mut Flushed) -> io::Result<()> {
        for piece in pieces(lines) {
            let now = contents(raw, &piece)?;
            self.file
                .write_all_at(now.as_flattened(), piece.start * LINE_BYTES)?;
            piece.for_each(|line| drop(flushed.lines.remove(&line)));
        }
        Ok(())
    }

    /// Writes lines as they were when they were flushed.
    fn write(&self, mut due: Vec<(u64, Line)>) -> io::Result<()> {
        due.sort_unstable_by_key(|(line, _)| *line);
        for run in due.chunk_by(|(line, _), (next, _)| line + 1 == *next) {
            let lines: Vec<Line> = run.iter().map(|(_, line)| *line).collect();
            self.file
                .write_all_at(lines.as_flattened(), run[0].0 * LINE_BYTES)?;
        }
        Ok(())
    }
}

impl Flushed {
    /// The thread flushed the line, and found `now` there.
    fn add(&mut self, thread: Pid, line: u64, now: Line) {
        let found = self.lines.entry(line).or_default();
        match found.iter().position(|(of, _)| *of == thread) {
            Some(before) => drop(found.remove(before)),
            None => self.of_threads.entry(thread).or_default().push(line),
        }
        found.push((thread, now));
    }

    /// Takes out what the thread flushed, and what is older there.
    fn take_those_of(&mut self, thread: Pid) -> Vec<(u64, Line)> {
        let mut due = Vec::new();
        for line in self.of_threads.remove(&thread).unwrap_or_default() {
            let Some(found) = self.lines.get_mut(&line) else {
                continue;
            };
            let Some(last) = found.iter().position(|(of, _)| *of == thread) else {
                continue;
            };
            due.push((line, found[last].1));
            found.drain(..=last);
            if found.is_empty() {
                self.lines.remove(&line);
            }
        }
        due
    }

    fn take_all(&mut self) -> Vec<(u64, Line)> {
        self.of_threads.clear();
        let last = |(line, found): (u64, Vec<(Pid, Line)>)| Some((line, found.last()?.1));
        self.lines.drain().filter_map(last).collect()
    }

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

/// Cuts lines into pieces.
fn pieces(lines: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let most = PIECE_BYTES / LINE_BYTES;
    let starts = lines.clone().step_by(most as usize);
    starts.map(move |start| start..lines.end.min(start + most))
}

/// Lines as they are.
fn contents(raw: &Raw, lines: &Range<u64>) -> io::Result<Vec<Line>> {
    let mut found = vec![[0; LINE_BYTES as usize]; (lines.end - lines.start) as usize];
    let words = (lines.start * LINE_BYTES..).step_by(WORD_BYTES as usize);
    let (places, _) = found.as_flattened_mut().as_chunks_mut::<8>();
    for (place, at) in places.iter_mut().zip(words) {
        *place = raw.load(at).map_err(io::Error::other)?.to_le_bytes();
    }
    Ok(found)
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
