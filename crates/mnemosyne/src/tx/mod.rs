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
//! - **T5** What fits neither a log nor the heap is refused, and leaves nothing.
//! - **T6** A transaction changes the bytes that it writes and no others, in its commit and in
//!   a replay: a neighbour in the same word may be changed without transactions meanwhile.
//! - **T7** A transaction that others get in the way of again and again gets its turn: they wait.
//!   A body therefore must not wait for a thread that runs a transaction, nor lock a mutex that
//!   another thread holds around one.
//!
//! # How
//!
//! A lock per line (of a table, by hash) is taken at the first write of one of its words and
//! held until the commit is over; what is read is checked against versions, and read again if
//! somebody was in between. Written words wait in memory. To commit, the transaction draws a
//! time stamp, appends its words to a log, fences, stores them in place and gives its locks
//! back.
//!
//! **Overflow.** Runs that are longer than a log go to free pages of the heap, contiguous ones if
//! there are any, and are durable before a record in the log names them, a few words for each part
//! (see `Session::commit_with`). The heap keeps the pages from others until the low water has passed the record. No descriptor says that they are
//! used, so after a crash they are free again once the record is replayed, and none can leak.
//!
//! **Truncation.** A record is needed until its words are durable in place, and until those
//! of all with smaller stamps are: a crash replays records in the order of their stamps, and
//! an older one that is still there would undo a newer one that is not. So one number, the
//! *low water*, ends the life of all records up to a stamp at once; where the logs begin
//! follows. See `truncation`.

mod locks;
mod map;
mod mask;
mod record;
mod recovery;
mod running;
mod session;
mod space;
#[cfg(test)]
mod tests;
mod truncation;
mod turn;

use crate::seeded::{Bug, hit};
use crossbeam_utils::CachePadded;
use locks::Locks;
use medium::LINE_BYTES;
use parking_lot::{Mutex, MutexGuard};
use running::Running;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use truncation::{Helper, Home, Truncating};
use turn::Turn;
use wordlog::{Appender, LogError};

pub use crate::error::{Interrupted, Stop, TxError, Uncommitted};
pub(crate) use recovery::Reading;
pub use recovery::{Area, AreaError, Unrecovered};
pub use session::{Savepoint, Session, Transaction};
pub use space::Space;
pub use truncation::Truncator;

/// When the words of a transaction are made durable in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Truncation {
    /// When a log is half full, for all logs at once: by a thread that does just this, if
    /// there is one ([`Memory::truncator`]), or in the commit that filled it.
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
    /// A commit waits for transactions that have read what it replaces, even if they are bound to
    /// fail: for programs that go on to use without transactions what they took away from
    /// others. A thread must not commit while it has another transaction under way that has
    /// read what this one changes.
    pub privatise: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            truncation: Truncation::Lazy,
            locks: 1 << 20,
            privatise: false,
        }
    }
}

/// Commits that threads need not tell each other of: one tells of so many to come.
const LOGGED_AHEAD: u64 = 255;

/// No commit is under way.
const IDLE: u64 = u64::MAX;

/// One of the logs. Padded, as all that each commit changes, lest one thread's commits slow
/// down what others only read.
struct Slot<P> {
    appender: Mutex<Appender<P>>,
    /// What was committed to it since the last truncation.
    home: Mutex<Home>,
    /// No larger than the stamp of the commit that is under way, or [`IDLE`].
    active: AtomicU64,
}

struct Core<S: Space> {
    space: S,
    area: Area,
    options: Options,
    locks: Locks,
    /// The stamp of the last transaction that drew one.
    clock: CachePadded<AtomicU64>,
    slots: Box<[CachePadded<Slot<S::Pmem>>]>,
    /// Commits that found all logs in use, and wait for one or have waited.
    #[cfg(test)]
    found_no_log: AtomicU64,
    /// Records up to this stamp mean nothing any more.
    low_water: AtomicU64,
    /// The largest stamp of a record, or up to [`LOGGED_AHEAD`] more.
    logged: CachePadded<AtomicU64>,
    /// Whose turn it is to raise the low water.
    truncating: Mutex<Truncating<S::Pmem>>,
    helper: Helper,
    sessions: AtomicU64,
    /// Transactions under way, if anybody waits for them.
    running: Running,
    /// The one that others wait for, since it failed too often.
    turn: CachePadded<Turn>,
    failed: AtomicBool,
    failure: Mutex<Option<Arc<LogError>>>,
}

