//! The redo logs.

use crate::error::{Error, Result};
use crate::layout::{PAGE, at};
use crate::record;
use crate::seeded::{Bug, hit};
use crate::superblock::Superblock;
use medium::{Pmem, Rule};
use std::ops::Range;
use wordlog::{Appender, Consumer, Unrecovered};

/// A redo log.
pub(crate) struct Log<P> {
    pub(crate) appender: Appender<P>,
    pub(crate) consumer: Consumer<P>,
    /// Words of the longest record.
    pub(crate) longest: u64,
}

/// The logs of a store after their replay.
pub(crate) struct Replayed<P> {
    pub(crate) logs: Vec<Log<P>>,
    /// The generation before that of the first object of the epoch that begins.
    pub(crate) generation: u64,
    /// Whether there were records.
    pub(crate) had_records: bool,
}

/// Stores the words of all records at home, empties the logs, and begins an epoch. Records in different logs
/// have no word in common, so that a crash between two logs does no harm.
pub(crate) fn replay<P: Pmem + Clone>(memory: &P, superblock: &Superblock) -> Result<Replayed<P>> {
    let mut logs = Vec::new();
    let mut had_records = false;
    for (number, range) in superblock.log_ranges().enumerate() {
        let is_replayed = number == 0 || !hit(Bug::OneLogReplayed);
        let (log, had_some) = replay_one(memory, superblock, range, is_replayed)?;
        logs.push(log);
        had_records |= had_some;
    }
    Ok(Replayed {
        logs,
        generation: begin_epoch(memory)?,
        had_records,
    })
}

/// Stores the words of the records of a log at home, and empties it. Also returns whether it had records.
fn replay_one<P: Pmem + Clone>(
    memory: &P,
    superblock: &Superblock,
    range: Range<u64>,
    is_replayed: bool,
) -> Result<(Log<P>, bool)> {
    let start = range.start;
    let mut log = Unrecovered::open(memory.clone(), start)?;
    if log.bytes() > range.end - start {
        let what = format!("a log of {} bytes runs into what follows", log.bytes());
        return Err(Error::NotAStore(what));
    }
    let first = superblock.first_page() * PAGE;
    let mut words = Vec::new();
    let mut had_records = false;
    while is_replayed && log.next(&mut words)?.is_some() {
        if !had_records && !hit(Bug::ReplayBeforeLog) {
            // A killed program may have left records in the caches only. A crash in the middle of the
            // replay must find them again.
            memory.flush(start, log.bytes());
            memory.fence(Rule::LogBeforeHome)?;
        }
        had_records = true;
        record::decode(&words, first..superblock.bytes, start, |off, word| {
            memory.store_word(off, word);
            memory.flush(off, 8);
        })?;
    }
    if !hit(Bug::ReplayNotFenced) {
        memory.fence(Rule::HomeBeforeReclaim)?;
    }
    let longest = wordlog::longest(log.bytes(), log.kind());
    let (appender, consumer) = log.empty()?;
    let log = Log {
        appender,
        consumer,
        longest,
    };
    Ok((log, had_records))
}

/// Begins an epoch. Returns the generation before that of its first object.
fn begin_epoch<P: Pmem>(memory: &P) -> Result<u64> {
    let epoch = memory.load(at::EPOCH)?.wrapping_add(1);
    memory.store_word(at::EPOCH, epoch);
    memory.flush(at::EPOCH, 8);
    // No object has a generation that another one gets after a crash.
    if !hit(Bug::NoEpochFence) {
        memory.fence(Rule::DurableBeforeUse)?;
    }
    Ok((epoch & 0xff_ffff) << 32)
}
