//! Where the logs of transactions are, and what a crash left in them.
//!
//! # Format
//!
//! An *area* is a line and the logs, one behind the other. The line holds, as little-endian
//! words: magic and version, the number of logs, the bytes of each, and the low water.

use super::locks::Locks;
use super::record::Transaction;
use super::running::Running;
use super::truncation::Helper;
use super::truncation::Truncated;
use super::{Core, IDLE, Memory, Options, Slot, Space};
use crate::log::{self, Kind, LogError};
use crate::seeded::{Bug, hit};
use crossbeam_utils::CachePadded;
use medium::{LINE_BYTES, MediumError, Pmem, WORD_BYTES};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// "SELVTXN" and the version.
const MAGIC: u64 = u64::from_le_bytes(*b"SELVTXN\x01");

const AT_MAGIC: u64 = 0;
const AT_LOGS: u64 = 8;
const AT_LOG_BYTES: u64 = 16;
const AT_LOW_WATER: u64 = 24;

/// Most logs in an area.
const LOGS_MAX: u64 = 1024;

/// The logs of transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// Where it is, in bytes: a multiple of [`LINE_BYTES`].
    pub start: u64,
    /// How many logs there are: so many commits can be under way.
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
    record: Vec<u64>,
}

impl Area {
    /// Bytes of the whole area.
    pub fn bytes(&self) -> u64 {
        LINE_BYTES + self.logs * self.log_bytes
    }

    fn log_start(&self, log: u64) -> u64 {
        self.start + LINE_BYTES + log * self.log_bytes
    }

    /// Words of the longest record.
    pub(super) fn longest(&self) -> u64 {
        log::longest(self.log_bytes, self.kind)
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
            log::format(pm, self.log_start(log), self.log_bytes, self.kind)?;
        }
        pm.store_word(self.start + AT_LOGS, self.logs);
        pm.store_word(self.start + AT_LOG_BYTES, self.log_bytes);
        pm.store_word(self.start + AT_LOW_WATER, 0);
        pm.flush(self.start, LINE_BYTES);
        // Initialise before point.
        pm.fence()?;
        pm.store_word(self.start + AT_MAGIC, MAGIC);
        pm.flush(self.start, LINE_BYTES);
        Ok(pm.fence()?)
    }

    /// The area at byte `start`.
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn open<P: Pmem>(pm: &P, start: u64) -> Result<Self, AreaError> {
        let mut area = Self {
            start,
            logs: 0,
            log_bytes: 0,
            kind: Kind::default(),
        };
        if start.saturating_add(LINE_BYTES) > pm.len() || pm.load(start + AT_MAGIC)? != MAGIC {
            return Err(area.wrong("the magic is missing, or of another version".into()));
        }
        area.logs = pm.load(start + AT_LOGS)?;
        area.log_bytes = pm.load(start + AT_LOG_BYTES)?;
        let room = pm.len() - start - LINE_BYTES;
        let fits = area.log_bytes <= room / area.logs.max(1);
        if !(1..=LOGS_MAX).contains(&area.logs) || !fits {
            let what = format!("{} logs of {} bytes", area.logs, area.log_bytes);
            return Err(area.wrong(what));
        }
        area.kind = log::Unrecovered::open(pm, area.log_start(0))?.kind();
        Ok(area)
    }

    /// Makes the low water durable.
    pub(super) fn store_low_water<P: Pmem>(&self, pm: &P, stamp: u64) -> Result<(), LogError> {
        pm.store_word(self.start + AT_LOW_WATER, stamp);
        pm.flush(self.start + AT_LOW_WATER, WORD_BYTES);
        Ok(pm.fence()?)
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
        Unrecovered::open(space, start)?.recover(|_| true, options)
    }

    /// All logs, and all transactions behind the low water, in order.
    fn find<P: Pmem + Clone>(
        &self,
        pm: &P,
        low_water: u64,
    ) -> Result<(Vec<log::Unrecovered<P>>, Vec<Replay>), AreaError> {
        let (mut logs, mut replay) = (Vec::new(), Vec::new());
        for number in 0..self.logs {
            let start = self.log_start(number);
            let mut log = log::Unrecovered::open(pm.clone(), start)?;
            if log.kind() != self.kind || log.bytes() > self.log_bytes {
                return Err(self.wrong(format!("log {number} is not like the first one")));
            }
            let mut record = Vec::new();
            while log.next(&mut record)?.is_some() {
                let Some(stamp) = self.stamp(pm, &record) else {
                    return Err(self.wrong(format!("log {number} holds what is no transaction")));
                };
                if stamp > low_water {
                    let record = record.clone();
                    replay.push(Replay { stamp, record });
                }
            }
            logs.push(log);
        }
        replay.sort_by_key(|transaction| transaction.stamp);
        Ok((logs, replay))
    }

    /// The stamp of a transaction, if the record is one that could have been committed.
    fn stamp<P: Pmem>(&self, pm: &P, record: &[u64]) -> Option<u64> {
        let transaction = Transaction::decode(record)?;
        let ours = self.start..self.start + self.bytes();
        let fits = transaction.runs().all(|(off, words)| {
            let end = off.saturating_add(words.len() as u64 * WORD_BYTES);
            end <= pm.len() && (end <= ours.start || off >= ours.end)
        });
        fits.then_some(transaction.stamp)
    }
}

