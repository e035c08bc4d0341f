//! The end of a transaction: a rollback, or a commit by one store or by a log.

use super::{FEW_READS, TxSession, Written};
use crate::error::{HeapError, Uncommitted};
use crate::seeded::{Bug, hit};
use crate::tx::locks::LockIndex;
use crate::tx::record::{Overflow, Word};
use crate::tx::{IDLE, Space, Truncation, mask, record};
use medium::{LINE_BYTES, Pmem, Rule, WORD_BYTES};
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

/// A record of more words frees its memory after the commit.
const MANY_WORDS: usize = 1 << 20;

/// Finds space for an overflow: the bytes that it takes, and the most parts.
pub(crate) trait PlaceOverflow:
    FnOnce(u64, usize) -> Result<Vec<Range<u64>>, HeapError>
{
}

impl<F: FnOnce(u64, usize) -> Result<Vec<Range<u64>>, HeapError>> PlaceOverflow for F {}

impl<S: Space> TxSession<S> {
    /// Commits the transaction durably, and returns its stamp. Each transaction that wrote has its
    /// own, in the order of the commits. One that only read has the stamp of the last one that it
    /// saw. Transactions longer than a log are rejected. After an error call
    /// [`roll_back`](Self::roll_back).
    ///
    /// # Errors
    /// [`Uncommitted`].
    pub fn commit(&mut self) -> Result<u64, Uncommitted> {
        self.commit_with(|bytes, _| Err(HeapError::NoSpace { bytes }))
    }

    /// As [`commit`](Self::commit). If the record is longer than a log, `overflow` returns the
    /// offsets of that many bytes or more, in whole lines. Until the [low
    /// water](super::Memory::low_water) has reached the returned stamp, no other thread may store
    /// there, nor may recovery.
    ///
    /// # Errors
    /// [`Uncommitted`].
    pub(crate) fn commit_with(&mut self, overflow: impl PlaceOverflow) -> Result<u64, Uncommitted> {
        // A failed commit released words and blocks that are not durable, or that a log may still
        // have. A thread that saw them also sees the failure here.
        self.core.check().map_err(Uncommitted::Failed)?;
        if self.writes.is_empty() && !self.is_changed {
            self.release(None);
            self.had_turn();
            return Ok(self.time); // all reads are of this time
        }
        if self.core.turn.is_others() {
            return Err(Uncommitted::Conflict);
        }
        let space = &self.core.space;
        let persistent = self.writes.iter().filter_map(|(at, new)| {
            let off = space.offset(at)?;
            let Written { word, mask } = new;
            Some(Word { off, word, mask })
        });
        let stamp = match record::encode(&mut self.record, persistent) {
            0 => self.commit_volatile(),
            1 if self.is_one_store() && self.is_unlogged() => self.commit_word(),
            _ => self.commit_durably(overflow),
        }?;
        self.had_turn();
        Ok(stamp)
    }

    /// Commits words of which none is persistent.
    fn commit_volatile(&mut self) -> Result<u64, Uncommitted> {
        let stamp = self.core.clock.fetch_add(1, Ordering::SeqCst) + 1;
        if stamp != self.time + 1 && !self.is_valid() {
            return Err(Uncommitted::Conflict);
        }
        self.store_home();
        self.wait_for_readers(stamp);
        self.release(Some(stamp));
        Ok(stamp)
    }

    /// Whether one store writes all persistent words: there is one.
    fn is_one_store(&self) -> bool {
        let mut runs = record::runs(&self.record);
        !self.filled.any && runs.all(|run| mask::is_one_store(run.mask))
    }

    /// Whether no log has a value of the words that were written.
    fn is_unlogged(&self) -> bool {
        let low_water = self.core.low_water.load(Ordering::Acquire);
        let logged = self.core.logged.load(Ordering::Acquire);
        let unlogged = logged <= low_water || self.taken.iter().all(|(_, v)| v <= low_water);
        unlogged || hit(Bug::WordInLog)
    }

    /// Commits one persistent word, or an aligned part of it, by one store without a log.
    fn commit_word(&mut self) -> Result<u64, Uncommitted> {
        let stamp = self.core.clock.fetch_add(1, Ordering::SeqCst) + 1;
        if stamp != self.time + 1 && !self.is_valid() {
            return Err(Uncommitted::Conflict);
        }
        self.store_home();
        let core = &self.core;
        for run in record::runs(&self.record) {
            core.space.pmem().flush(run.off, WORD_BYTES);
        }
        if !hit(Bug::UnfencedWord) {
            let fenced = core.space.pmem().fence(Rule::DurableBeforeUse);
            fenced.map_err(|error| Uncommitted::Failed(core.fail(error.into())))?;
        }
        self.wait_for_readers(stamp);
        self.release(Some(stamp));
        Ok(stamp)
    }

