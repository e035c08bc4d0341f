//! The area of the logs of transactions, and their recovery.
//!
//! # Format
//!
//! An *area* is a line, then the logs without gaps. The line holds little-endian words: magic and
//! version, the number of logs, the bytes of each, and the low water. All but the first are sealed
//! like those of a log.

use super::locks::Locks;
use super::mask::WHOLE;
use super::record::{Overflow, Run, Transaction};
use super::running::Running;
use super::truncation::{Helper, Truncating};
use super::{Core, IDLE, Memory, Options, Slot, Space, record};
use crate::seeded::{Bug, hit};
use crossbeam_utils::CachePadded;
use medium::{LINE_BYTES, MediumError, Pmem, Rule, WORD_BYTES};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use wordlog::sealed::{self, seal};
use wordlog::{Kind, LogError};

/// "SELVTXN" and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SELVTXN\x04");
/// Older versions: in 1 runs have no masks, in 2 records have no overflow, and in 3 an overflow has
/// one part.
const OLD_MAGICS: [u64; 3] = [
    u64::from_le_bytes(*b"SELVTXN\x01"),
    u64::from_le_bytes(*b"SELVTXN\x02"),
    u64::from_le_bytes(*b"SELVTXN\x03"),
];

const AT_MAGIC: u64 = 0;
const AT_LOGS: u64 = 8;
const AT_LOG_BYTES: u64 = 16;
const AT_LOW_WATER: u64 = 24;

/// The maximum number of logs in an area.
const LOGS_MAX: u64 = 1024;
/// The maximum stamp; no machine commits that often.
const STAMP_MAX: u64 = 1 << 62;

/// The logs of transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// The offset of the first byte, a multiple of [`LINE_BYTES`].
    pub start: u64,
    /// The number of logs, and the most commits that append at the same time.
    pub logs: u64,
    /// The bytes of each log, a multiple of [`LINE_BYTES`].
    pub log_bytes: u64,
    /// The way in which logs mark their records.
    pub kind: Kind,
}

/// Errors of an area.
#[derive(Debug, thiserror::Error)]
pub enum AreaError {
    /// There is no valid area at this offset.
    #[error("transactions at {start:#x}: {what}")]
    NotAnArea {
        /// The offset in bytes.
        start: u64,
        /// Which part is invalid.
        what: String,
    },
    /// A log of another kind or length than the first one.
    #[error("log at {start:#x}: it is not like the first one")]
    Unlike {
        /// The offset of the log in bytes.
        start: u64,
    },
    /// A record that no commit can have appended.
    #[error("log at {start:#x}: the record at position {position} {what}")]
    Record {
        /// The offset of the log in bytes.
        start: u64,
        /// The position of the record.
        position: u64,
        /// Which property is violated.
        what: &'static str,
    },
    /// A log is damaged or missing.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl From<MediumError> for AreaError {
    fn from(error: MediumError) -> Self {
        Self::Log(error.into())
    }
}

/// A transaction that was committed, and may not be stored at its addresses.
struct Replay {
    stamp: u64,
    /// The offset of the log in bytes, and the position in it.
    at: (u64, u64),
    /// The record. Without runs if they are in an overflow that was not read yet.
    record: Vec<u64>,
    overflow: Option<Overflow>,
}

impl Replay {
    fn wrong(&self, what: &'static str) -> AreaError {
        let (start, position) = self.at;
        AreaError::Record {
            start,
            position,
            what,
        }
    }

    /// The runs that were read.
    fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        let transaction = Transaction::decode(&self.record);
        transaction.into_iter().flat_map(|one| one.runs())
    }
}

/// The contents of an area, read log by log, so that a checker can skip a log that is damaged.
pub(crate) struct Reading<P> {
    pub area: Area,
    low_water: u64,
    logs: Vec<wordlog::Unrecovered<P>>,
    replay: Vec<Replay>,
}

impl Area {
    /// The length of the whole area in bytes.
    pub fn bytes(&self) -> u64 {
        LINE_BYTES + self.logs * self.log_bytes
    }

    pub(crate) fn log_start(&self, log: u64) -> u64 {
        self.start + LINE_BYTES + log * self.log_bytes
    }

