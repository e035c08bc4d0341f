//! Transactions under way, for commits that take data away from them (privatisation).
//!
//! Guarantee: a commit calls [`Running::wait`] before it releases its locks. When that returns, no
//! earlier transaction is under way that has read the words that the commit replaces. Later ones
//! read the new words.
//!
//! So no other thread uses data that the commit made private. Before a transaction uses them it
//! must read that they are shared, and the commit changed that word. The locks are kept meanwhile,
//! so that a third thread cannot act on the change before either.
//!
//! A commit does not wait for other transactions, however long they take. Nor does it wait for
//! other commits that wait. A commit that has stored its words reads nothing more, so it counts as
//! over before it waits. Without a barrier (see below) it waits for every earlier transaction, and
//! two commits that counted each other would never return.
//!
//! # Design
//!
//! Each session has a bit for each lock, which is set when its transaction has read there. A
//! transaction sets the bit, and then checks the lock again. A commit takes the lock, and then
//! checks the bits. With a barrier between the two steps on each side, the transaction finds the
//! lock taken or the commit finds the bit set.
//!
//! Reads are frequent and have no barrier. The commit executes it in all threads by
//! `membarrier(2)`, if an earlier transaction is under way at all. For the times themselves both
//! sides have barriers.

use super::locks::LockIndex;
use parking_lot::RwLock;
use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    compiler_fence, fence,
};

/// No transaction is under way.
const NONE: u64 = u64::MAX;

/// Checks of other sessions before a barrier in all threads, which costs as much as these.
const LOOKS: u32 = 16;

/// The state of one session: its transaction under way.
#[derive(Debug)]
#[repr(align(64))] // A cache line, so that threads do not slow each other down.
pub(super) struct Under {
    /// The time of its transaction, or [`NONE`].
    time: AtomicU64,
    /// A bit for each lock, set if the transaction has read there. Only its own thread stores here.
    reads: Box<[AtomicU64]>,
}

impl Under {
    fn new(locks: usize) -> Self {
        Self {
            time: AtomicU64::new(NONE),
            reads: (0..locks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Sets the time of the transaction, of which all its reads now are. [`NONE`]: it is over.
    #[inline]
    pub(super) fn set(&self, time: u64) {
        self.time.store(time, Release);
        fence(SeqCst);
    }

    /// Records a read under a lock; the caller then checks whether the lock is still free. Returns
    /// false if the read was recorded before.
    #[inline]
    pub(super) fn note_read(&self, lock: LockIndex) -> bool {
        let (word, bit) = (&self.reads[lock as usize / 64], 1 << (lock % 64));
        let old = word.load(Relaxed);
        let is_new = old & bit == 0;
        if is_new {
            word.store(old | bit, Relaxed);
            // Pairs with the barrier that the commit executes in this thread.
            compiler_fence(SeqCst);
        }
        is_new
    }

    fn has_read(&self, lock: LockIndex) -> bool {
        self.reads[lock as usize / 64].load(Relaxed) & 1 << (lock % 64) != 0
    }

    /// Ends a transaction that has read under these locks.
    #[inline]
    pub(super) fn end(&self, reads: impl Iterator<Item = LockIndex>) {
        self.time.store(NONE, Release);
        for lock in reads {
            self.reads[lock as usize / 64].store(0, Relaxed);
        }
    }
}

/// All sessions.
#[derive(Debug)]
pub(super) struct Running {
    /// The list is replaced when it changes, because a commit may use it for long.
    sessions: RwLock<Arc<Vec<Arc<Under>>>>,
    /// Whether the system can execute a barrier in all threads.
    pub(super) has_barrier: bool,
}

impl Running {
    /// No sessions. `is_needed`: commits will wait.
    pub(super) fn new(is_needed: bool) -> Self {
        let register = || membarrier(MembarrierCommand::RegisterPrivateExpedited);
        Self {
            sessions: RwLock::default(),
            has_barrier: is_needed && register().is_ok(),
        }
    }

    /// Adds a session of memory that has that many locks.
    pub(super) fn join(&self, locks: usize) -> Arc<Under> {
        let under = Arc::new(Under::new(locks));
        Arc::make_mut(&mut self.sessions.write()).push(under.clone());
        under
    }

    pub(super) fn leave(&self, under: &Arc<Under>) {
        let mut sessions = self.sessions.write();
        Arc::make_mut(&mut sessions).retain(|other| !Arc::ptr_eq(other, under));
    }

    /// Waits for all transactions whose time is before `stamp` and that have read under the locks
    /// in `taken`. `own` is the caller's state: its words are stored, so it is over for others.
    /// `is_blocked` is called before the caller sleeps.
    pub(super) fn wait<L: Iterator<Item = LockIndex>>(
        &self,
        stamp: u64,
        own: &Under,
        taken: impl Fn() -> L,
        is_blocked: impl Fn(),
    ) {
        own.set(NONE);
        let is_earlier = |under: &&Arc<Under>| under.time.load(Acquire) < stamp;
        // Most transactions are over soon.
        for _ in 0..LOOKS {
            if !self.sessions.read().iter().any(|under| is_earlier(&under)) {
                return;
            }
            std::hint::spin_loop();
        }
        // Without a barrier the bits of other sessions may be stale.
        let has_bits = self.has_barrier && membarrier(MembarrierCommand::PrivateExpedited).is_ok();
        let sessions = self.sessions.read().clone();
        for under in sessions.iter().filter(is_earlier) {
            if !has_bits || taken().any(|lock| under.has_read(lock)) {
                is_blocked();
                wait_while(|| is_earlier(&under));
            }
        }
    }
}

fn wait_while(is_so: impl Fn() -> bool) {
    let mut spins = 0_u32;
    while is_so() {
        spins += 1;
        match spins % 64 {
            0 => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }
}
