//! Durable transactions (section 3.3): atomic, isolated, and durable once they returned.
//!
//! # Guarantees
//!
//! - **T1** A transaction that returned is whole after every crash. One that did not return is
//!   whole or has left nothing.
//! - **T2** Transactions are strictly serializable.
//! - **T3** A transaction sees only durable words of other transactions.
//! - **T4** A transaction that only reads stores nothing.
//! - **T5** A transaction that fits neither a log nor the heap is rejected, and leaves nothing.
//! - **T6** A transaction changes the bytes that it writes and no others, in its commit and in a
//!   replay. Other threads may change neighbours in the same word without transactions.
//! - **T7** A transaction that conflicts again and again gets its turn: the others wait. A body
//!   therefore must not wait for a thread that runs a transaction. Nor may it lock a mutex that
//!   another thread holds around a transaction.
//!
//! # Design
//!
//! **Locks.** Each line has a lock in a table, by hash. The first write of a word in a line takes
//! the lock, and the commit releases it. Reads are validated against the versions of locks, and
//! repeated if another thread committed in between. Written words wait in volatile memory. The
//! commit draws a time stamp, appends the words to a log, and fences. Then it stores them at their
//! addresses and releases its locks.
//!
//! **Overflow.** Runs that are longer than a log are written to free pages of the heap, contiguous
//! ones if possible. They are durable before a record in the log names them, in a few words for
//! each part (see `TxSession::commit_with`). The heap does not hand these pages out until the low
//! water has passed the record. No descriptor marks them as used. So after a crash they are free
//! again once the record is replayed, and none can leak.
//!
//! **Truncation.** A crash replays records in the order of their stamps. So a record is needed
//! until its words, and those of all records with smaller stamps, are durable at their addresses.
//! Otherwise an older record that remains would undo a newer one that does not. One number, the
//! *low water*, ends the life of all records up to a stamp at once. The heads of the logs follow
//! it. See `truncation`.

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
pub use session::{Savepoint, Transaction, TxSession};
pub use space::Space;
pub use truncation::Truncator;

/// The moment at which the words of a transaction are made durable at their addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Truncation {
    /// When a log is half full, for all logs at once. The thread of a [`Memory::truncator`] does
    /// it, or else the commit that filled the log.
    #[default]
    Lazy,
    /// Each commit truncates the logs.
    Eager,
}

/// Options that the format does not fix.
#[derive(Debug, Clone)]
pub struct Options {
    /// The moment at which logs are truncated.
    pub truncation: Truncation,
    /// Locks in the table, rounded up to a power of two.
    pub locks: usize,
    /// Whether a commit waits for all transactions that have read the words that it replaces, even
    /// for those that will fail. Programs need this for privatisation. A thread must not commit
    /// while it has another transaction under way that has read what this one changes.
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

/// Stamps by which [`Core::logged`] runs ahead, so that not every commit has to store to it.
const LOGGED_AHEAD: u64 = 255;

/// No commit is under way.
const IDLE: u64 = u64::MAX;

/// A log. Its padding keeps commits of one thread from slowing down reads of other logs.
struct Slot<P> {
    appender: Mutex<Appender<P>>,
    /// Commits to this log since the last truncation.
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
    /// Records up to this stamp are no longer replayed.
    low_water: AtomicU64,
    /// The largest stamp of a record, or up to [`LOGGED_AHEAD`] more.
    logged: CachePadded<AtomicU64>,
    /// Held by the thread that raises the low water.
    truncating: Mutex<Truncating<S::Pmem>>,
    helper: Helper,
    sessions: AtomicU64,
    /// Transactions under way, if commits wait for them.
    running: Running,
    /// The turn of a transaction that has failed too often.
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
    /// A session, in which one thread runs transactions. There may be any number of sessions.
    pub fn session(&self) -> TxSession<S> {
        let owner = self.core.sessions.fetch_add(1, Ordering::Relaxed);
        TxSession::new(self.core.clone(), owner)
    }

    /// The words that transactions read and write.
    pub fn space(&self) -> &S {
        &self.core.space
    }

    /// The location of the logs.
    pub fn area(&self) -> Area {
        self.core.area
    }

    /// The stamp up to which recovery replays no transaction. Those that returned are durable at
    /// their addresses.
    pub fn low_water(&self) -> u64 {
        self.core.low_water.load(Ordering::Acquire)
    }

    /// Makes all transactions that returned durable at their addresses, so that no recovery
    /// restores what they wrote. Call it before words are changed without transactions, or are
    /// freed.
    ///
    /// # Errors
    /// [`LogError`]; then no further transaction can commit.
    pub fn truncate(&self) -> Result<(), Arc<LogError>> {
        let now = self.core.clock.load(Ordering::SeqCst);
        while self.low_water() < now {
            // A round leaves out commits after one that is under way.
            self.core.truncate()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    /// [`truncate`](Self::truncate), unless no log has anything for the `len` bytes at offset
    /// `off`. A thread that changes these bytes without transactions calls it after its stores, and
    /// before the fence that makes them durable.
    ///
    /// # Errors
    /// As [`truncate`](Self::truncate).
    pub fn truncate_for(&self, off: u64, len: u64) -> Result<(), Arc<LogError>> {
        let core = &self.core;
        let low_water = self.low_water();
        let nothing = core.logged.load(Ordering::SeqCst) <= low_water;
        if nothing || len == 0 || hit(Bug::PlainStoreInLog) {
            return Ok(());
        }
        // A line whose lock is taken may be on its way to a log, with another word of the line.
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
    /// Locks a log, if possible one that is unused.
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

    /// Records that a record of this stamp is about to be appended to a log.
    fn note_logged(&self, stamp: u64) {
        if self.logged.load(Ordering::SeqCst) < stamp {
            self.logged
                .fetch_max(stamp + LOGGED_AHEAD, Ordering::SeqCst);
        }
    }

    /// Waits until a record of `words` words fits, which is at most the longest.
    fn make_room(&self, appender: &mut Appender<S::Pmem>, words: u64) -> Result<(), Uncommitted> {
        while appender.room().is_none_or(|room| room < words) {
            self.truncate().map_err(Uncommitted::Failed)?;
            // A round leaves out commits after one that is under way.
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

    /// Makes all further commits fail.
    #[cold]
    fn fail(&self, error: LogError) -> Arc<LogError> {
        let mut failure = self.failure.lock();
        let first = failure.get_or_insert_with(|| Arc::new(error)).clone();
        self.failed.store(true, Ordering::Release);
        first
    }
}