    /// The words of the longest record.
    pub(super) fn longest(&self) -> u64 {
        wordlog::longest(self.log_bytes, self.kind)
    }

    fn wrong(&self, what: String) -> AreaError {
        let start = self.start;
        AreaError::NotAnArea { start, what }
    }

    /// Formats an area without transactions.
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn format<P: Pmem>(&self, pm: &P) -> Result<(), AreaError> {
        if !(1..=LOGS_MAX).contains(&self.logs) {
            return Err(self.wrong(format!("{} logs", self.logs)));
        }
        for log in 0..self.logs {
            wordlog::format(pm, self.log_start(log), self.log_bytes, self.kind)?;
        }
        pm.store_word(self.start + AT_LOGS, seal(self.logs));
        pm.store_word(self.start + AT_LOG_BYTES, seal(self.log_bytes));
        pm.store_word(self.start + AT_LOW_WATER, 0);
        pm.flush(self.start, LINE_BYTES);
        pm.fence(Rule::InitialiseBeforePoint)?;
        pm.store_word(self.start + AT_MAGIC, MAGIC);
        pm.flush(self.start, LINE_BYTES);
        Ok(pm.fence(Rule::DurableBeforeReturn)?)
    }

    /// Opens the area at byte `start`, which ends at `end` at the latest.
    fn open<P: Pmem>(pm: &P, start: u64, end: u64) -> Result<Self, AreaError> {
        let mut area = Self {
            start,
            logs: 0,
            log_bytes: 0,
            kind: Kind::default(),
        };
        let is_there = start.saturating_add(LINE_BYTES) <= end;
        let magic = if is_there {
            pm.load(start + AT_MAGIC)?
        } else {
            0
        };
        if magic != MAGIC && !OLD_MAGICS.contains(&magic) {
            return Err(area.wrong("the magic is missing, or of another version".into()));
        }
        area.logs = area.word(pm, AT_LOGS)?;
        area.log_bytes = area.word(pm, AT_LOG_BYTES)?;
        let room = end - start - LINE_BYTES;
        let fits = area.log_bytes <= room / area.logs.max(1);
        let is_whole = area.log_bytes.is_multiple_of(LINE_BYTES);
        if !(1..=LOGS_MAX).contains(&area.logs) || !fits || !is_whole {
            let what = format!("{} logs of {} bytes", area.logs, area.log_bytes);
            return Err(area.wrong(what));
        }
        area.kind = wordlog::Unrecovered::open(pm, area.log_start(0))?.kind();
        Ok(area)
    }

    /// Loads a sealed word of the first line.
    fn word<P: Pmem>(&self, pm: &P, at: u64) -> Result<u64, AreaError> {
        let word = sealed::open(pm.load(self.start + at)?);
        word.ok_or_else(|| self.wrong(format!("its word at byte {at} has changed")))
    }

    /// Sets this version, before a record of a new kind is appended. The next
    /// [`store_low_water`](Self::store_low_water) writes the line back and fences it. Records of
    /// older versions keep their meaning.
    fn upgrade<P: Pmem>(&self, pm: &P) -> Result<(), LogError> {
        if OLD_MAGICS.contains(&pm.load(self.start + AT_MAGIC)?) {
            pm.store_word(self.start + AT_MAGIC, MAGIC);
        }
        Ok(())
    }

    /// Makes the low water durable.
    pub(super) fn store_low_water<P: Pmem>(&self, pm: &P, stamp: u64) -> Result<(), LogError> {
        pm.store_word(self.start + AT_LOW_WATER, seal(stamp));
        pm.flush(self.start + AT_LOW_WATER, WORD_BYTES);
        // End the life of all records at once, before the space of any is reused.
        Ok(pm.fence(Rule::NullifyBeforeReuse)?)
    }

    /// Replays the logs, and makes the memory ready for transactions. A crash may interrupt this at
    /// any point; it can then be repeated.
    ///
    /// # Errors
    /// [`AreaError`]; then nothing was replayed, unless the memory failed.
    pub fn recover<S: Space>(
        space: S,
        start: u64,
        options: Options,
    ) -> Result<Memory<S>, AreaError> {
        let end = space.pmem().len();
        Unrecovered::open(space, start, end, None)?.recover(|_| true, options)
    }

