//! Durable transactions (section 3.3): all or nothing, isolated, and there after every crash
//! once they returned.
//!
//! # Guarantees
//!
//! - **T1** A transaction that returned is whole after every crash; one that did not return
//!   is whole or has left nothing.
//! - **T2** Transactions are isolated: their effects are those of some order of them one
//!   after the other, in which each comes behind those that returned before it began.
//! - **T3** Whoever sees what a transaction wrote sees something durable.
//! - **T4** One that only reads stores nothing.
//! - **T5** What does not fit a log is refused, and leaves nothing.
//!
//! # How
//!
//! A lock per line (of a table, by hash) is taken at the first write of one of its words and
//! held until the commit is over; what is read is checked against versions, and read again if
//! somebody was in between. Written words wait in memory. To commit, the transaction draws a
//! time stamp, appends its words to a log, fences, stores them in place and gives its locks
//! back.
//!
//! **Truncation.** A record is needed until its words are durable in place, and until those
//! of all with smaller stamps are: a crash replays records in the order of their stamps, and
//! an older one that is still there would undo a newer one that is not. So one number, the
//! *low water*, ends the life of all records up to a stamp at once; where the logs begin
//! follows. See `truncation`.

mod locks;
mod map;
mod record;
mod recovery;
#[cfg(test)]
mod tests;
mod truncation;

use crate::log::{Appender, LogError};
use crate::seeded::{Bug, hit};
use locks::{LockIndex, Locks, State};
use map::Map;
use medium::{LINE_BYTES, MediumError, Pmem, WORD_BYTES};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use truncation::Truncated;

pub use recovery::{Area, AreaError};

/// When the words of a transaction are made durable in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Truncation {
    /// When a log is half full, for all logs at once.
    #[default]
    Lazy,
    /// In every commit.
    Eager,
}

/// What is not a matter of the format.
#[derive(Debug, Clone)]
pub struct Options {
    /// When to truncate.
    pub truncation: Truncation,
    /// Locks in the table, rounded up to a power of two.
    pub locks: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            truncation: Truncation::Lazy,
            locks: 1 << 20,
        }
    }
}

/// Why a transaction did not happen.
#[derive(Debug, thiserror::Error)]
pub enum TxError<E> {
    /// Its own wish.
    #[error("cancelled: {0}")]
    Cancelled(E),
    /// It wrote more than a log takes.
    #[error("the transaction is too long: its {words} words do not fit a log, which takes {most}")]
    TooLong {
        /// Words of its record.
        words: u64,
        /// The most that fit.
        most: u64,
    },
    /// The memory cannot be read or made durable. If it failed while committing, the
    /// transaction may or may not be there after the next recovery.
    #[error(transparent)]
    Medium(#[from] MediumError),
    /// A log is damaged, or an earlier commit failed: nothing can be committed any more.
    #[error("no more transactions: {0}")]
    Failed(Arc<LogError>),
}

/// Why a step of a transaction was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Interrupted {
    /// Somebody else was faster: the transaction is to be run again.
    #[error("another transaction was faster")]
    Conflict,
    /// The memory cannot be read.
    #[error(transparent)]
    Medium(#[from] MediumError),
}

/// Why the body of a transaction ends early.
#[derive(Debug)]
pub enum Stop<E> {
    /// As a step said, which is to be passed on.
    Interrupted(Interrupted),
    /// It is to leave nothing.
    Cancel(E),
}

impl<E> From<Interrupted> for Stop<E> {
    fn from(why: Interrupted) -> Self {
        Self::Interrupted(why)
    }
}

/// Why a commit was none.
enum Uncommitted {
    Conflict,
    TooLong { words: u64, most: u64 },
    Failed(Arc<LogError>),
}

/// No commit is under way.
const IDLE: u64 = u64::MAX;

/// One of the logs.
#[derive(Debug)]
struct Slot<P> {
    appender: Mutex<Appender<P>>,
    truncated: Mutex<Truncated<P>>,
    /// Records up to here are in place, though perhaps not durably.
    home: AtomicU64,
    /// No larger than the stamp of the commit that is under way, or [`IDLE`].
    active: AtomicU64,
}

#[derive(Debug)]
struct Core<P> {
    pm: P,
    area: Area,
    options: Options,
    locks: Locks,
    /// The stamp of the last transaction that drew one.
    clock: AtomicU64,
    slots: Box<[Slot<P>]>,
    /// The low water, and whose turn it is to raise it.
    low_water: Mutex<u64>,
    sessions: AtomicU64,
    failed: AtomicBool,
    failure: Mutex<Option<Arc<LogError>>>,
}

/// Memory that is changed by transactions. Cheap to clone.
#[derive(Debug)]
pub struct Memory<P> {
    core: Arc<Core<P>>,
}

impl<P> Clone for Memory<P> {
    fn clone(&self) -> Self {
        let core = self.core.clone();
        Self { core }
    }
}

impl<P: Pmem + Clone> Memory<P> {
    /// What one thread runs transactions with. There may be any number of them.
    pub fn session(&self) -> Session<P> {
        Session {
            core: self.core.clone(),
            owner: self.core.sessions.fetch_add(1, Ordering::Relaxed),
            scratch: Scratch::default(),
        }
    }

