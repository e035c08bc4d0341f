//! Where the logs of transactions are, and what a crash left in them.
//!
//! # Format
//!
//! An *area* is a line and the logs, one behind the other. The line holds, as little-endian
//! words, all but the first sealed as those of a log: magic and version, the number of logs,
//! the bytes of each, and the low water.

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
/// Of version 1, in which runs have no masks, 2, in which no record has an overflow, and 3, in which
/// each overflow has one part.
const OLD_MAGICS: [u64; 3] = [
    u64::from_le_bytes(*b"SELVTXN\x01"),
    u64::from_le_bytes(*b"SELVTXN\x02"),
    u64::from_le_bytes(*b"SELVTXN\x03"),
];

const AT_MAGIC: u64 = 0;
const AT_LOGS: u64 = 8;
const AT_LOG_BYTES: u64 = 16;
const AT_LOW_WATER: u64 = 24;

/// Most logs in an area.
const LOGS_MAX: u64 = 1024;
/// Nobody commits often enough for a stamp beyond it.
const STAMP_MAX: u64 = 1 << 62;

/// The logs of transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Where it is, in bytes: a multiple of [`LINE_BYTES`].
    pub start: u64,
    /// The number of logs, and the most commits that append at the same time.
    pub logs: u64,
    /// Bytes of each: a multiple of [`LINE_BYTES`].
    pub log_bytes: u64,
    /// How they are written.
    pub kind: Kind,
}

/// What is wrong with an area.
#[derive(Debug, thiserror::Error)]
pub enum AreaError {
    /// It is none.
    #[error("transactions at {start:#x}: {what}")]
    NotAnArea {
        /// Where it should be, in bytes.
        start: u64,
        /// What is wrong.
        what: String,
    },
    /// A log of another kind or length than the first one.
    #[error("log at {start:#x}: it is not like the first one")]
    Unlike {
        /// Where it is, in bytes.
        start: u64,
    },
    /// A record that nobody can have committed.
    #[error("log at {start:#x}: the record at position {position} {what}")]
    Record {
        /// Where the log is, in bytes.
        start: u64,
        /// Which record.
        position: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A log is damaged, or none.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl From<MediumError> for AreaError {
    fn from(error: MediumError) -> Self {
        Self::Log(error.into())
    }
}

/// A transaction that was committed, and may not be in place.
struct Replay {
    stamp: u64,
    /// Where the log is, in bytes, and the position in it.
    place: (u64, u64),
    /// With its runs, unless they are in an overflow that was not read yet.
    record: Vec<u64>,
    overflow: Option<Overflow>,
}

impl Replay {
    fn wrong(&self, what: &'static str) -> AreaError {
        let (start, position) = self.place;
        AreaError::Record {
            start,
            position,
            what,
        }
    }

    /// The runs that are known.
    fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        let transaction = Transaction::decode(&self.record);
        transaction.into_iter().flat_map(|one| one.runs())
    }
}

/// What there is in an area. One by one, so that a checker can go on behind a log that is
/// damaged.
pub(crate) struct Reading<P> {
    pub area: Area,
    low_water: u64,
    logs: Vec<wordlog::Unrecovered<P>>,
    replay: Vec<Replay>,
}

impl Area {
    /// Bytes of the whole area.
    pub fn bytes(&self) -> u64 {
        LINE_BYTES + self.logs * self.log_bytes
    }

    pub(crate) fn log_start(&self, log: u64) -> u64 {
        self.start + LINE_BYTES + log * self.log_bytes
    }

    /// Words of the longest record.
    pub(super) fn longest(&self) -> u64 {
        wordlog::longest(self.log_bytes, self.kind)
    }

    fn wrong(&self, what: String) -> AreaError {
        let start = self.start;
        AreaError::NotAnArea { start, what }
    }

    /// Makes an area without transactions.
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

    /// The area at byte `start`, which ends at `end` at the latest.
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

    /// A sealed word of its line.
    fn word<P: Pmem>(&self, pm: &P, at: u64) -> Result<u64, AreaError> {
        let word = sealed::open(pm.load(self.start + at)?);
        word.ok_or_else(|| self.wrong(format!("its word at byte {at} has changed")))
    }

    /// Declares this version, before a record of a new kind is appended: with the next
    /// [`store_low_water`](Self::store_low_water), which writes back and fences this line.
    /// Records of older versions mean the same.
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
        // All records at once, before the space of any.
        Ok(pm.fence(Rule::NullifyBeforeReuse)?)
    }

    /// Brings in place what a crash left in the logs, and makes the memory ready for
    /// transactions. May be interrupted by a crash at any point, and repeated.
    ///
    /// # Errors
    /// [`AreaError`]; nothing was brought in place then, unless the memory failed.
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

