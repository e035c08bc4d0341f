//! A cache whose contents a power failure loses, for mappings that programs store to
//! themselves.
//!
//! [`PowerCut`](crate::PowerCut) must record every store, which is impossible for a C program.
//! So here the mapping is of a copy in memory. Lines are written from it to the file when they
//! are flushed. A killed process leaves in the file what a power failure would.
//!
//! Guarantees:
//!
//! 1. When a fence has returned, the file has each line that its thread flushed before, as the
//!    line was at the flush or later.
//! 2. All other lines in the file are as they were at some time. A flush writes some of its
//!    lines at random. Flushes and fences write some lines that were not flushed, both near the
//!    flushed ones and anywhere. No word is torn.
//! 3. The contents of a line in the file are never replaced by older ones.
//!
//! As with the processor's instruction, a flush does not cover later stores to its line. So a
//! flush copies the lines, and the fence writes the copies.

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

/// Largest number of bytes that are compared or written at once.
const PIECE_BYTES: u64 = 64 << 10;
/// Distance from a flushed line within which lines are evicted at random.
const NEAR_LINES: u64 = 64;
/// Number of lines elsewhere that may be evicted at random.
const FAR_LINES: u64 = 2048;

type Line = [u8; LINE_BYTES as usize];

/// The simulated cache between a mapping and its file.
pub(crate) struct LossyCache {
    /// The file in memory that is mapped.
    copy: Arc<File>,
    file: Arc<File>,
    /// Held while lines are read and written, so that the file receives their contents in the
    /// order in which they were copied.
    flushed: Mutex<Flushed>,
}

/// Lines that were flushed and are not in the file yet.
#[derive(Default)]
struct Flushed {
    /// The contents found by flushes, by line: the oldest first, one of each thread.
    lines: HashMap<u64, Vec<(Pid, Line)>>,
    /// The lines of each thread; some may be in the file by now.
    of_threads: HashMap<Pid, Vec<u64>>,
    rng: fastrand::Rng,
}

impl LossyCache {
    /// An empty cache between `copy`, which is mapped, and `file`.
    pub(crate) fn new(copy: Arc<File>, file: Arc<File>) -> Self {
        Self {
            copy,
            file,
            flushed: Mutex::default(),
        }
    }

    /// The file that is mapped, for a second mapping of it.
    pub(crate) fn copy(&self) -> &Arc<File> {
        &self.copy
    }

    /// Writes the present lines of `off..off + len` to the file at once or at this thread's
    /// next fence.
    pub(crate) fn flush(&self, raw: &Raw, off: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let lines = off / LINE_BYTES..(off + len).div_ceil(LINE_BYTES);
        let (flushed, me) = (&mut *self.flushed.lock(), gettid());
        self.compare(raw, lines.clone(), |line, now, is_in_file| {
            // Contents from an earlier flush are older than these.
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

    /// Writes all lines that this thread flushed to the file.
    pub(crate) fn fence(&self, raw: &Raw) -> io::Result<()> {
        let flushed = &mut *self.flushed.lock();
        if raw.len() > 0 && flushed.rng.u8(..8) == 0 {
            let line = flushed.rng.u64(..raw.len() / LINE_BYTES);
            self.evict(raw, line, FAR_LINES, flushed)?;
        }
        let due = flushed.take_those_of(gettid());
        self.write(due)
    }

    /// Writes all lines that any thread flushed to the file.
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

    /// Calls `each` with the present lines, and whether they are equal to those in the file.
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

    /// Writes the present lines, which are newer than those of earlier flushes.
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
    /// Records that the thread flushed the line, with the contents `now`.
    fn add(&mut self, thread: Pid, line: u64, now: Line) {
        let found = self.lines.entry(line).or_default();
        match found.iter().position(|(of, _)| *of == thread) {
            Some(before) => drop(found.remove(before)),
            None => self.of_threads.entry(thread).or_default().push(line),
        }
        found.push((thread, now));
    }

    /// Removes and returns the thread's flushed lines, and older contents of them.
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

    /// A random run of these lines, which may be empty.
    fn some_of(&mut self, lines: Range<u64>) -> Range<u64> {
        let start = self.rng.u64(lines.clone());
        let end = self.rng.u64(start..=lines.end);
        match self.rng.bool() {
            true => start..end,
            false => start..start,
        }
    }
}

/// Divides lines into pieces.
fn pieces(lines: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let most = PIECE_BYTES / LINE_BYTES;
    let starts = lines.clone().step_by(most as usize);
    starts.map(move |start| start..lines.end.min(start + most))
}

/// The present contents of lines.
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