    /// The memory underneath, for what is no transaction's business.
    pub fn pmem(&self) -> &P {
        &self.core.pm
    }
}

/// One thread's way to run transactions.
#[derive(Debug)]
pub struct Session<P> {
    core: Arc<Core<P>>,
    owner: u64,
    scratch: Scratch,
}

/// What a transaction needs, kept for the next one.
#[derive(Debug, Default)]
struct Scratch {
    /// Locks that were read, and their versions then.
    reads: Vec<(LockIndex, u64)>,
    /// Locks that were taken, and their versions before.
    taken: Map,
    /// Words that were written, by offset.
    writes: Map,
    record: Vec<u64>,
}

/// A transaction under way.
#[derive(Debug)]
pub struct Transaction<'a, P> {
    core: &'a Core<P>,
    owner: u64,
    /// What was read is of this time.
    time: u64,
    scratch: &'a mut Scratch,
}

impl<P: Pmem> Session<P> {
    /// Runs a transaction: `body`, again as long as others get in its way, and durably once
    /// it returns `Ok`. `body` must not do what cannot be done again.
    ///
    /// # Errors
    /// [`TxError`]; then nothing of it happened, unless the memory failed in the commit.
    pub fn run<T, E>(
        &mut self,
        mut body: impl FnMut(&mut Transaction<'_, P>) -> Result<T, Stop<E>>,
    ) -> Result<T, TxError<E>> {
        let mut attempts = 0;
        loop {
            self.core.check().map_err(TxError::Failed)?;
            let mut tx = Transaction {
                core: &self.core,
                owner: self.owner,
                time: self.core.clock.load(Ordering::Acquire),
                scratch: &mut self.scratch,
            };
            let error = match body(&mut tx) {
                Ok(value) => match tx.commit() {
                    Ok(()) => return Ok(value),
                    Err(Uncommitted::Conflict) => None,
                    Err(Uncommitted::TooLong { words, most }) => {
                        Some(TxError::TooLong { words, most })
                    }
                    Err(Uncommitted::Failed(why)) => Some(TxError::Failed(why)),
                },
                Err(Stop::Interrupted(Interrupted::Conflict)) => None,
                Err(Stop::Interrupted(Interrupted::Medium(error))) => Some(error.into()),
                Err(Stop::Cancel(why)) => Some(TxError::Cancelled(why)),
            };
            drop(tx);
            if let Some(error) = error {
                return Err(error);
            }
            pause(attempts, self.owner);
            attempts += 1;
        }
    }
}

/// Waits for others, longer and longer, and each session differently.
fn pause(attempts: u32, owner: u64) {
    let longest = 1_u64 << attempts.min(10);
    let spins = (owner + u64::from(attempts)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    for _ in 0..spins % (longest * 16) {
        std::hint::spin_loop();
    }
    if attempts > 2 {
        std::thread::yield_now();
    }
}

impl<P: Pmem> Transaction<'_, P> {
    /// Loads the aligned word at `off`.
    ///
    /// # Errors
    /// [`Interrupted`]; the body is to pass it on.
    #[inline]
    pub fn load(&mut self, off: u64) -> Result<u64, Interrupted> {
        let lock = self.core.locks.of(off);
        let seen = self.core.locks.state(lock);
        if seen == State::taken(self.owner) {
            return self.own_word(off);
        }
        let version = seen.version().ok_or(Interrupted::Conflict)?;
        let word = self.core.pm.load(off)?;
        self.was_read(lock, seen, version)?;
        Ok(word)
    }

    /// The word at `off`, whose lock is ours.
    fn own_word(&self, off: u64) -> Result<u64, Interrupted> {
        match self.scratch.writes.get(off) {
            Some(word) => Ok(word),
            None => Ok(self.core.pm.load(off)?),
        }
    }

    /// Notes a read that began when the lock was as `seen`, unless somebody was in between.
    fn was_read(&mut self, lock: LockIndex, seen: State, version: u64) -> Result<(), Interrupted> {
        // What was loaded, then how the lock is now.
        std::sync::atomic::fence(Ordering::Acquire);
        if self.core.locks.state(lock) != seen {
            return Err(Interrupted::Conflict);
        }
        if self.scratch.reads.last() != Some(&(lock, version)) {
            self.scratch.reads.push((lock, version));
        }
        if version > self.time {
            self.extend()?;
        }
        Ok(())
    }

    /// Copies `buf.len()` bytes from `off` on.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn read(&mut self, off: u64, buf: &mut [u8]) -> Result<(), Interrupted> {
        let mut rest = buf;
        let mut off = off;
        while !rest.is_empty() {
            let len = rest.len().min((LINE_BYTES - off % LINE_BYTES) as usize);
            let (part, more) = rest.split_at_mut(len);
            self.read_in_line(off, part)?;
            off += len as u64;
            rest = more;
        }
        Ok(())
    }