/// Memory that is changed by transactions. Cheap to clone.
pub struct Memory<S: Space> {
    core: Arc<Core<S>>,
}

impl<S: Space> Clone for Memory<S> {
    fn clone(&self) -> Self {
        let core = self.core.clone();
        Self { core }
    }
}

impl<S: Space> Memory<S> {
    /// What one thread runs transactions with. There may be any number of them.
    pub fn session(&self) -> Session<S> {
        let owner = self.core.sessions.fetch_add(1, Ordering::Relaxed);
        Session::new(self.core.clone(), owner)
    }

    /// Where its words are.
    pub fn space(&self) -> &S {
        &self.core.space
    }

    /// Where its logs are.
    pub fn area(&self) -> Area {
        self.core.area
    }

    /// No recovery replays transactions up to this stamp: what those wrote that returned is
    /// durable in place.
    pub fn low_water(&self) -> u64 {
        self.core.low_water.load(Ordering::Acquire)
    }

    /// Makes all transactions that returned durable in place, so that no recovery brings
    /// back what they wrote: before words are changed otherwise, or go away.
    ///
    /// # Errors
    /// [`LogError`]: then nothing can be committed any more.
    pub fn truncate(&self) -> Result<(), Arc<LogError>> {
        let now = self.core.clock.load(Ordering::SeqCst);
        while self.low_water() < now {
            // A round leaves out what is behind a commit that is under way.
            self.core.truncate()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// [`truncate`](Self::truncate), unless no log has anything for the `len` bytes at offset
    /// `off`: for whoever changes them without transactions. To be called after the stores,
    /// and before the fence that they are to be durable by.
    ///
    /// # Errors
    /// As there.
    pub fn truncate_for(&self, off: u64, len: u64) -> Result<(), Arc<LogError>> {
        let core = &self.core;
        let low_water = self.low_water();
        let nothing = core.logged.load(Ordering::SeqCst) <= low_water;
        if nothing || len == 0 || hit(Bug::PlainStoreInLog) {
            return Ok(());
        }
        // Whose lock is taken may be on its way to a log, with another word of the line.
        let is_logged = |line| {
            let lock = core.locks.of(core.space.address(line * LINE_BYTES));
            let version = core.locks.state(lock).version();
            version.is_none_or(|version| version > low_water)
        };
        let (first, last) = (off / LINE_BYTES, off.saturating_add(len - 1) / LINE_BYTES);
        let is_long = last - first >= core.options.locks as u64;
        if is_long || (first..=last).any(is_logged) {
            self.truncate()?;
        }
        Ok(())
    }
}

impl<S: Space> Core<S> {
    /// A log that nobody appends to.
    fn slot(&self, owner: u64) -> (&Slot<S::Pmem>, MutexGuard<'_, Appender<S::Pmem>>) {
        let first = owner as usize % self.slots.len();
        let (before, after) = self.slots.split_at(first);
        for slot in after.iter().chain(before) {
            if let Some(appender) = slot.appender.try_lock() {
                return (slot, appender);
            }
        }
        #[cfg(test)]
        self.found_no_log.fetch_add(1, Ordering::SeqCst);
        let slot = &self.slots[first];
        (slot, slot.appender.lock())
    }

    /// Before a record of this stamp gets into a log.
    fn note_logged(&self, stamp: u64) {
        if self.logged.load(Ordering::SeqCst) < stamp {
            self.logged
                .fetch_max(stamp + LOGGED_AHEAD, Ordering::SeqCst);
        }
    }

    /// Waits until a record of that many words fits, which is at most the longest.
    fn make_room(&self, appender: &mut Appender<S::Pmem>, words: u64) -> Result<(), Uncommitted> {
        while appender.room().is_none_or(|room| room < words) {
            self.truncate().map_err(Uncommitted::Failed)?;
            // A round leaves out what is behind a commit that is under way.
            std::thread::yield_now();
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