/// Memory with logs as a crash left them.
pub struct Unrecovered<S: Space> {
    space: S,
    area: Area,
    low_water: u64,
    logs: Vec<log::Unrecovered<S::Pmem>>,
    /// In order.
    replay: Vec<Replay>,
}

impl<S: Space> Unrecovered<S> {
    /// Reads the logs of the area at byte `start`.
    ///
    /// # Errors
    /// [`AreaError`].
    pub fn open(space: S, start: u64) -> Result<Self, AreaError> {
        let pm = space.pmem();
        let area = Area::open(pm, start)?;
        let low_water = pm.load(start + AT_LOW_WATER)?;
        let (logs, replay) = area.find(pm, low_water)?;
        Ok(Self {
            space,
            area,
            low_water,
            logs,
            replay,
        })
    }

    /// Brings in place those words whose offsets `is_meant`, for those who must read them
    /// before [`recover`](Self::recover), which does so again.
    pub fn replay(&self, is_meant: impl Fn(u64) -> bool) {
        let pm = self.space.pmem();
        let records = self.replay.iter().map(|one| &one.record);
        let transactions = records.filter_map(|record| Transaction::decode(record));
        for (off, words) in transactions.flat_map(|transaction| transaction.runs()) {
            let mut line = off;
            let mut rest = words;
            while !rest.is_empty() {
                let room = (LINE_BYTES - line % LINE_BYTES) / WORD_BYTES;
                let (words, more) = rest.split_at(rest.len().min(room as usize));
                if is_meant(line) {
                    bring_in_place(pm, line, words);
                }
                line += words.len() as u64 * WORD_BYTES;
                rest = more;
            }
        }
    }

    /// As [`Area::recover`], but for words at offsets that are not there any more: memory
    /// that was given up after the transaction.
    ///
    /// # Errors
    /// As there.
    pub fn recover(
        self,
        is_there: impl Fn(u64) -> bool,
        options: Options,
    ) -> Result<Memory<S>, AreaError> {
        self.replay(is_there);
        let pm = self.space.pmem();
        // Home before low water: all of it, before what ends the records' life.
        if !hit(Bug::LowWaterBeforeReplay) {
            pm.fence()?;
        }
        let stamp = self.replay.last().map_or(self.low_water, |last| last.stamp);
        self.area.store_low_water(pm, stamp)?;
        let slots = self.logs.into_iter().map(slot).collect::<Result<_, _>>()?;
        let core = Core {
            space: self.space,
            area: self.area,
            locks: Locks::new(options.locks, stamp),
            options,
            clock: AtomicU64::new(stamp).into(),
            slots,
            low_water: AtomicU64::new(stamp),
            logged: AtomicU64::new(stamp).into(),
            truncating: Mutex::new(()),
            helper: Helper::default(),
            sessions: AtomicU64::new(0),
            running: Running::default(),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        Ok(Memory {
            core: Arc::new(core),
        })
    }
}

/// Stores words that lie in one line.
fn bring_in_place<P: Pmem>(pm: &P, off: u64, words: &[u64]) {
    for (at, word) in (off..).step_by(WORD_BYTES as usize).zip(words) {
        pm.store_word(at, *word);
    }
    if !hit(Bug::UnflushedRecovery) {
        pm.flush(off, words.len() as u64 * WORD_BYTES);
    }
}

/// A log without records, for use.
fn slot<P: Pmem + Clone>(log: log::Unrecovered<P>) -> Result<CachePadded<Slot<P>>, LogError> {
    let (appender, consumer) = log.empty()?;
    let position = consumer.position();
    let truncated = Truncated {
        consumer,
        position,
        done: VecDeque::new(),
        record: Vec::new(),
    };
    Ok(CachePadded::new(Slot {
        appender: Mutex::new(appender),
        truncated: Mutex::new(truncated),
        home: AtomicU64::new(position),
        active: AtomicU64::new(IDLE),
    }))
}