    fn read_in_line(&mut self, off: u64, part: &mut [u8]) -> Result<(), Interrupted> {
        let lock = self.core.locks.of(off);
        let seen = self.core.locks.state(lock);
        if seen == State::taken(self.owner) {
            return words_of(off, part.len(), |at, range, in_word| {
                let word = self.own_word(at)?.to_le_bytes();
                part[range].copy_from_slice(&word[in_word]);
                Ok(())
            });
        }
        let version = seen.version().ok_or(Interrupted::Conflict)?;
        self.core.pm.read(off, part)?;
        self.was_read(lock, seen, version)
    }

    /// Stores the aligned word at `off`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    #[inline]
    pub fn store(&mut self, off: u64, word: u64) -> Result<(), Interrupted> {
        self.check_place(off)?;
        self.own(off)?;
        self.scratch.writes.set(off, word);
        Ok(())
    }

    /// Whether a word can be stored here: not outside, and not in the logs.
    #[inline]
    fn check_place(&self, off: u64) -> Result<(), Interrupted> {
        let core = self.core;
        let logs = core.area.start..core.area.start + core.area.bytes();
        if off.is_multiple_of(WORD_BYTES)
            && off + WORD_BYTES <= core.pm.len()
            && !logs.contains(&off)
        {
            return Ok(());
        }
        let len = WORD_BYTES;
        Err(Interrupted::Medium(MediumError::OutOfRange { off, len }))
    }

    /// Copies `bytes` to `off`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn write(&mut self, off: u64, bytes: &[u8]) -> Result<(), Interrupted> {
        words_of(off, bytes.len(), |at, range, in_word| {
            self.check_place(at)?;
            self.own(at)?;
            let mut word = [0; 8];
            if in_word.len() < word.len() {
                word = self.own_word(at)?.to_le_bytes();
            }
            word[in_word].copy_from_slice(&bytes[range]);
            self.scratch.writes.set(at, u64::from_le_bytes(word));
            Ok(())
        })
    }

    /// Takes the lock of a word.
    #[inline]
    fn own(&mut self, off: u64) -> Result<(), Interrupted> {
        let lock = self.core.locks.of(off);
        let seen = self.core.locks.state(lock);
        if seen == State::taken(self.owner) {
            return Ok(());
        }
        let version = seen.version().ok_or(Interrupted::Conflict)?;
        if !self.core.locks.take(lock, seen, self.owner) {
            return Err(Interrupted::Conflict);
        }
        self.scratch.taken.set(lock.into(), version);
        if version > self.time {
            self.extend()?;
        }
        Ok(())
    }

    /// Moves the time of what was read to now, if it is all still so.
    #[cold]
    fn extend(&mut self) -> Result<(), Interrupted> {
        let now = self.core.clock.load(Ordering::Acquire);
        if !self.is_valid() {
            return Err(Interrupted::Conflict);
        }
        self.time = now;
        Ok(())
    }

    /// Whether nobody changed what was read.
    fn is_valid(&self) -> bool {
        let Scratch { reads, taken, .. } = &*self.scratch;
        reads.iter().all(|(lock, version)| {
            let state = self.core.locks.state(*lock);
            let ours = state == State::taken(self.owner);
            state == State::free(*version) || ours && taken.get((*lock).into()) == Some(*version)
        })
    }

    fn commit(&mut self) -> Result<(), Uncommitted> {
        if self.scratch.writes.is_empty() {
            return Ok(()); // what was read is of one time
        }
        let Scratch { writes, record, .. } = &mut *self.scratch;
        record::encode(record, 0, writes.iter());
        let core = self.core;
        let (slot, mut appender) = core.slot(self.owner);
        core.make_room(&mut appender, record.len() as u64)?;

        // Before the stamp is drawn, lest the low water pass it by.
        let least = core.clock.load(Ordering::SeqCst) + 1;
        slot.active.store(least, Ordering::SeqCst);
        let stamp = core.clock.fetch_add(1, Ordering::SeqCst) + 1;
        if stamp != self.time + 1 && !self.is_valid() {
            slot.active.store(IDLE, Ordering::Release);
            return Err(Uncommitted::Conflict);
        }
        self.scratch.record[0] = stamp;
        if hit(Bug::HomeBeforeLog) {
            self.store_home();
        }
        let logged = appender
            .append(&self.scratch.record)
            .and_then(|end| appender.flush().map(|()| end));
        let end = match logged {
            Ok(end) => end,
            // It stays active: what became of it, only a recovery can tell.
            Err(error) => return Err(Uncommitted::Failed(core.fail(error))),
        };
        self.store_home();
        slot.home.store(end, Ordering::Release);
        slot.active.store(IDLE, Ordering::SeqCst);
        let is_half_full = appender.room().unwrap_or(0) < core.area.longest() / 2;
        drop(appender);
        self.release(Some(stamp));
        if is_half_full || core.options.truncation == Truncation::Eager {
            // This one is durable; if truncating fails, whoever comes next hears of it.
            let _ = core.truncate();
        }
        Ok(())
    }

    fn store_home(&self) {
        // Readers that see a new word see that its lock is taken.
        std::sync::atomic::fence(Ordering::Release);
        for (off, word) in self.scratch.writes.iter() {
            self.core.pm.store_word(off, word);
        }
    }
}