    /// Whether a transaction may have written these bytes.
    fn may_hold<P: Pmem>(&self, pm: &P, bytes: Range<u64>) -> bool {
        let ours = self.start..self.start + self.bytes();
        bytes.end <= pm.len() && (bytes.end <= ours.start || bytes.start >= ours.end)
    }

    /// Decodes a record that could have been committed: its stamp, and its overflow.
    fn decode<P: Pmem>(&self, pm: &P, record: &[u64]) -> Option<(u64, Option<Overflow>)> {
        if let Some(overflow) = Overflow::decode(record) {
            let mut parts = overflow.parts().iter();
            let fits = parts.all(|part| self.may_hold(pm, part.off..part.end()));
            return fits.then_some((record[0], Some(overflow)));
        }
        let transaction = Transaction::decode(record)?;
        let mut runs = transaction.runs();
        let fits = runs.all(|run| self.may_hold(pm, run.range()));
        fits.then_some((transaction.stamp, None))
    }
}

impl<P: Pmem + Clone> Reading<P> {
    /// Opens the area at byte `start`, which ends at `end` at the latest.
    pub(crate) fn begin(pm: &P, start: u64, end: u64) -> Result<Self, AreaError> {
        let area = Area::open(pm, start, end)?;
        let low_water = area.word(pm, AT_LOW_WATER)?;
        if low_water > STAMP_MAX {
            return Err(area.wrong(format!("a low water of {low_water}")));
        }
        Ok(Self {
            area,
            low_water,
            logs: Vec::new(),
            replay: Vec::new(),
        })
    }

    /// Reads a log, and keeps its transactions above the low water.
    pub(crate) fn read(&mut self, pm: &P, number: u64) -> Result<(), AreaError> {
        match self.read_records(pm, number)? {
            (log, None) => {
                self.logs.push(log);
                Ok(())
            }
            (_, Some((_, why))) => Err(why),
        }
    }

    /// As [`read`](Self::read), but gives up a damaged record, with those after it in the log.
    /// Returns the damage.
    fn read_what_is_whole(&mut self, pm: &P, number: u64) -> Result<Option<AreaError>, AreaError> {
        match self.read_records(pm, number)? {
            (log, None) => {
                self.logs.push(log);
                Ok(None)
            }
            (mut log, Some((position, why))) => {
                log.cut(position);
                self.logs.push(log);
                Ok(Some(why))
            }
        }
    }

    /// Reads the records of a log up to the first that is damaged. Returns its position and the
    /// damage.
    #[expect(clippy::type_complexity)]
    fn read_records(
        &mut self,
        pm: &P,
        number: u64,
    ) -> Result<(wordlog::Unrecovered<P>, Option<(u64, AreaError)>), AreaError> {
        let start = self.area.log_start(number);
        let mut log = wordlog::Unrecovered::open(pm.clone(), start)?;
        if log.kind() != self.area.kind || log.bytes() != self.area.log_bytes {
            return Err(AreaError::Unlike { start });
        }
        let (mut record, mut position, mut last) = (Vec::new(), log.position(), 0);
        loop {
            let end = match log.next(&mut record) {
                Ok(Some(end)) => end,
                Ok(None) => return Ok((log, None)),
                Err(why @ LogError::Damaged { .. }) => {
                    return Ok((log, Some((position, why.into()))));
                }
                Err(why) => return Err(why.into()),
            };
            let decoded = match self.area.decode(pm, &record) {
                None => Err("is not a transaction"),
                Some((stamp, _)) if stamp <= last || stamp > STAMP_MAX => {
                    Err("is older than the one before it, or its stamp is too large")
                }
                Some(decoded) => Ok(decoded),
            };
            let (stamp, overflow) = match decoded {
                Ok(decoded) => decoded,
                Err(what) => {
                    let why = AreaError::Record {
                        start,
                        position,
                        what,
                    };
                    return Ok((log, Some((position, why))));
                }
            };
            if stamp > self.low_water || hit(Bug::ReplayAll) {
                self.replay.push(Replay {
                    stamp,
                    at: (start, position),
                    record: match &overflow {
                        Some(_) => Vec::new(),
                        None => record.clone(),
                    },
                    overflow,
                });
            }
            (position, last) = (end, stamp);
        }
    }