    fn commit_durably(&mut self, overflow: impl PlaceOverflow) -> Result<u64, Uncommitted> {
        let is_long = self.record.len() as u64 > self.core.area.longest();
        let overflow = is_long.then(|| self.store_overflow(overflow)).transpose()?;
        let core = &*self.core;
        let (slot, mut appender) = core.slot(self.owner);
        let names = |one: &Overflow| one.encode(0).len();
        let words = overflow.as_ref().map_or(self.record.len(), names);
        core.make_room(&mut appender, words as u64)?;
        Self::fence_filled(core, &mut self.filled)?;

        // Before the stamp is drawn, so that the low water does not pass it.
        slot.active.store(self.time + 1, Ordering::SeqCst);
        let stamp = core.clock.fetch_add(1, Ordering::SeqCst) + 1;
        if stamp != self.time + 1 && !self.is_valid() {
            slot.active.store(IDLE, Ordering::Release);
            return Err(Uncommitted::Conflict);
        }
        core.note_logged(stamp);
        record::set_stamp(&mut self.record, stamp);
        if hit(Bug::HomeBeforeLog) {
            self.store_home();
        }
        let appended = match &overflow {
            Some(overflow) => appender.append(&overflow.encode(stamp)),
            None => appender.append(&self.record),
        };
        let logged = appended.and_then(|end| appender.flush().map(|()| end));
        let end = match logged {
            Ok(end) => end,
            // It stays active: only a recovery finds out whether the record is durable.
            Err(error) => return Err(Uncommitted::Failed(core.fail(error))),
        };
        self.store_home();
        slot.home.lock().add(stamp, end, &self.record);
        slot.active.store(IDLE, Ordering::SeqCst);
        let is_half_full = is_long || appender.room().unwrap_or(0) < core.area.longest() / 2;
        drop(appender);
        self.wait_for_readers(stamp);
        self.release(Some(stamp));
        let core = &*self.core;
        if core.options.truncation == Truncation::Eager || is_half_full && !core.helper.call() {
            // This commit is durable; if truncation fails, the next transaction fails.
            let _ = core.truncate();
        }
        Ok(stamp)
    }

    /// Stores the runs of the record in the ranges that `place` returns. They are durable after the
    /// next [`fence_filled`](Self::fence_filled).
    #[cold]
    fn store_overflow(&mut self, place: impl PlaceOverflow) -> Result<Overflow, Uncommitted> {
        let bytes = Overflow::bytes_for(&self.record);
        let most = Overflow::most_parts(self.core.area.longest());
        let ranges = place(bytes, most).map_err(Uncommitted::Heap)?;
        // Take the line locks so that concurrent readers of the freed block conflict. With
        // privatisation no such reader exists: the commit that freed the block waited for it.
        if !self.core.options.privatise {
            let starts = ranges.iter().cloned();
            for line in starts.flat_map(|range| range.step_by(LINE_BYTES as usize)) {
                let owned = self.own(self.address(line));
                owned.map_err(|_| Uncommitted::Conflict)?;
            }
        }
        self.is_changed = true;
        // A failed commit may have given these pages back, and its record may be in a log.
        self.core.check().map_err(Uncommitted::Failed)?;
        self.filled.any |= !hit(Bug::OverflowAfterLog);
        Ok(Overflow::store(
            self.core.space.pmem(),
            &ranges,
            &mut self.record,
        ))
    }

    /// Stores the written words at their addresses; of persistent ones the bytes in the record.
    fn store_home(&self) {
        // Readers that see a new word also see that its lock is taken.
        fence(Ordering::Release);
        let space = &self.core.space;
        for run in record::runs(&self.record) {
            run.store(space.pmem());
        }
        for (at, new) in self.writes.iter() {
            if space.offset(at).is_none() {
                space.store_at(at, new.word, new.mask);
            }
        }
    }

    /// Ends the transaction without any effect.
    pub fn roll_back(&mut self) {
        // In-place changes were visible: release the locks with a new version so that readers
        // revalidate.
        let is_changed = self.is_changed;
        let stamp = is_changed.then(|| self.core.clock.fetch_add(1, Ordering::SeqCst) + 1);
        self.release(stamp);
        if !std::mem::take(&mut self.keeps_turn) {
            self.give_turn_back();
        }
    }

    /// Releases all locks, with a new version or their old ones.
    fn release(&mut self, stamp: Option<u64>) {
        for (lock, version) in self.taken.iter() {
            let version = stamp.unwrap_or(version);
            self.core.locks.release(lock as LockIndex, version);
        }
        if let Some(under) = &self.under {
            under.end(self.reads.iter().map(|(lock, _)| *lock));
        }
        self.reads.clear();
        self.most_reads = FEW_READS;
        self.taken.clear();
        self.writes.clear();
        self.record.shrink_to(MANY_WORDS);
        self.is_changed = false;
        self.filled.clear();
    }
}