impl<P> Transaction<'_, P> {
    /// Gives all locks back, with a new version or as they were.
    fn release(&mut self, stamp: Option<u64>) {
        for (lock, version) in self.scratch.taken.iter() {
            let version = stamp.unwrap_or(version);
            self.core.locks.release(lock as LockIndex, version);
        }
        let Scratch {
            reads,
            taken,
            writes,
            ..
        } = &mut *self.scratch;
        reads.clear();
        taken.clear();
        writes.clear();
    }
}

/// What was not committed leaves nothing, not even if its body panicked.
impl<P> Drop for Transaction<'_, P> {
    fn drop(&mut self) {
        self.release(None);
    }
}

/// Cuts `off..off + len` at words: for each the offset of the word, which part of the range
/// lies in it, and where in it.
fn words_of(
    off: u64,
    len: usize,
    mut each: impl FnMut(u64, std::ops::Range<usize>, std::ops::Range<usize>) -> Result<(), Interrupted>,
) -> Result<(), Interrupted> {
    let mut done = 0;
    while done < len {
        let here = off + done as u64;
        let skip = (here % WORD_BYTES) as usize;
        let part = (WORD_BYTES as usize - skip).min(len - done);
        each(here - skip as u64, done..done + part, skip..skip + part)?;
        done += part;
    }
    Ok(())
}

impl<P: Pmem> Core<P> {
    /// A log that nobody appends to.
    fn slot(&self, owner: u64) -> (&Slot<P>, parking_lot::MutexGuard<'_, Appender<P>>) {
        let first = owner as usize % self.slots.len();
        let (before, after) = self.slots.split_at(first);
        for slot in after.iter().chain(before) {
            if let Some(appender) = slot.appender.try_lock() {
                return (slot, appender);
            }
        }
        let slot = &self.slots[first];
        (slot, slot.appender.lock())
    }

    /// Waits until a record of so many words fits.
    fn make_room(&self, appender: &mut Appender<P>, words: u64) -> Result<(), Uncommitted> {
        let most = self.area.longest();
        if words > most {
            return Err(Uncommitted::TooLong { words, most });
        }
        while appender.room().is_none_or(|room| room < words) {
            self.truncate().map_err(Uncommitted::Failed)?;
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Arc<LogError>> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        match &*self.failure.lock() {
            Some(failure) => Err(failure.clone()),
            None => Ok(()),
        }
    }

    /// Ends all commits.
    #[cold]
    fn fail(&self, error: LogError) -> Arc<LogError> {
        let mut failure = self.failure.lock();
        let first = failure.get_or_insert_with(|| Arc::new(error)).clone();
        self.failed.store(true, Ordering::Release);
        first
    }
}
