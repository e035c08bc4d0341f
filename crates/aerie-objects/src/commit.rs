//! The commit of a transaction, in five steps:
//!
//! 1. New pages and contents are durable before the record that may point to them (initialise-before-point).
//! 2. The record with all words is durable in a redo log: this is the commit.
//! 3. The words are stored at home and durable (home-before-reclaim). Meanwhile the version of each
//!    changed object is odd. Nobody else sees a part of the stores: neither readers that look at versions, nor
//!    those that hold the lock of [`Transaction::commit_beside`].
//! 4. The log is truncated. Memory that the transaction has freed can be used from here on.
//! 5. The claims end.

use crate::ObjectId;
use crate::error::{Error, Result};
use crate::layout::{PAGE, header};
use crate::record;
use crate::seeded::{Bug, hit};
use crate::transaction::{Step, Transaction};
use hashbrown::HashSet;
use medium::{LINE_BYTES, Pmem, Rule};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use vfs::sync::BigReaderLock;

/// Marks the store as failed, unless it is forgotten after the end of the commit.
struct Failing<'a>(&'a AtomicBool);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A commit whose record is durable, and whose words are at home.
pub(crate) struct Stored<'a> {
    /// The end of the record, if there is one.
    record: Option<(u64, Failing<'a>)>,
}

impl<'a, P: Pmem> Transaction<'a, P> {
    /// Makes all changes durable. Those of a speculation are complete.
    ///
    /// # Errors
    /// [`Error::TooLarge`]: nothing has changed. Errors of the memory or of the log: the changes may
    /// or may not be durable, and the store accepts no more transactions.
    pub fn commit(self) -> Result<()> {
        self.commit_with(None)
    }

    /// [`commit`](Self::commit) beside readers that hold `readers`: they see all changes or none. They do not
    /// wait while the record becomes durable.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_beside(self, readers: &BigReaderLock) -> Result<()> {
        self.commit_with(Some(readers))
    }

    fn commit_with(mut self, readers: Option<&BigReaderLock>) -> Result<()> {
        if self.is_speculative() {
            self.changes
                .changed
                .keys()
                .for_each(|object| self.show(*object));
            let changed = self.changes.changed.keys();
            self.space.lock().note_changed(changed);
            self.give();
            return Ok(self.memory.fence(Rule::DurableBeforeUse)?);
        }
        let stored = self.store(readers)?;
        self.finish(stored)
    }

    /// The steps 1 to 3.
    pub(crate) fn store(&mut self, readers: Option<&BigReaderLock>) -> Result<Stored<'a>> {
        self.narrow()?;
        let mut words = self.changes.words.take();
        let versions = self.versions()?;
        words.extend(&versions);
        words.sort(); // most are in order
        let record = record::encode(&words);
        let record = match record.is_empty() {
            true => None,
            false => Some(self.append_and_store(&words, &versions, &record, readers)?),
        };
        if hit(Bug::ClaimsEndEarly) {
            self.release_claims();
        }
        Ok(Stored { record })
    }

    /// The steps 4 and 5.
    pub(crate) fn finish(mut self, stored: Stored<'_>) -> Result<()> {
        if let (Some(log), Some((end, failing))) = (&mut self.slot.log, stored.record) {
            log.consumer.truncate(end)?;
            std::mem::forget(failing);
        }
        self.release_claims();
        self.give();
        if let Some(protection) = self.protection {
            let changed = self.reclassed.narrow.drain();
            // A page with too few readers does no harm: the service reads it for the others.
            let _ = protection.settle(self.memory, self.superblock, changed);
        }
        Ok(())
    }

    fn append_and_store(
        &mut self,
        words: &[(u64, u64)],
        versions: &[(u64, u64)],
        record: &[u64],
        readers: Option<&BigReaderLock>,
    ) -> Result<(u64, Failing<'a>)> {
        let fresh: Vec<u64> = self.changes.fresh.keys().copied().collect();
        let (memory, has_contents, slots) = (self.memory, self.has_contents, self.slot.slots);
        slots.must_work()?;
        let number = self.slot.number;
        let Some(log) = &mut self.slot.log else {
            let what = format!("log {number} is missing");
            return Err(Error::NotAStore(what));
        };
        if record.len() as u64 > log.longest {
            let (words, most) = (record.len() as u64, log.longest);
            return Err(Error::TooLarge { words, most });
        }
        let failing = Failing(&slots.is_failed);
        flush_fresh(memory, &fresh, has_contents)?;
        let end = log.appender.append(record)?;
        if !hit(Bug::HomeBeforeLog) {
            log.appender.flush()?;
        }
        {
            let _alone = readers.map(BigReaderLock::write);
            store_home(memory, words, versions);
        }
        flush_home(memory, words)?;
        if hit(Bug::HomeBeforeLog) {
            log.appender.flush()?;
        }
        Ok((end, failing))
    }

    /// The next version of each changed object, with its place.
    fn versions(&self) -> Result<Vec<(u64, u64)>> {
        let next = |object: &ObjectId| {
            let at = object.header() + header::VERSION * 8;
            let version = self.memory.load(at)?;
            Ok((at, (version | 1).wrapping_add(1)))
        };
        self.changes.changed.keys().map(next).collect()
    }

    /// Ends the claims.
    pub(crate) fn release_claims(&mut self) {
        let claimed = &self.changes.claimed;
        self.slot.slots.claims.release(claimed, self.slot.number);
        self.changes.claimed.clear();
    }

    /// Frees what the transaction has given back.
    fn give(&mut self) {
        let mut space = self.space.lock();
        for step in self.changes.steps.drain(..) {
            match step {
                Step::GavePage(page) => space.give_page(page),
                Step::GaveHeader(header, was) => space.give_header_and_page(header, was),
                _ => {}
            }
        }
    }
}

fn flush_fresh<P: Pmem>(memory: &P, fresh: &[u64], has_contents: bool) -> Result<()> {
    for page in fresh {
        memory.flush(*page, PAGE);
    }
    let has_contents = has_contents && !hit(Bug::ContentsNotFenced);
    let is_needed = !fresh.is_empty() || has_contents;
    if is_needed && !hit(Bug::NoInitFence) {
        memory.fence(Rule::InitialiseBeforePoint)?;
    }
    Ok(())
}

/// Stores words at home, for readers that look at the versions of objects.
fn store_home<P: Pmem>(memory: &P, words: &[(u64, u64)], versions: &[(u64, u64)]) {
    for (at, next) in versions {
        memory.store_word(*at, next - 1);
    }
    // Readers that see a new word also see the odd version, and those that see the next even
    // version also see all words.
    fence(Ordering::Release);
    let later: HashSet<u64> = versions.iter().map(|(at, _)| *at).collect();
    for (off, value) in words.iter().filter(|(off, _)| !later.contains(off)) {
        memory.store_word(*off, *value);
    }
    fence(Ordering::Release);
    for (at, next) in versions {
        memory.store_word(*at, *next);
    }
}

/// Makes the words at home durable.
fn flush_home<P: Pmem>(memory: &P, words: &[(u64, u64)]) -> Result<()> {
    let mut flushed = None;
    for line in words.iter().map(|(off, _)| off / LINE_BYTES) {
        // The words are in order.
        if flushed.replace(line) != Some(line) {
            memory.flush(line * LINE_BYTES, LINE_BYTES);
        }
    }
    if !hit(Bug::ReclaimBeforeHome) {
        memory.fence(Rule::HomeBeforeReclaim)?;
    }
    Ok(())
}