    /// The stamp of a transaction and its overflow, if the record is one that could have been
    /// committed.
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
    /// Begins with the area at byte `start`, which ends at `end` at the latest.
    pub fn begin(pm: &P, start: u64, end: u64) -> Result<Self, AreaError> {
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

    /// Reads a log, and those of its transactions that are behind the low water.
    pub fn read(&mut self, pm: &P, number: u64) -> Result<(), AreaError> {
        match self.read_records(pm, number)? {
            (log, None) => {
                self.logs.push(log);
                Ok(())
            }
            (_, Some((_, why))) => Err(why),
        }
    }

    /// As [`read`](Self::read), but gives up a record that is damaged, with those after it in the
    /// log. What is wrong with it.
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

    /// Reads the records of a log up to one that is damaged: its position, and what is wrong.
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
                None => Err("is no transaction"),
                Some((stamp, _)) if stamp <= last || stamp > STAMP_MAX => {
                    Err("is older than the one before it, or of no time")
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
                    place: (start, position),
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

    /// All of it.
    pub fn finish<S: Space<Pmem = P>>(self, space: S) -> Result<Unrecovered<S>, AreaError> {
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
    /// In order.
    replay: Vec<Replay>,
}

impl<S: Space> Unrecovered<S> {
    /// Reads the logs of the area at byte `start`, which ends at `end` at the latest. Records that
    /// are damaged go on the list `lost`, if there is one: recovery gives up each, with all that
    /// follow in its log.
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

    /// Reads the overflows of records, before [`recover`](Self::recover): they lie in `heap`, the
    /// parts of the heap, whose bytes are in place and ascending. `reserved` are offsets that no
    /// overflow has words for: what says where the heap is. Damaged records go on the list
    /// `lost` as in [`open`](Self::open).
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn read_overflows(
        &mut self,
        heap: &[Range<u64>],
        reserved: Range<u64>,
        mut lost: Option<&mut Vec<AreaError>>,
    ) -> Result<(), AreaError> {
        for (place, why) in self.misplaced_overflows(heap) {
            self.give_up(place, why, &mut lost)?;
        }
        let mut next = 0;
        while let Some(one) = self.replay.get(next) {
            match self.overflow_of(one, &reserved) {
                Ok(None) => next += 1,
                Ok(Some(record)) => {
                    let one = &mut self.replay[next];
                    (one.record, one.overflow) = (record, None);
                }
                Err(why @ AreaError::Record { .. }) => self.give_up(one.place, why, &mut lost)?,
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Records whose overflow does not lie in a part of the heap, or has bytes of another one: the
    /// first of each log.
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
                found.push((
                    one.place,
                    one.wrong("has an overflow that is not in the heap"),
                ));
            } else if overflow.off < used {
                found.push((one.place, one.wrong("has bytes of another one's overflow")));
            } else {
                used = overflow.end();
            }
        }
        found.sort_by_key(|(place, _)| *place);
        found.dedup_by_key(|((log, _), _)| *log);
        found
    }

    /// The record with the runs that are in its overflow; `None`: it has none, or it was read.
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

    /// Gives up a record that is damaged, and all that follow in its log, or returns what is wrong.
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
            .retain(|one| one.place.0 != start || one.place.1 < position);
        Ok(())
    }

    /// Brings in place those words whose offsets `is_meant`, for those who must read them
    /// before [`recover`](Self::recover), which does so again. Words in overflows that were not
    /// read are left out.
    pub fn replay(&self, is_meant: impl Fn(u64) -> bool) {
        let pm = self.space.pmem();
        for mut rest in self.replay.iter().flat_map(Replay::runs) {
            while !rest.words.is_empty() {
                let room = (LINE_BYTES - rest.off % LINE_BYTES) / WORD_BYTES;
                let (in_line, more) = rest.split_at(room as usize);
                if is_meant(in_line.off) {
                    bring_in_place(pm, in_line);
                }
                rest = more;
            }
        }
    }

    /// As [`Area::recover`], but for words at offsets that are not there any more: memory
    /// that was given up after the transaction.
    ///
    /// # Errors
    /// As there, and an overflow that was not read.
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
        // All of it, before the low water ends the records' life.
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

/// Stores words that lie in one line.
fn bring_in_place<P: Pmem>(pm: &P, mut run: Run<'_>) {
    if run.mask != WHOLE && hit(Bug::ReplayWhole) {
        run.mask = WHOLE;
    }
    run.store(pm);
    if !hit(Bug::UnflushedRecovery) {
        pm.flush(run.off, run.bytes());
    }
}