    /// Sorts the transactions, after all logs were read.
    pub(crate) fn finish<S: Space<Pmem = P>>(self, space: S) -> Result<Unrecovered<S>, AreaError> {
        let (area, mut replay) = (self.area, self.replay);
        if !hit(Bug::ReplayUnordered) {
            replay.sort_by_key(|transaction| transaction.stamp);
        }
        let mut pairs = replay.windows(2);
        if let Some(pair) = pairs.find(|pair| pair[0].stamp == pair[1].stamp) {
            return Err(pair[1].wrong("has the stamp of another one"));
        }
        Ok(Unrecovered {
            space,
            area,
            low_water: self.low_water,
            logs: self.logs,
            replay,
        })
    }
}

/// Memory with logs as a crash left them.
pub struct Unrecovered<S: Space> {
    space: S,
    pub(crate) area: Area,
    low_water: u64,
    logs: Vec<wordlog::Unrecovered<S::Pmem>>,
    /// The records, in the order of their stamps.
    replay: Vec<Replay>,
}

impl<S: Space> Unrecovered<S> {
    /// Reads the logs of the area at byte `start`, which ends at `end` at the latest. Damaged
    /// records are added to the list `lost`, if there is one: recovery gives up each, with all that
    /// follow it in its log.
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn open(
        space: S,
        start: u64,
        end: u64,
        mut lost: Option<&mut Vec<AreaError>>,
    ) -> Result<Self, AreaError> {
        let pm = space.pmem();
        let mut reading = Reading::begin(pm, start, end)?;
        for number in 0..reading.area.logs {
            match &mut lost {
                None => reading.read(pm, number)?,
                Some(lost) => lost.extend(reading.read_what_is_whole(pm, number)?),
            }
        }
        reading.finish(space)
    }

    /// Reads the overflows of records, before [`recover`](Self::recover). They lie in `heap`, the
    /// parts of the heap in ascending order, whose bytes exist. `reserved` are offsets that no
    /// overflow has words for: they describe where the heap is. Damaged records are added to `lost`
    /// as in [`open`](Self::open).
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn read_overflows(
        &mut self,
        heap: &[Range<u64>],
        reserved: Range<u64>,
        mut lost: Option<&mut Vec<AreaError>>,
    ) -> Result<(), AreaError> {
        for (at, why) in self.misplaced_overflows(heap) {
            self.give_up(at, why, &mut lost)?;
        }
        let mut next = 0;
        while let Some(one) = self.replay.get(next) {
            match self.overflow_of(one, &reserved) {
                Ok(None) => next += 1,
                Ok(Some(record)) => {
                    let one = &mut self.replay[next];
                    (one.record, one.overflow) = (record, None);
                }
                Err(why @ AreaError::Record { .. }) => self.give_up(one.at, why, &mut lost)?,
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// The first record of each log whose overflow is outside the heap, or overlaps another one.
    fn misplaced_overflows(&self, heap: &[Range<u64>]) -> Vec<((u64, u64), AreaError)> {
        let mut found = Vec::new();
        let parts = self.replay.iter().flat_map(|one| {
            let parts = one.overflow.iter().flat_map(Overflow::parts);
            parts.map(move |part| (part, one))
        });
        let mut parts: Vec<_> = parts.collect();
        parts.sort_by_key(|(part, _)| part.off);
        let mut used = 0;
        for (overflow, one) in parts {
            let before = heap.partition_point(|part| part.start <= overflow.off);
            let part = before.checked_sub(1).map(|at| &heap[at]);
            if part.is_none_or(|part| overflow.end() > part.end) {
                found.push((one.at, one.wrong("has an overflow that is not in the heap")));
            } else if overflow.off < used {
                found.push((one.at, one.wrong("has bytes of another one's overflow")));
            } else {
                used = overflow.end();
            }
        }
        found.sort_by_key(|(at, _)| *at);
        found.dedup_by_key(|((log, _), _)| *log);
        found
    }

    /// The record with the runs of its overflow. `None`: it has none, or it was read before.
    fn overflow_of(
        &self,
        one: &Replay,
        reserved: &Range<u64>,
    ) -> Result<Option<Vec<u64>>, AreaError> {
        let Some(overflow) = &one.overflow else {
            return Ok(None);
        };
        let pm = self.space.pmem();
        let Some(record) = overflow.load(pm, one.stamp)? else {
            return Err(one.wrong("has an overflow that has changed since it was durable"));
        };
        let is_apart = |run: Range<u64>| run.end <= reserved.start || run.start >= reserved.end;
        let fits = match self.area.decode(pm, &record) {
            Some((_, None)) => record::runs(&record).all(|run| is_apart(run.range())),
            _ => false,
        };
        match fits {
            true => Ok(Some(record)),
            false => Err(one.wrong("has an overflow that is not a transaction's")),
        }
    }

    /// Gives up a damaged record, with all that follow it in its log. Without a list returns the
    /// damage.
    fn give_up(
        &mut self,
        (start, position): (u64, u64),
        why: AreaError,
        lost: &mut Option<&mut Vec<AreaError>>,
    ) -> Result<(), AreaError> {
        match lost {
            None => return Err(why),
            Some(lost) => lost.push(why),
        }
        let log = (start - self.area.log_start(0)) / self.area.log_bytes;
        self.logs[log as usize].cut(position);
        self.replay
            .retain(|one| one.at.0 != start || one.at.1 < position);
        Ok(())
    }

    /// Replays words whose offsets `is_meant` accepts, for code that must read them before
    /// [`recover`](Self::recover), which replays them again. Skips overflows that were not read.
    pub fn replay(&self, is_meant: impl Fn(u64) -> bool) {
        let pm = self.space.pmem();
        for mut rest in self.replay.iter().flat_map(Replay::runs) {
            while !rest.words.is_empty() {
                let room = (LINE_BYTES - rest.off % LINE_BYTES) / WORD_BYTES;
                let (in_line, more) = rest.split_at(room as usize);
                if is_meant(in_line.off) {
                    replay_line(pm, in_line);
                }
                rest = more;
            }
        }
    }

    /// As [`Area::recover`], but skips words at offsets that do not exist any more: memory that was
    /// freed after the transaction.
    ///
    /// # Errors
    /// As [`Area::recover`], and for an overflow that was not read.
    pub fn recover(
        self,
        is_there: impl Fn(u64) -> bool,
        options: Options,
    ) -> Result<Memory<S>, AreaError> {
        if let Some(one) = self.replay.iter().find(|one| one.overflow.is_some()) {
            return Err(one.wrong("has an overflow, and there is no heap"));
        }
        self.replay(is_there);
        let pm = self.space.pmem();
        // All words are durable before the low water ends the life of their records.
        if !hit(Bug::LowWaterBeforeReplay) {
            pm.fence(Rule::HomeBeforeReclaim)?;
        }
        let stamp = self.replay.last().map_or(self.low_water, |last| last.stamp);
        self.area.upgrade(pm)?;
        self.area.store_low_water(pm, stamp)?;
        let (mut slots, mut consumers) = (Vec::new(), Vec::new());
        for log in self.logs {
            let (appender, consumer) = log.empty()?;
            slots.push(CachePadded::new(Slot {
                appender: Mutex::new(appender),
                home: Mutex::default(),
                active: AtomicU64::new(IDLE),
            }));
            consumers.push(consumer);
        }
        let running = Running::new(options.privatise);
        let core = Core {
            space: self.space,
            area: self.area,
            locks: Locks::new(options.locks, stamp),
            options,
            clock: AtomicU64::new(stamp).into(),
            slots: slots.into(),
            #[cfg(test)]
            found_no_log: AtomicU64::new(0),
            low_water: AtomicU64::new(stamp),
            logged: AtomicU64::new(stamp).into(),
            truncating: Mutex::new(Truncating::new(consumers)),
            helper: Helper::default(),
            sessions: AtomicU64::new(0),
            running,
            turn: CachePadded::default(),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        Ok(Memory {
            core: Arc::new(core),
        })
    }
}

/// Replays words that lie in one line.
fn replay_line<P: Pmem>(pm: &P, mut run: Run<'_>) {
    if run.mask != WHOLE && hit(Bug::ReplayWhole) {
        run.mask = WHOLE;
    }
    run.store(pm);
    if !hit(Bug::UnflushedRecovery) {
        pm.flush(run.off, run.bytes());
    }
}
